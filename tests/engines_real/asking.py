"""Requests through the official SDK in strict mode, and what came back of each choice."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from e2e.stack import Stack
from openai.types import CompletionUsage
from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob

from extproc.dialects.json_body import BodyLimits
from extproc.dialects.openai_chat_request import parse_chat
from extproc.tokens.model import ModelTokens, Prompt

STORY = [
    {"role": "user", "content": "Tell me a short story about a fox and a river, with a good end for both of them."}
]
BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
WITHOUT_END: dict[str, Any] = {"ignore_eos": True}


@dataclass
class Answer:
    """What a client has seen of one choice."""

    text: str = ""
    finish: str | None = None
    logprobs: list[ChatCompletionTokenLogprob] = field(default_factory=list)
    usage: CompletionUsage | None = None

    @property
    def tokens(self) -> int:
        """Completion tokens."""
        assert self.usage is not None
        return self.usage.completion_tokens

    @property
    def cached(self) -> int:
        """Prompt tokens that the engine had in its cache."""
        assert self.usage is not None
        assert self.usage.prompt_tokens_details is not None
        return self.usage.prompt_tokens_details.cached_tokens or 0


def request_of(stack: Stack, **fields: Any) -> dict[str, Any]:
    model = stack.config.pools[0].models[0].name
    return {"model": model, "messages": STORY, "temperature": 0, "max_tokens": 24, **fields}


async def ask_all(stack: Stack, *, stream: bool, **fields: Any) -> list[Answer]:
    """Every choice of one request's answer."""
    request = request_of(stack, **fields)
    answers = [Answer() for _ in range(request.get("n", 1))]
    usage: CompletionUsage | None = None
    completions = stack.client(timeout=300.0).chat.completions
    if stream:
        async for chunk in await completions.create(stream=True, stream_options={"include_usage": True}, **request):
            usage = chunk.usage or usage
            for delta in chunk.choices:
                answer = answers[delta.index]
                assert answer.finish is None
                answer.text += delta.delta.content or ""
                answer.logprobs += (delta.logprobs.content or []) if delta.logprobs else []
                answer.finish = delta.finish_reason
    else:
        whole = await completions.create(**request)
        usage = whole.usage
        for choice in whole.choices:
            answer = answers[choice.index]
            answer.text = choice.message.content or ""
            answer.logprobs = (choice.logprobs.content or []) if choice.logprobs else []
            answer.finish = choice.finish_reason
    for answer in answers:
        answer.usage = usage
    return answers


async def ask(stack: Stack, *, stream: bool, **fields: Any) -> Answer:
    (answer,) = await ask_all(stack, stream=stream, **fields)
    return answer


def model_tokens(stack: Stack) -> ModelTokens:
    """The tokenizer that the processor got from the engine."""
    assert stack.processor.fleet is not None
    return stack.processor.fleet.backends["main"].ready_tokens()


def tokens_of(stack: Stack, content: bytes) -> list[int]:
    """Ids of the tokens with just these bytes."""
    tokens = model_tokens(stack)
    return [token for token in range(tokens.vocab_size) if tokens.token_bytes(token) == content]


async def prompt_ids(stack: Stack, messages: list[dict[str, str]]) -> list[int]:
    """As the processor sends them to the engine."""
    body = json.dumps({"model": "m", "messages": messages}).encode()
    prompt = model_tokens(stack).prompt(parse_chat(body, BodyLimits(max_depth=64, max_messages=100)))
    return list((prompt if isinstance(prompt, Prompt) else await prompt).ids)
