"""Fields of Chat Completions that do not reach an engine: what each would mean, as a table.

A field leaves this table when it becomes supported.
"""

from __future__ import annotations

from extproc.dialects.field_rules import Rule

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
    # Not supported, except where the value asks for what happens anyway.
    "functions": Rule(neutral=([],), refusal="Unsupported parameter: 'functions' is deprecated. Send 'tools' instead."),
    "function_call": Rule(
        neutral=("none", "auto"),
        refusal="Unsupported parameter: 'function_call' is deprecated. Send 'tool_choice' instead.",
    ),
    "modalities": Rule(neutral=(["text"],)),
    "verbosity": Rule(neutral=("medium",)),
    "audio": Rule(),
    "prediction": Rule(),
    "web_search_options": Rule(),
    "moderation": Rule(),
    "chat_template": Rule(
        refusal="A request cannot bring its own 'chat_template': the template that the model is served with is used."
    ),
}

USER_LOSS = _NO_IDENTITY

# Of messages and their parts. Clients send back what other servers answered.
MESSAGE_RULES: dict[str, Rule] = {
    "audio": Rule(),
    "annotations": Rule(neutral=([],), loss="only the text of earlier turns is given to the model"),
    "reasoning_details": Rule(neutral=([],), loss="reasoning is read from 'reasoning_content' or 'reasoning'"),
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
        "echo",
        "guided_decoding_backend",
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
        "truncate_prompt_tokens",
        "use_beam_search",
        "vllm_xargs",
        "add_special_tokens",
        "thinking_token_budget",
        # SGLang
        "custom_logit_processor",
        "custom_params",
        "lora_path",
        "no_stop_trim",
        "return_hidden_states",
        "separate_reasoning",
        "session_params",
        "stop_regex",
        "stream_reasoning",
        "thinking",
    )
)
