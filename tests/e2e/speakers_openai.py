"""OpenAI's dialects, by OpenAI's SDK."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import openai
from speakers import PNG, TOOLS, Asked, Results, Seen


class Chat:
    """OpenAI Chat Completions."""

    finishes: ClassVar[Mapping[str, str]] = {
        "stop": "stop",
        "stop_sequence": "stop",
        "length": "length",
        "tool_calls": "tool_calls",
    }
    cannot: frozenset[str] = frozenset()
    refused = openai.BadRequestError

    def __init__(self, base_url: str) -> None:
        self._client = openai.AsyncOpenAI(
            base_url=f"{base_url}/v1", api_key="key", max_retries=0, timeout=60.0, _strict_response_validation=True
        )

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, asked: Asked, *, streamed: bool) -> Seen:
        messages: list[Any] = [] if asked.system is None else [{"role": "system", "content": asked.system}]
        for turn in asked.turns:
            match turn:
                case str():
                    messages.append({"role": "user", "content": turn})
                case Seen():
                    messages += turn.native
                case Results():
                    messages += [
                        {
                            "role": "tool",
                            "tool_call_id": turn.of.call_ids[index],
                            "content": f"Error: {text}" if error else text,  # as it cannot tell in another way
                        }
                        for index, text, error in turn.results
                    ]
        if asked.image:
            image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
            messages.append({"role": "user", "content": [image]})
        request: dict[str, Any] = {"model": asked.model, "messages": messages, "max_tokens": asked.max_tokens}
        if asked.tools:
            request["tools"] = [
                {"type": "function", "function": {"name": name, "parameters": parameters}}
                for name, parameters in TOOLS.items()
            ]
        if asked.choice is not None:
            two = [{"type": "function", "function": {"name": name}} for name in ("now", "today")]
            request["tool_choice"] = {
                "named": {"type": "function", "function": {"name": "weather"}},
                "allowed": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": two}},
            }.get(asked.choice, asked.choice)
        if not asked.parallel:
            request["parallel_tool_calls"] = False
        if asked.thinking is not None:
            request["reasoning_effort"] = "medium" if asked.thinking else "none"
        if asked.schema is not None:
            form = {"name": "answer", "schema": asked.schema}
            request["response_format"] = {"type": "json_schema", "json_schema": form}
        if asked.stop:
            request["stop"] = list(asked.stop)
        if asked.logprobs is not None:
            request |= {"logprobs": True, "top_logprobs": asked.logprobs}
        if asked.temperature is not None:
            request["temperature"] = asked.temperature
        if streamed:
            request["stream_options"] = {"include_usage": True}
            async with self._client.chat.completions.stream(**request) as stream:
                try:
                    answer: Any = await stream.get_final_completion()
                except openai.LengthFinishReasonError as cut:  # so the helper tells it
                    answer = cut.completion
        else:
            answer = await self._client.chat.completions.create(**request)
        [choice] = answer.choices
        message = choice.message
        calls = message.tool_calls or ()
        assert message.model_extra is not None
        return Seen(
            id=answer.id,
            model=answer.model,
            text=message.content or "",
            reasoning=message.model_extra.get("reasoning_content"),
            calls=tuple((call.function.name, json.loads(call.function.arguments)) for call in calls),
            call_ids=tuple(call.id for call in calls),
            finish=choice.finish_reason,
            prompt_tokens=answer.usage.prompt_tokens,
            cached_tokens=answer.usage.prompt_tokens_details.cached_tokens,
            completion_tokens=answer.usage.completion_tokens,
            reasoning_tokens=answer.usage.completion_tokens_details.reasoning_tokens,
            logprobs=choice.logprobs and tuple(one.logprob for one in choice.logprobs.content),
            native=[message],
        )


class Responses:
    """OpenAI Responses."""

    finishes: ClassVar[Mapping[str, str]] = {
        "stop": "completed",
        "stop_sequence": "completed",
        "length": "incomplete",
        "tool_calls": "completed",
    }
    cannot: frozenset[str] = frozenset()
    refused = openai.BadRequestError

    def __init__(self, base_url: str) -> None:
        self._client = openai.AsyncOpenAI(
            base_url=f"{base_url}/v1", api_key="key", max_retries=0, timeout=60.0, _strict_response_validation=True
        )

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, asked: Asked, *, streamed: bool) -> Seen:
        items: list[Any] = []
        for turn in asked.turns:
            match turn:
                case str():
                    items.append({"role": "user", "content": turn})
                case Seen():
                    items += turn.native
                case Results():
                    items += [
                        {
                            "type": "function_call_output",
                            "call_id": turn.of.call_ids[index],
                            "output": f"Error: {text}" if error else text,
                        }
                        for index, text, error in turn.results
                    ]
        if asked.image:
            image = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"}
            items.append({"role": "user", "content": [image]})
        request: dict[str, Any] = {"model": asked.model, "input": items, "max_output_tokens": asked.max_tokens}
        if asked.system is not None:
            request["instructions"] = asked.system
        if asked.tools:
            request["tools"] = [
                {"type": "function", "name": name, "parameters": parameters} for name, parameters in TOOLS.items()
            ]
        if asked.choice is not None:
            two = [{"type": "function", "name": name} for name in ("now", "today")]
            request["tool_choice"] = {
                "named": {"type": "function", "name": "weather"},
                "allowed": {"type": "allowed_tools", "mode": "required", "tools": two},
            }.get(asked.choice, asked.choice)
        if not asked.parallel:
            request["parallel_tool_calls"] = False
        if asked.thinking is not None:
            request["reasoning"] = {"effort": "medium" if asked.thinking else "none"}
        if asked.schema is not None:
            request["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": asked.schema}}
        if asked.logprobs is not None:
            request |= {"include": ["message.output_text.logprobs"], "top_logprobs": asked.logprobs}
        if asked.temperature is not None:
            request["temperature"] = asked.temperature
        if asked.stop:
            request["extra_body"] = {"stop": list(asked.stop)}
        if streamed:
            async for event in await self._client.responses.create(**request, stream=True):
                if event.type in ("response.completed", "response.incomplete"):
                    answer: Any = event.response
        else:
            answer = await self._client.responses.create(**request)
        reasoning = [part.text for item in answer.output if item.type == "reasoning" for part in item.content or ()]
        parts = [part for item in answer.output if item.type == "message" for part in item.content]
        calls = [item for item in answer.output if item.type == "function_call"]
        scores = [one.logprob for part in parts for one in part.logprobs or ()]
        return Seen(
            id=answer.id,
            model=answer.model,
            text=answer.output_text,
            reasoning="".join(reasoning) if reasoning else None,
            calls=tuple((call.name, json.loads(call.arguments)) for call in calls),
            call_ids=tuple(call.call_id for call in calls),
            finish=answer.status,
            prompt_tokens=answer.usage.input_tokens,
            cached_tokens=answer.usage.input_tokens_details.cached_tokens,
            completion_tokens=answer.usage.output_tokens,
            reasoning_tokens=answer.usage.output_tokens_details.reasoning_tokens,
            logprobs=None if asked.logprobs is None else tuple(scores),
            native=answer.output,
        )
