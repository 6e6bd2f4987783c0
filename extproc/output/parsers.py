"""Which parsers a model's text needs: named in the configuration, or found by what its chat template writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from msgspec import Struct

from extproc.output.harmony import HARMONY_TOKENS, harmony
from extproc.output.json_calls import deepseek, hermes, llama3_json, mistral
from extproc.output.pythonic_calls import pythonic
from extproc.output.reasoning import MARKERS
from extproc.output.sink import Sink
from extproc.output.source import Source, Steps
from extproc.output.tag_calls import glm, qwen3_coder

__all__ = ["REASONING_PARSERS", "TOOL_PARSERS", "Parsers", "Parsing", "choose_parsers"]

Parsing: TypeAlias = Callable[[Source, Sink], Steps[None]]
"""Reads all of an answer's text behind the reasoning."""

HARMONY = "harmony"

TOOL_PARSERS: Mapping[str, Parsing] = {
    "hermes": hermes,
    "qwen3_coder": qwen3_coder,
    "llama3_json": llama3_json,
    "mistral": mistral,
    "deepseek": deepseek,
    "pythonic": pythonic,
    "glm": glm,
    HARMONY: harmony,
}
REASONING_PARSERS = (*MARKERS, HARMONY)

_TOOL_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    # The first whose signs all stand in the template.
    (HARMONY, ("<|channel|>", "<|message|>")),
    ("qwen3_coder", ("<tool_call>", "<function=")),
    ("glm", ("<tool_call>", "<arg_key>")),
    ("hermes", ("<tool_call>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("deepseek", ("<｜tool▁call▁begin｜>",)),
    ("pythonic", ("<|python_start|>",)),
    ("llama3_json", ("<|python_tag|>",)),
    ("llama3_json", ("<|eot_id|>", '"parameters"')),
)
_REASONING_SIGNS: tuple[tuple[str, str], ...] = (
    (HARMONY, "<|channel|>analysis"),
    ("gemma", "<|channel>thought"),
    ("mistral", "[THINK]"),
    ("seed", "<seed:think>"),
    ("kimi", "◁think▷"),
    ("cohere", "<|START_THINKING|>"),
    ("think", "</think>"),
)
_TOKENS: Mapping[str, tuple[str, ...]] = {
    HARMONY: HARMONY_TOKENS,
    "hermes": ("<tool_call>", "</tool_call>"),
    "qwen3_coder": ("<tool_call>", "</tool_call>"),
    "glm": ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "llama3_json": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    "deepseek": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "pythonic": ("<|python_start|>", "<|python_end|>"),
}


CALL_MARKERS: Mapping[str, str] = {
    "hermes": "<tool_call>",
    "qwen3_coder": "<tool_call>",
    "glm": "<tool_call>",
    "mistral": "[TOOL_CALLS]",
    "deepseek": "<｜tool▁calls▁begin｜>",
}
"""What calls begin with, where only a call begins so."""


class Parsers(Struct, frozen=True):
    """Of one pool, by name; None for none."""

    tool: str | None = None
    reasoning: str | None = None
    template_takes_tools: bool = True


def choose_parsers(template: str, tool: str = "auto", reasoning: str = "auto") -> Parsers:
    """`template`: the text of all chat templates of the model. `tool` and `reasoning`: a name, `auto` or `none`."""
    if tool == "auto":
        found = [name for name, signs in _TOOL_SIGNS if all(sign in template for sign in signs)]
        tool = found[0] if found and "tools" in template else "none"
    if reasoning == "auto":
        reasoning = next((name for name, sign in _REASONING_SIGNS if sign in template), "none")
    return Parsers(
        None if tool == "none" else tool,
        None if reasoning == "none" else reasoning,
        not template or "tools" in template,
    )


def tokens_of(tool: str | None, reasoning: str | None) -> tuple[str, ...]:
    """Tokens that parsers must see, also where the tokenizer calls them special."""
    shown: tuple[str, ...] = _TOKENS.get(tool or "", ())
    if reasoning in MARKERS:
        shown += MARKERS[reasoning]
    elif reasoning == HARMONY:
        shown += HARMONY_TOKENS
    if reasoning == "gemma":
        shown += ("<|channel>",)
    return shown
