"""Gemini's generateContent and Interactions, by google-genai."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from google import genai
from google.genai import errors, types
from speakers import PNG, TOOLS, Asked, Results, Seen


class Gemini:
    """The SDK keeps the content of each event, and sends all of them back."""

    finishes: ClassVar[Mapping[str, str]] = {
        "stop": "STOP",
        "stop_sequence": "STOP",
        "length": "MAX_TOKENS",
        "tool_calls": "STOP",
    }
    cannot = frozenset(("parallel",))
    refused = errors.ClientError

    def __init__(self, base_url: str) -> None:
        options = types.HttpOptions(base_url=base_url, timeout=60_000)
        self._client = genai.Client(api_key="key", http_options=options).aio

    async def close(self) -> None:
        await self._client.aclose()

    async def ask(self, asked: Asked, *, streamed: bool) -> Seen:
        contents: list[Any] = []
        for turn in asked.turns:
            match turn:
                case str():
                    contents.append(types.UserContent(turn))
                case Seen():
                    contents += turn.native
                case Results():
                    parts = [
                        types.Part(
                            function_response=types.FunctionResponse(
                                id=turn.of.call_ids[index],
                                name=turn.of.calls[index][0],
                                response={"error" if error else "output": text},
                            )
                        )
                        for index, text, error in turn.results
                    ]
                    contents.append(types.Content(role="user", parts=parts))
        if asked.image:
            image = types.Part.from_bytes(data=base64.b64decode(PNG), mime_type="image/png")
            contents.append(types.Content(role="user", parts=[image]))
        config = types.GenerateContentConfig(
            max_output_tokens=asked.max_tokens,
            automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
            thinking_config=types.ThinkingConfig(include_thoughts=True),
            system_instruction=asked.system,
            temperature=asked.temperature,
            stop_sequences=list(asked.stop) or None,
        )
        if asked.tools:
            declarations = [
                types.FunctionDeclaration(name=name, parameters_json_schema=parameters)
                for name, parameters in TOOLS.items()
            ]
            config.tools = [types.Tool(function_declarations=declarations)]
        if asked.choice is not None:
            mode, names = {
                "none": ("NONE", None),
                "required": ("ANY", None),
                "named": ("ANY", ["weather"]),
                "allowed": ("ANY", ["now", "today"]),
            }[asked.choice]
            calling = types.FunctionCallingConfig(
                mode=types.FunctionCallingConfigMode(mode), allowed_function_names=names
            )
            config.tool_config = types.ToolConfig(function_calling_config=calling)
        if asked.thinking is False:
            config.thinking_config = types.ThinkingConfig(thinking_budget=0)
        if asked.schema is not None:
            config.response_mime_type = "application/json"
            config.response_json_schema = asked.schema
        if asked.logprobs is not None:
            config.response_logprobs = True
            config.logprobs = asked.logprobs
        request: dict[str, Any] = {"model": asked.model, "contents": contents, "config": config}
        if streamed:
            answers = [one async for one in await self._client.models.generate_content_stream(**request)]
        else:
            answers = [await self._client.models.generate_content(**request)]
        last = answers[-1]
        candidates = [answer.candidates[0] for answer in answers if answer.candidates]
        native = [one.content for one in candidates if one.content and one.content.parts]
        parts = [part for content in native for part in content.parts or ()]
        thoughts = [part.text or "" for part in parts if part.thought]
        calls = [part.function_call for part in parts if part.function_call]
        scores = [
            score.log_probability or 0.0
            for one in candidates
            if one.logprobs_result
            for score in one.logprobs_result.chosen_candidates or ()
        ]
        usage = last.usage_metadata
        assert usage is not None
        thinking = usage.thoughts_token_count
        finish = candidates[-1].finish_reason
        assert finish is not None
        assert len({answer.response_id for answer in answers}) == 1
        return Seen(
            id=last.response_id or "",
            model=last.model_version or "",
            text="".join(part.text or "" for part in parts if not part.thought),
            reasoning="".join(thoughts) if thoughts else None,
            calls=tuple((call.name or "", call.args or {}) for call in calls),
            call_ids=tuple(call.id or "" for call in calls),
            finish=finish.value,
            prompt_tokens=usage.prompt_token_count or 0,
            cached_tokens=usage.cached_content_token_count or 0,
            completion_tokens=(usage.candidates_token_count or 0) + (thinking or 0),
            reasoning_tokens=thinking or 0 if thoughts else None,
            logprobs=None if asked.logprobs is None else tuple(scores),
            native=native,
        )


class Interactions:
    """What is streamed is put together here: the SDK leaves that to who reads it."""

    finishes: ClassVar[Mapping[str, str]] = {
        "stop": "completed",
        "stop_sequence": "completed",
        "length": "incomplete",
        "tool_calls": "requires_action",
    }
    cannot = frozenset(("parallel", "logprobs"))
    refused = Exception  # the SDK's own class for it is not public

    def __init__(self, base_url: str) -> None:
        options = types.HttpOptions(base_url=base_url, timeout=60_000)
        self._client = genai.Client(api_key="key", http_options=options).aio

    async def close(self) -> None:
        await self._client.aclose()

    async def ask(self, asked: Asked, *, streamed: bool) -> Seen:
        steps: list[Any] = []
        for turn in asked.turns:
            match turn:
                case str():
                    steps.append({"type": "user_input", "content": [{"type": "text", "text": turn}]})
                case Seen():
                    steps += turn.native
                case Results():
                    steps += [
                        {
                            "type": "function_result",
                            "call_id": turn.of.call_ids[index],
                            "name": turn.of.calls[index][0],
                            "result": text,
                            "is_error": error,
                        }
                        for index, text, error in turn.results
                    ]
        if asked.image:
            image = {"type": "image", "data": PNG, "mime_type": "image/png"}
            steps.append({"type": "user_input", "content": [image]})
        generation: dict[str, Any] = {"max_output_tokens": asked.max_tokens, "thinking_summaries": "auto"}
        request: dict[str, Any] = {"model": asked.model, "input": steps, "generation_config": generation}
        if asked.system is not None:
            request["system_instruction"] = asked.system
        if asked.tools:
            request["tools"] = [
                {"type": "function", "name": name, "parameters": parameters} for name, parameters in TOOLS.items()
            ]
        if asked.choice is not None:
            generation["tool_choice"] = {
                "none": "none",
                "required": "any",
                "named": {"allowed_tools": {"mode": "any", "tools": ["weather"]}},
                "allowed": {"allowed_tools": {"mode": "any", "tools": ["now", "today"]}},
            }[asked.choice]
        if asked.thinking is not None:
            generation["thinking_level"] = "medium" if asked.thinking else "minimal"
        if asked.schema is not None:
            request["response_format"] = {"type": "text", "mime_type": "application/json", "schema": asked.schema}
        if asked.stop:
            generation["stop_sequences"] = list(asked.stop)
        if asked.temperature is not None:
            generation["temperature"] = asked.temperature
        if streamed:
            native, answer = await self._streamed(request)
        else:
            answer = await self._client.interactions.create(**request)
            native = [step.model_dump(exclude_none=True) for step in answer.steps or ()]
        thoughts = [part["text"] for step in native if step["type"] == "thought" for part in step.get("summary") or ()]
        texts = [part["text"] for step in native if step["type"] == "model_output" for part in step["content"]]
        calls = [step for step in native if step["type"] == "function_call"]
        usage = answer.usage
        return Seen(
            id=answer.id,
            model=answer.model,
            text="".join(texts),
            reasoning="".join(thoughts) if thoughts else None,
            calls=tuple((call["name"], call["arguments"]) for call in calls),
            call_ids=tuple(call["id"] for call in calls),
            finish=answer.status,
            prompt_tokens=usage.total_input_tokens,
            cached_tokens=usage.total_cached_tokens or 0,
            completion_tokens=usage.total_output_tokens + (usage.total_thought_tokens or 0),
            reasoning_tokens=usage.total_thought_tokens if thoughts else None,
            native=native,
        )

    async def _streamed(self, request: dict[str, Any]) -> tuple[list[Any], Any]:
        """The steps, and the interaction as the last event has it."""
        native: list[Any] = []
        arguments = ""
        async for event in await self._client.interactions.create(**request, stream=True):
            match event.event_type:
                case "step.start":
                    assert event.index == len(native)
                    native.append(event.step.model_dump(exclude_none=True))
                    arguments = ""
                case "step.delta":
                    step, delta = native[event.index], event.delta
                    match delta.type:
                        case "text":
                            _longer(step, "content", delta.text)
                        case "thought_summary":
                            _longer(step, "summary", delta.content.text)
                        case "thought_signature":
                            step["signature"] = delta.signature
                        case "arguments_delta":
                            arguments += delta.arguments
                case "step.stop":
                    if native[event.index]["type"] == "function_call":
                        native[event.index]["arguments"] = json.loads(arguments)
                case "interaction.completed":
                    return native, event.interaction
        raise AssertionError("the stream had no end")


def _longer(step: dict[str, Any], field: str, text: str) -> None:
    """Add to the step's one text."""
    [part] = step.setdefault(field, [{"type": "text", "text": ""}])
    part["text"] += text
