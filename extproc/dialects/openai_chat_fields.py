"""Fields of Chat Completions that do not reach an engine: what each would mean, as a table.

A field leaves this table when it becomes supported.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Rule(Struct, frozen=True):
    """How to treat a field that is not carried.

    `neutral` values ask for nothing and pass in silence. Of the others, a field with a `loss` passes (only the values
    in `only`, where it is given) and is reported as lost for that reason; every other value is refused.
    """

    neutral: tuple[Any, ...] = ()
    loss: str | None = None
    only: tuple[Any, ...] | None = None
    refusal: str | None = None  # the error's text, where the general one would not help


_NOT_STORED = "answers are not stored"
_NO_IDENTITY = "the engine does not know end users"
_OWN_CACHE = "the gateway places prompts by their tokens, and engines cache them by themselves"

RULES: dict[str, Rule] = {
    # Without effect on the answer.
    "metadata": Rule(neutral=({},), loss=_NOT_STORED),
    "store": Rule(neutral=(False,), loss=_NOT_STORED),
    "service_tier": Rule(loss="there is one tier", only=("auto", "default")),
    "safety_identifier": Rule(loss=_NO_IDENTITY),
    "prompt_cache_key": Rule(loss=_OWN_CACHE),
    "prompt_cache_options": Rule(loss=_OWN_CACHE),
    "prompt_cache_retention": Rule(loss=_OWN_CACHE),
    "parallel_tool_calls": Rule(loss="there are no tools", only=(True, False)),
    # Not supported, except where the value asks for what happens anyway.
    "tools": Rule(neutral=([],)),
    "tool_choice": Rule(neutral=("none",)),
    "functions": Rule(neutral=([],)),
    "function_call": Rule(neutral=("none",)),
    "response_format": Rule(neutral=({"type": "text"},)),
    "modalities": Rule(neutral=(["text"],)),
    "verbosity": Rule(neutral=("medium",)),
    "audio": Rule(),
    "prediction": Rule(),
    "reasoning_effort": Rule(),
    "web_search_options": Rule(),
    "moderation": Rule(),
    "chat_template": Rule(
        refusal="A request cannot bring its own 'chat_template': the template that the model is served with is used."
    ),
}

USER_LOSS = _NO_IDENTITY

# Of messages and their parts. Clients send back what other servers answered.
MESSAGE_RULES: dict[str, Rule] = {
    "tool_calls": Rule(neutral=([],)),
    "function_call": Rule(),
    "tool_call_id": Rule(),
    "audio": Rule(),
    "annotations": Rule(neutral=([],), loss="only the text of earlier turns is given to the model"),
    "reasoning_content": Rule(neutral=("",), loss="reasoning of earlier turns is not given to the model"),
    "reasoning": Rule(neutral=("",), loss="reasoning of earlier turns is not given to the model"),
}
PART_RULES: dict[str, Rule] = {
    "prompt_cache_breakpoint": Rule(loss=_OWN_CACHE),
    "cache_control": Rule(loss=_OWN_CACHE),
}

# Known elsewhere, not here: not mistyped, so the error says "unsupported" and not "unknown".
FIELDS_OF_OTHERS = frozenset(
    (
        # vLLM
        "allowed_token_ids",
        "bad_words",
        "best_of",
        "cache_salt",
        "documents",
        "echo",
        "guided_choice",
        "guided_decoding_backend",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "kv_transfer_params",
        "length_penalty",
        "logits_processors",
        "media_io_kwargs",
        "mm_processor_kwargs",
        "priority",
        "prompt_logprobs",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "spaces_between_special_tokens",
        "structural_tag",
        "structured_outputs",
        "truncate_prompt_tokens",
        "use_beam_search",
        "vllm_xargs",
        "add_special_tokens",
        "include_reasoning",
        "thinking_token_budget",
        # SGLang
        "custom_logit_processor",
        "custom_params",
        "ebnf",
        "json_schema",
        "lora_path",
        "no_stop_trim",
        "regex",
        "return_hidden_states",
        "separate_reasoning",
        "session_params",
        "stop_regex",
        "stream_reasoning",
        "thinking",
    )
)
