"""The neutral form as case files write it: plain JSON, of which only what is set stands."""

from __future__ import annotations

from typing import Any

import msgspec

from extproc.ir import (
    UNSET,
    ChatRequest,
    Event,
    Finish,
    FinishReason,
    Json,
    Media,
    Opaque,
    OpaqueDelta,
    Reasoning,
    ReasoningDelta,
    Refusal,
    RefusalDelta,
    Text,
    TextDelta,
    ToolArgsDelta,
    ToolCall,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
    Usage,
)


def shape_of(request: ChatRequest) -> dict[str, Any]:
    """`turns`, and every field that differs from its default. `own` is the dialect's alone."""
    shape: dict[str, Any] = {"turns": [[turn.role, *map(part_shape, turn.parts)] for turn in request.turns]}
    plain = ChatRequest(model="", turns=())
    for name in ChatRequest.__struct_fields__:
        value = getattr(request, name)
        if name in ("turns", "own", "losses") or value == getattr(plain, name):
            continue
        if isinstance(value, msgspec.Struct):
            shape[name] = _set(value)
        elif name == "tools":
            shape[name] = [_set(tool) for tool in value]
        else:
            shape[name] = value
    if request.losses:
        shape["losses"] = [loss.field for loss in request.losses]
    return shape


def part_shape(part: Any) -> Any:
    match part:
        case Text():
            return part.text
        case Reasoning():
            return {"reasoning": part.text, **_set(part, but=("text",))}
        case Refusal():
            return {"refusal": part.text}
        case ToolCall():
            return {"call": part.name, **_set(part, but=("name",))}
        case ToolResult():
            return {
                "result": part.call_id,
                "parts": [*map(part_shape, part.parts)],
                **_set(part, but=("call_id", "parts")),
            }
        case Json():
            return {"json": part.value}
        case Media():
            return {"media": part.modality, **_set(part, but=("modality",))}
    raise AssertionError(part)


def _set(value: msgspec.Struct, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    shape = {}
    for field in msgspec.structs.fields(type(value)):
        held = getattr(value, field.name)
        default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        if field.name in but or held is UNSET or held == default:
            continue
        shape[field.name] = msgspec.to_builtins(held) if isinstance(held, msgspec.Struct | tuple) else held
    return shape


def events_of(written: list[list[Any]]) -> list[Event]:
    """Events of choice 0: `["text", "…"]`, `["call", index, id, name]`, and so on."""
    return [_event(kind, rest) for kind, *rest in written]


def _event(kind: str, rest: list[Any]) -> Event:
    match kind:
        case "text":
            return TextDelta(0, *rest)
        case "reasoning":
            return ReasoningDelta(0, *rest)
        case "summary":
            return ReasoningDelta(0, *rest, summary=True)
        case "refusal":
            return RefusalDelta(0, *rest)
        case "opaque":
            return OpaqueDelta(0, Opaque(*rest))
        case "call":
            return ToolCallStart(0, *rest)
        case "args":
            return ToolArgsDelta(0, *rest)
        case "called":
            return ToolCallEnd(0, *rest)
        case "finish":
            return Finish(0, FinishReason(rest[0]), *rest[1:])
    raise AssertionError(kind)


def usage_of(written: dict[str, int]) -> Usage:
    return Usage(**written)
