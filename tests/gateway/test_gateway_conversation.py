"""What a Chat Completions client writes is what the chat template sees."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from extproc.dialects.base import Inbound
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.openai_chat import OpenAIChat
from extproc.tokens.conversation import Conversation, Forms, variables
from extproc.tokens.messages import messages_of, tools_of
from extproc.tokens.template_probes import probe_conversations

DIALECT = OpenAIChat(BodyLimits())
INBOUND = Inbound("POST", "/v1/chat/completions", "", {})
TEXT = Forms(knows_developer=True)
PARTS = Forms(takes_text=False, takes_parts=True, knows_developer=True, argument_objects=False)


def expected(conversation: Conversation, forms: Forms) -> dict[str, Any]:
    """The template's variables, of the messages as they were written."""
    messages = copy.deepcopy(list(conversation.messages))
    names: dict[str, str] = {}
    for message in messages:
        content = message["content"]
        texts = [] if content is None else [content] if isinstance(content, str) else [part["text"] for part in content]
        if message["role"] == "assistant" and content == "" and message.get("tool_calls"):
            texts = []  # an empty text beside calls says nothing
        message["content"] = "\n".join(texts) if forms.takes_text else [{"type": "text", "text": one} for one in texts]
        reasoning = message.pop("reasoning", None) or message.get("reasoning_content")
        if reasoning:
            message["reasoning_content"] = reasoning
        for call in message.get("tool_calls", ()):
            names[call["id"]] = call["function"]["name"]
        if message.get("tool_calls") == []:
            del message["tool_calls"]
        if message["role"] == "tool":
            message["name"] = names[message["tool_call_id"]]
        message.pop("refusal", None)
        message.pop("audio", None)
    written = Conversation(
        messages=messages,
        tools=conversation.tools or None,
        add_generation_prompt=conversation.add_generation_prompt,
        continue_final_message=conversation.continue_final_message,
        kwargs=conversation.kwargs,
    )
    return variables(written, forms)


def is_plain(conversation: Conversation) -> bool:
    """Of the probes some are no requests that a client could send."""
    messages = conversation.messages
    calls = {call["id"] for message in messages for call in message.get("tool_calls") or ()}
    return (
        all(message["role"] != "tool" or message.get("tool_call_id") in calls for message in messages)
        and all("thinking" not in message for message in messages)
        and all(
            message["content"] is not None or message.get("tool_calls") or message.get("reasoning_content")
            for message in messages
        )
    )


PROBES = [probe for probe in probe_conversations() if is_plain(probe)]


@pytest.mark.parametrize("forms", [TEXT, PARTS], ids=["text", "parts"])
def test_the_template_sees_what_the_client_wrote(forms: Forms) -> None:
    for probe in PROBES:
        body = {
            "model": "m",
            "messages": probe.messages,
            "tools": probe.tools,
            "add_generation_prompt": probe.add_generation_prompt,
            "continue_final_message": probe.continue_final_message,
            "chat_template_kwargs": dict(probe.kwargs),
        }
        chat = DIALECT.parse(INBOUND, json.dumps(body).encode())
        seen = Conversation(
            messages=messages_of(chat.turns, forms),
            tools=tools_of(chat.tools),
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            kwargs=chat.template_kwargs,
        )
        assert variables(seen, forms) == expected(probe, forms)


def test_enough_conversations_are_compared() -> None:
    assert len(PROBES) > 70
