"""What a model's folder says about its prompts: its chat templates by name, and its special tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from extproc.tokens.source import TokenizerError, read_json_object, read_text

__all__ = ["find_special_tokens", "find_template"]

_SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


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
