"""Train the tokenizer of the simulated engines' own model: a small byte-level BPE with ChatML markers.

    python benchmarks/train_simulator_tokenizer.py

writes tokenizer.json and the files beside it to extproc/simulator/model/. The text is Python's own: the language
reference of `pydoc_data` and the docstrings of the standard library (PSF licence), so the merges depend on the Python
version (the committed ones came from 3.11). Letters of other scripts stay single bytes or short runs, which is wanted:
their characters are then split over tokens, as rare characters are with every real tokenizer.
"""

from __future__ import annotations

import ast
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 4096
CONTEXT_TOKENS = 8192
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT, _, END_OF_TURN = SPECIAL_TOKENS
MODULES = ("argparse", "asyncio", "collections", "concurrent", "datetime", "decimal", "email", "http", "logging",
           "pathlib", "random", "socket", "statistics", "string", "subprocess", "threading", "turtle", "typing",
           "unittest", "urllib")  # fmt: skip
TARGET = Path(__file__).parent.parent / "extproc" / "simulator" / "model"

WORD_PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

# Every turn between its markers, then an open turn of the assistant.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def texts() -> Iterator[str]:
    """What the merges are learned from."""
    yield from topics.values()
    library = Path(sysconfig.get_paths()["stdlib"])
    for module in MODULES:
        place = library / module
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    yield ast.get_docstring(node) or ""


def main() -> None:
    """Train, and write the folder."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    TARGET.mkdir(parents=True, exist_ok=True)
    (TARGET / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    end_of_text, end_of_turn = (tokenizer.token_to_id(token) for token in (END_OF_TEXT, END_OF_TURN))
    files = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": CONTEXT_TOKENS,
            "bos_token": None,
            "eos_token": END_OF_TURN,
            "pad_token": END_OF_TEXT,
            "add_bos_token": False,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
        # The shape of a real model's, for gateways that look into it.
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": tokenizer.get_vocab_size(),
            "max_position_embeddings": CONTEXT_TOKENS,
            "eos_token_id": end_of_turn,
            "pad_token_id": end_of_text,
        },
        "generation_config.json": {
            "eos_token_id": end_of_turn,
            "pad_token_id": end_of_text,
        },
    }
    for name, content in files.items():
        (TARGET / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
