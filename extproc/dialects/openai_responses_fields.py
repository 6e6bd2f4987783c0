"""Fields of Responses that do not reach an engine: what each would mean, as tables.

A field leaves its table when it becomes supported.
"""

from __future__ import annotations

from extproc.dialects.field_rules import Rule

_NO_IDENTITY = "the engine does not know end users"
_OWN_CACHE = "the gateway places prompts by their tokens, and engines cache them by themselves"

BODY_RULES: dict[str, Rule] = {
    # Without effect on the answer, which says what holds.
    "store": Rule(neutral=(False,), loss="answers are not stored"),  # the answer says so, too
    "service_tier": Rule(loss="there is one tier", only=("auto", "default")),
    "safety_identifier": Rule(loss=_NO_IDENTITY),
    "prompt_cache_key": Rule(loss=_OWN_CACHE),
    "prompt_cache_options": Rule(loss=_OWN_CACHE),
    "prompt_cache_retention": Rule(loss=_OWN_CACHE),
    "context_management": Rule(neutral=([],), loss="the model gets the conversation as it is"),
    "truncation": Rule(neutral=("disabled",), loss="a conversation that is too long is refused", only=("auto",)),
    "max_tool_calls": Rule(loss="it limits tools that the server runs, and there are none"),
    "personality": Rule(loss="the model has the one that it was trained to"),
    # Not supported, except where the value asks for what happens anyway.
    "background": Rule(neutral=(False,)),
    "background_options": Rule(),
    "prompt": Rule(refusal="Stored prompts ('prompt') are not supported: send 'instructions' and 'input'."),
    "moderation": Rule(),
    "access_programs": Rule(),
    "image": Rule(neutral=({}, {"context_compression": "auto"}, {"context_compression": "disabled"})),
}

TEXT_RULES: dict[str, Rule] = {
    "verbosity": Rule(neutral=("medium",), loss="the model decides how much it says", only=("low", "high")),
}

REASONING_RULES: dict[str, Rule] = {
    "context": Rule(neutral=("auto",), loss="the chat template decides which reasoning the model sees again"),
    "mode": Rule(neutral=("standard",)),
}

TOOL_RULES: dict[str, Rule] = {
    "output_schema": Rule(loss="templates have no place for what a tool answers"),
    "defer_loading": Rule(neutral=(False,), loss="the model sees all tools from the beginning", only=(True,)),
    "allowed_callers": Rule(neutral=(["direct"], [])),
    "async": Rule(neutral=(False,)),
}

ITEM_RULES: dict[str, Rule] = {
    "phase": Rule(loss="only what was said is given to the model"),
    "namespace": Rule(),
    "caller": Rule(neutral=({"type": "direct"},)),
    "async": Rule(neutral=(False,)),
}

PART_RULES: dict[str, Rule] = {
    "prompt_cache_breakpoint": Rule(loss=_OWN_CACHE),
    "annotations": Rule(neutral=([],), loss="only the text of earlier turns is given to the model"),
    "logprobs": Rule(neutral=([],), loss="only the text of earlier turns is given to the model"),
}

USER_LOSS = _NO_IDENTITY
SUMMARY_LOSS = "the reasoning itself is given"
ENCRYPTED_LOSS = "only the server that encrypted it can read it"

ENCRYPTED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = frozenset(
    (
        ENCRYPTED,
        LOGPROBS,
        # Of tools that the server runs, and of what the client sent itself: nothing that could be left out here.
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    )
)
"""What `include` may ask for."""
