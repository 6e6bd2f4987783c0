"""The form that a conversation asks its answer to have, and what a pool makes of it: tools, reasoning, bound text."""

from __future__ import annotations

import hashlib

from msgspec import Struct

from extproc.gateway.backend import Backend
from extproc.ir import (
    UNSET,
    ChatRequest,
    ErrorInfo,
    ErrorKind,
    Loss,
    OutputFormat,
    Reasoning,
    RequestError,
    ToolCall,
    ToolDef,
)
from extproc.output.forced_calls import forced_format
from extproc.output.reader import Reading, reading_of
from extproc.tokens.messages import offered_tools

_ID_CHARS = 20
_MISTRAL_ID_CHARS = 9
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class Plan(Struct, frozen=True):
    """How the engine is bound, and how its text is read."""

    output: OutputFormat | None = None
    reading: Reading | None = None
    losses: tuple[Loss, ...] = ()


def check_tools(chat: ChatRequest, backend: Backend) -> None:
    """Raises RequestError where the tools or the choice among them make no sense, or the model knows of no tools."""
    choice = chat.tool_choice
    if not chat.tools:
        if choice.mode in ("required", "named") or choice.names:
            raise _invalid("'tool_choice' needs 'tools'.", "tool_choice")
        return
    names = {tool.name for tool in chat.tools}
    if len(names) < len(chat.tools):
        raise _invalid("Two of the tools have the same name.", "tools")
    for name in choice.names:
        if name not in names:
            raise _invalid(f"'tool_choice' names {name[:64]!r}, which is none of the tools.", "tool_choice")
    if choice.mode != "none" and backend.http is None and not backend.parsers.template_takes_tools:
        raise RequestError(
            ErrorInfo(
                kind=ErrorKind.UNSUPPORTED,
                message="This model does not take tools: its chat template has no place for them.",
                param="tools",
                code="unsupported_parameter",
            )
        )


def plan_answer(chat: ChatRequest, backend: Backend, prompt_end: str, answer_id: str, call_id_prefix: str) -> Plan:
    """Raises RequestError. `answer_id`: ids of calls are made of it. Nothing is planned for plain text."""
    parsers = backend.parsers
    losses = chat.losses
    tools: dict[str, ToolDef] = {}
    output = chat.output
    if chat.tools:
        offered = offered_tools(chat)
        tools = {tool.name: tool for tool in offered}
        if offered:
            forced = forced_format(offered, chat.tool_choice, parallel=chat.parallel_tool_calls is not False)
            if forced is not None and output is not None:
                losses = (*losses, Loss(output.path, "the tool call that must come has another form"))
            elif forced is None and chat.parallel_tool_calls is False:
                losses = (*losses, Loss("parallel_tool_calls", "the model decides how many tools it calls at once"))
            elif forced is None and any(tool.strict for tool in offered):
                losses = (
                    *losses,
                    Loss("tools[*].strict", "arguments are bound to their schema where a call must come"),
                )
            if forced is None and parsers.tool is None:
                losses = (*losses, Loss("tools", "calls are not told from the text of this model"))
            output = forced or output
    if not (backend.parsers.template_takes_tools and backend.shows_reasoning):
        losses = (*losses, *_lost_of_history(chat, backend))
    if chat.reasoning.budget_tokens is not UNSET and chat.reasoning.budget_tokens > 0:
        losses = (*losses, Loss("reasoning.budget_tokens", "the engine does not limit reasoning by itself"))
    if chat.reasoning.wanted is not None and not backend.switches_reasoning:
        losses = (*losses, Loss("reasoning", "this model's chat template has no switch for it"))
    if parsers.reasoning is None and not tools:
        return Plan(output, None, losses)
    short = parsers.tool == "mistral"
    return Plan(
        output,
        reading_of(
            parsers,
            chat,
            tools,
            prompt_end,
            lambda choice, index: call_id(answer_id, choice, index, call_id_prefix, short=short),
        ),
        losses,
    )


def _lost_of_history(chat: ChatRequest, backend: Backend) -> list[Loss]:
    """What of earlier turns the chat template leaves out."""
    kinds = {type(part) for turn in chat.turns for part in turn.parts}
    losses = []
    if ToolCall in kinds and not backend.parsers.template_takes_tools:
        losses.append(Loss("messages[*].tool_calls", "this model's chat template has no place for them"))
    if Reasoning in kinds and not backend.shows_reasoning:
        losses.append(Loss("messages[*].reasoning", "this model's chat template has no place for it"))
    return losses


def call_id(answer_id: str, choice: int, index: int, prefix: str, *, short: bool) -> str:
    """An id for a call: the same for the same answer. Mistral's templates take nine letters and digits."""
    digest = hashlib.blake2b(f"{answer_id}/{choice}/{index}".encode(), digest_size=16).digest()
    number = int.from_bytes(digest, "big")
    digits = []
    for _ in range(_MISTRAL_ID_CHARS if short else _ID_CHARS):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return ("" if short else prefix) + "".join(digits)


def _invalid(message: str, param: str) -> RequestError:
    return RequestError(ErrorInfo(kind=ErrorKind.INVALID_REQUEST, message=message, param=param, code="invalid_value"))
