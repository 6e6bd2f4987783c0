"""Fields of Messages that do not reach an engine: what each would mean, as tables.

A field leaves its table when it becomes supported.
"""

from __future__ import annotations

from extproc.dialects.field_rules import Rule

_OWN_CACHE = "the gateway places prompts by their tokens, and engines cache them by themselves"
_NO_IDENTITY = "the engine does not know end users"
_NOT_STORED = "answers are not stored"
_ONE_TIER = "there is one tier"
_ALL_TOOLS = "the model sees all tools from the beginning"
_NO_CITATIONS = "the model does not cite by itself"

USER_LOSS = _NO_IDENTITY
BETAS_LOSS = "betas are judged by the fields that they bring"
ATTRIBUTION_LOSS = "the client's own version and checksum are no part of the prompt"
REDACTED_LOSS = "only the server that hid it can read it"

BODY_RULES: dict[str, Rule] = {
    # Without effect on the answer.
    "cache_control": Rule(loss=_OWN_CACHE),
    "service_tier": Rule(loss=_ONE_TIER, only=("auto", "standard_only")),
    "speed": Rule(neutral=("standard",), loss=_ONE_TIER, only=("fast",)),
    "diagnostics": Rule(loss=_NOT_STORED),
    "user_profile_id": Rule(loss=_NO_IDENTITY),
    "context_management": Rule(neutral=({}, {"edits": []}), loss="the model gets the conversation as it is"),
    "billing_policy": Rule(loss=_ONE_TIER),
    "fallback_credit_token": Rule(loss=_ONE_TIER),
    "fallbacks": Rule(neutral=([],), loss="no other model answers in this one's place"),
    # Not supported, except where the value asks for what happens anyway.
    "container": Rule(),
    "mcp_servers": Rule(neutral=([],)),
    "compaction": Rule(),
    "thread": Rule(),
    "inference_geo": Rule(neutral=("global",)),
}

OUTPUT_RULES: dict[str, Rule] = {
    "task_budget": Rule(loss="the model does not know of budgets"),
}

TOOL_RULES: dict[str, Rule] = {
    "cache_control": Rule(loss=_OWN_CACHE),
    "defer_loading": Rule(neutral=(False,), loss=_ALL_TOOLS, only=(True,)),
    "eager_input_streaming": Rule(neutral=(True, False)),  # it always comes as it is written
    "input_examples": Rule(neutral=([],), loss="templates have no place for examples"),
    "allowed_callers": Rule(neutral=(["direct"], [])),
}

BLOCK_RULES: dict[str, Rule] = {
    "cache_control": Rule(loss=_OWN_CACHE),
    "citations": Rule(neutral=([], {}, {"enabled": False}), loss=_NO_CITATIONS),
    "transformations": Rule(neutral=({},)),
    "caller": Rule(neutral=({"type": "direct"},)),
    "toolset_name": Rule(),
}

HOSTED_TOOLS = (
    "web_search",
    "web_fetch",
    "code_execution",
    "bash_code_execution",
    "text_editor_code_execution",
    "tool_search",
    "mcp_toolset",
    "advisor",
)
"""Beginnings of the types of tools that Anthropic's servers run themselves."""
