"""Anthropic Messages, by Anthropic's SDK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import anthropic
from speakers import PNG, TOOLS, Asked, Results, Seen


class Anthropic:
    """Anthropic Messages."""

    finishes: ClassVar[Mapping[str, str]] = {
        "stop": "end_turn",
        "stop_sequence": "stop_sequence",
        "length": "max_tokens",
        "tool_calls": "tool_use",
    }
    cannot = frozenset(("allowed", "logprobs"))
    refused = anthropic.BadRequestError

    def __init__(self, base_url: str) -> None:
        self._client = anthropic.AsyncAnthropic(
            base_url=base_url, api_key="key", max_retries=0, timeout=60.0, _strict_response_validation=True
        )

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, asked: Asked, *, streamed: bool) -> Seen:
        messages: list[Any] = []
        for turn in asked.turns:
            match turn:
                case str():
                    messages.append({"role": "user", "content": turn})
                case Seen():
                    messages.append({"role": "assistant", "content": turn.native})
                case Results():
                    content = [
                        {
                            "type": "tool_result",
                            "tool_use_id": turn.of.call_ids[index],
                            "content": text,
                            "is_error": error,
                        }
                        for index, text, error in turn.results
                    ]
                    messages.append({"role": "user", "content": content})
        if asked.image:
            source = {"type": "base64", "media_type": "image/png", "data": PNG}
            messages.append({"role": "user", "content": [{"type": "image", "source": source}]})
        request: dict[str, Any] = {"model": asked.model, "messages": messages, "max_tokens": asked.max_tokens}
        extra: dict[str, Any] = {}
        if asked.system is not None:
            request["system"] = asked.system
        if asked.tools:
            request["tools"] = [{"name": name, "input_schema": parameters} for name, parameters in TOOLS.items()]
        if asked.choice is not None:
            request["tool_choice"] = {
                "named": {"type": "tool", "name": "weather"},
                "required": {"type": "any"},
            }.get(asked.choice, {"type": asked.choice})
        if not asked.parallel:
            request.setdefault("tool_choice", {"type": "auto"})["disable_parallel_tool_use"] = True
        if asked.thinking is not None:
            request["thinking"] = {"type": "adaptive" if asked.thinking else "disabled"}
        if asked.schema is not None:
            request["output_config"] = {"format": {"type": "json_schema", "schema": asked.schema}}
        if asked.stop:
            request["stop_sequences"] = list(asked.stop)
        if asked.temperature is not None:
            extra["temperature"] = asked.temperature
        if streamed:
            async with self._client.messages.stream(**request, extra_body=extra) as stream:
                answer: Any = await stream.get_final_message()
        else:
            answer = await self._client.messages.create(**request, extra_body=extra)
        reasoning = [block.thinking for block in answer.content if block.type == "thinking"]
        calls = [block for block in answer.content if block.type == "tool_use"]
        usage = answer.usage
        return Seen(
            id=answer.id,
            model=answer.model,
            text="".join(block.text for block in answer.content if block.type == "text"),
            reasoning="".join(reasoning) if reasoning else None,
            calls=tuple((call.name, call.input) for call in calls),
            call_ids=tuple(call.id for call in calls),
            finish=answer.stop_reason,
            stop_sequence=answer.stop_sequence,
            prompt_tokens=usage.input_tokens + usage.cache_read_input_tokens,
            cached_tokens=usage.cache_read_input_tokens,
            completion_tokens=usage.output_tokens,
            reasoning_tokens=usage.output_tokens_details and usage.output_tokens_details.thinking_tokens,
            native=answer.to_param()["content"],
        )
