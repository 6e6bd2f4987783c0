"""Ollama's own API, by its SDK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import ollama
from speakers import PNG, TOOLS, Asked, Results, Seen


class Ollama:
    """Its calls have no ids: results are told apart by the tool's name."""

    finishes: ClassVar[Mapping[str, str]] = {
        "stop": "stop",
        "stop_sequence": "stop",
        "length": "length",
        "tool_calls": "stop",
    }
    cannot = frozenset(("none", "required", "named", "allowed", "parallel", "ids"))
    refused = ollama.ResponseError

    def __init__(self, base_url: str) -> None:
        self._client = ollama.AsyncClient(host=base_url, timeout=60.0)

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
                            "tool_name": turn.of.calls[index][0],
                            "content": f"Error: {text}" if error else text,
                        }
                        for index, text, error in turn.results
                    ]
        if asked.image:
            messages.append({"role": "user", "content": "", "images": [PNG]})
        options: dict[str, Any] = {"num_predict": asked.max_tokens}
        request: dict[str, Any] = {"model": asked.model, "messages": messages, "options": options}
        if asked.temperature is not None:
            options["temperature"] = asked.temperature
        if asked.stop:
            options["stop"] = list(asked.stop)
        if asked.tools:
            request["tools"] = [
                {"type": "function", "function": {"name": name, "parameters": parameters}}
                for name, parameters in TOOLS.items()
            ]
        if asked.thinking is not None:
            request["think"] = asked.thinking
        if asked.schema is not None:
            request["format"] = asked.schema
        if asked.logprobs is not None:
            request |= {"logprobs": True, "top_logprobs": asked.logprobs}
        if streamed:
            answers = [one async for one in await self._client.chat(**request, stream=True)]
        else:
            answers = [await self._client.chat(**request)]
        last = answers[-1]
        assert last.done
        thoughts = [one.message.thinking for one in answers if one.message.thinking]
        calls = [call for one in answers for call in one.message.tool_calls or ()]
        text = "".join(one.message.content or "" for one in answers)
        thinking = "".join(thoughts) if thoughts else None
        return Seen(
            id="",
            model=last.model or "",
            text=text,
            reasoning=thinking,
            calls=tuple((call.function.name, call.function.arguments) for call in calls),
            call_ids=(),
            finish=last.done_reason or "",
            prompt_tokens=last.prompt_eval_count or 0,
            cached_tokens=None,
            completion_tokens=last.eval_count or 0,
            reasoning_tokens=None,
            logprobs=None
            if asked.logprobs is None
            else tuple(score.logprob for one in answers for score in one.logprobs or ()),
            native=[ollama.Message(role="assistant", content=text, thinking=thinking, tool_calls=calls or None)],
        )
