"""Chat templates: found in a model's folder, compiled once, rendered per request to the text that the model knows.

The template's text comes from the model or from the operator, never from a client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError as JinjaError
from jinja2.exceptions import TemplateSyntaxError

from extproc.tokens.sandbox import template_environment
from extproc.tokens.source import TokenizerError, read_json_object, read_text

__all__ = ["ChatTemplate", "TemplateError", "find_special_tokens", "find_template"]

Message = dict[str, Any]

_SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
# Ends in a space, so that a template that strips the message's end shows it.
_CONTINUE_TAG = "\ue0c1CONTINUE-HERE\ue0c1 "
_PROBE = "qzProbeqz"


class TemplateError(Exception):
    """A conversation that the template refuses or cannot render; the message is the template's own where it has one."""


class ChatTemplate:
    """One compiled template with the special tokens that it can name. Immutable, and safe to share between threads."""

    __slots__ = ("_compiled", "_special_tokens", "knows_developer", "takes_parts", "takes_text")

    def __init__(self, text: str, special_tokens: Mapping[str, Any]) -> None:
        """Raises TokenizerError where the text is not a template."""
        try:
            self._compiled = template_environment().from_string(text)
            # Every rendering copies them, and jinja's own kind of mapping makes that 8 us dearer.
            self._compiled.globals = dict(self._compiled.globals)
        except TemplateSyntaxError as error:
            raise TokenizerError(f"the chat template is not valid, line {error.lineno}: {error.message}") from error
        # Jinja compiles to Python: what nests too deep or leaves a loop from inside a block fails only there.
        except (JinjaError, SyntaxError, RecursionError, ValueError) as error:
            raise TokenizerError(f"the chat template does not compile: {error}") from error
        self._special_tokens = dict(special_tokens)
        self.knows_developer = "developer" in text
        """Whether the template handles the role `developer`, by its text."""
        self.takes_text = self._renders([{"role": "user", "content": _PROBE}])
        """Whether a message's content may be a string."""
        self.takes_parts = self._renders([{"role": "user", "content": [{"type": "text", "text": _PROBE}]}])
        """Whether a message's content may be a list of parts."""
        if not self.takes_text and not self.takes_parts:
            self.takes_text = True  # it refuses a lone user message; nearly all templates take strings

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: list[dict[str, Any]] | None = None,
        documents: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. Messages are plain JSON values: role, content (string or parts) and whatever else.

        Keys of a message that are None count as absent. `kwargs` win over all variables of the same name.
        Raises TemplateError.
        """
        if not messages:
            raise TemplateError("the conversation is empty")
        prepared = [_prepare(message) for message in messages]
        if continue_final_message:
            if add_generation_prompt:
                raise TemplateError("continue_final_message and add_generation_prompt exclude each other")
            prepared[-1] = _tag_end(prepared[-1])
        variables: dict[str, Any] = {
            "messages": prepared,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
            **self._special_tokens,
        }
        if kwargs:
            variables.update(kwargs)
        try:
            text = self._compiled.render(variables)
        except JinjaError as error:
            raise TemplateError(error.message or f"the chat template failed: {type(error).__name__}") from error
        except Exception as error:
            # The template is a program of the model's author: whatever it raises says that it does not take this
            # conversation (a missing key, a wrong type, a too deep value).
            raise TemplateError(f"the chat template failed: {type(error).__name__}: {error}") from error
        return _cut_at_tag(text) if continue_final_message else text

    def _renders(self, messages: Sequence[Message]) -> bool:
        """Whether the content reaches the text as text, and not as the notation of a list or letter by letter."""
        try:
            text = self.render(messages)
        except TemplateError:
            return False
        return _PROBE in text and "'type'" not in text and '"type"' not in text


def _prepare(message: Message) -> Message:
    prepared = {key: value for key, value in message.items() if value is not None}
    for key in _REASONING_KEYS:
        if key in prepared:
            # Templates name it differently; whichever the client sent, both common names are there.
            reasoning = prepared[key]
            prepared["reasoning_content"] = reasoning
            prepared.setdefault("thinking", reasoning)
            break
    return prepared


def _tag_end(message: Message) -> Message:
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": content + _CONTINUE_TAG}
    if isinstance(content, list):
        for at in range(len(content) - 1, -1, -1):
            part = content[at]
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                tagged = {**part, "text": part["text"] + _CONTINUE_TAG}
                return {**message, "content": [*content[:at], tagged, *content[at + 1 :]]}
    raise TemplateError("continue_final_message is set, but the final message has no text to continue")


def _cut_at_tag(text: str) -> str:
    at = text.rfind(_CONTINUE_TAG.strip())
    if at < 0:
        raise TemplateError("continue_final_message is set, but the chat template drops the final message")
    if text.startswith(_CONTINUE_TAG, at):
        return text[:at]
    return text[:at].rstrip()  # the template strips messages, so it would have stripped this one


def find_template(folder: Path | None, override: Path | None = None) -> dict[str, str]:
    """The templates of a model by name; `default` is what serves where no other name fits.

    `override` is the operator's file and wins. Then, as transformers: `chat_template.jinja` with
    `additional_chat_templates/*.jinja`, `chat_template.json`, and `chat_template` of tokenizer_config.json (a string,
    or a list of named templates). Raises TokenizerError where there is none.
    """
    if override is not None:
        text = read_text(override)
        if text is None:
            raise TokenizerError(f"no such chat template file: {override}")
        return {"default": text}
    if folder is None:
        raise TokenizerError("a single tokenizer.json has no chat template: name a chat template file for this pool")
    named: dict[str, str] = {}
    for name in ("tokenizer_config.json", "chat_template.json"):
        named.update(_named_templates(read_json_object(folder / name).get("chat_template"), folder / name))
    text = read_text(folder / "chat_template.jinja")
    if text is not None:
        named["default"] = text
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        named[path.stem] = read_text(path) or ""
    if "default" not in named:
        raise TokenizerError(
            f"no chat template in {folder} (chat_template.jinja, or chat_template in tokenizer_config.json): "
            "name a chat template file for this pool"
        )
    return named


def _named_templates(value: Any, origin: Path) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, dict):
        value = [{"name": name, "template": template} for name, template in value.items()]
    if isinstance(value, list):
        named = {
            entry["name"]: entry["template"]
            for entry in value
            if isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)
        }
        if len(named) == len(value):
            return named
    raise TokenizerError(f"chat_template in {origin} is neither a string nor a list of named templates")


def find_special_tokens(folder: Path | None) -> dict[str, Any]:
    """The special tokens that a folder's configuration names, as templates see them: `bos_token` → its text.

    From special_tokens_map.json and tokenizer_config.json, which wins. Empty without a folder.
    """
    if folder is None:
        return {}
    found: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        config = read_json_object(folder / name)
        extra = config.get("extra_special_tokens")
        entries = {key: config.get(key) for key in _SPECIAL_TOKENS} | (extra if isinstance(extra, dict) else {})
        for key, value in entries.items():
            text = _token_text(value)
            if text is not None:
                found[key] = text
        additional = config.get("additional_special_tokens")
        if isinstance(additional, list):
            texts = [text for text in map(_token_text, additional) if text is not None]
            if texts:
                found["additional_special_tokens"] = texts
    return found


def _token_text(value: Any) -> str | None:
    if isinstance(value, dict):  # an AddedToken written out
        value = value.get("content")
    return value if isinstance(value, str) and value else None
