"""Fields of Ollama's requests that do not reach an engine: what each would mean, as tables."""

from __future__ import annotations

from extproc.dialects.field_rules import Rule

_STAYS = "models stay loaded"
_WHOLE = "a prompt that is too long is refused, not cut"

BODY_RULES: dict[str, Rule] = {
    # Without effect on the answer.
    "keep_alive": Rule(loss=_STAYS),
    "truncate": Rule(neutral=(False,), loss=_WHOLE),
    "shift": Rule(neutral=(False,), loss=_WHOLE),
    # Not supported, except where the value asks for what happens anyway.
    "raw": Rule(neutral=(False,), refusal="A prompt without the model's template ('raw') is not supported here."),
    "suffix": Rule(neutral=("",)),
    "template": Rule(
        neutral=("",),
        refusal="A request cannot bring its own 'template': the template that the model is served with is used.",
    ),
    "context": Rule(neutral=([],), refusal="'context' is not supported: send the conversation to /api/chat."),
}

OPTION_REASONS: dict[str, str] = {
    "num_ctx": "the context is as long as the engine was started with",
    "num_keep": _WHOLE,
    "repeat_last_n": "the engine looks at the whole text",
}
"""Why known options are lost; for all others the engine has no such option."""

NO_OPTION = "the engine has no such option"
