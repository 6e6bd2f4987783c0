"""A tokenizer folder as an engine has it: the tokenizer, what config.json says, and the archive for GetTokenizer."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from extproc.simulator.constants import CONTEXT_TOKENS

ARCHIVED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
    "generation_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
)
"""Files of the archive, where they exist."""

_EPOCH = (1980, 1, 1, 0, 0, 0)  # so that one folder always gives one archive and one digest


class ArtifactError(Exception):
    """The folder cannot be used; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Artifacts:
    """What a tokenizer folder holds."""

    folder: Path
    tokenizer: Tokenizer
    vocabulary: int  # ids below this exist
    special_ids: frozenset[int]
    eos_ids: tuple[int, ...]  # the first ends an answer; empty: nothing does
    bos_id: int
    pad_id: int
    context_tokens: int
    model_type: str
    architectures: tuple[str, ...]
    archive: bytes  # zip
    archive_sha256: str

    @classmethod
    def load(cls, folder: Path) -> Artifacts:
        """Read a folder. Raises ArtifactError."""
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ArtifactError(f"{file}: no such file; --tokenizer must name a folder with a tokenizer.json")
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise ArtifactError(f"{file}: {error}") from error
        config = _read(folder / "config.json")
        generation = _read(folder / "generation_config.json")
        tokens = _read(folder / "tokenizer_config.json")
        eos = generation.get("eos_token_id", config.get("eos_token_id"))
        if eos is None:
            eos = _id_of(tokenizer, tokens.get("eos_token"))
        eos_ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
        added = tokenizer.get_added_tokens_decoder()
        top = max(tokenizer.get_vocab().values()) + 1
        archive = _archive(folder)
        return cls(
            folder=folder,
            tokenizer=tokenizer,
            vocabulary=max(top, config.get("vocab_size", 0)),
            special_ids=frozenset(number for number, token in added.items() if token.special),
            eos_ids=eos_ids,
            bos_id=config.get("bos_token_id") or _id_of(tokenizer, tokens.get("bos_token")) or 0,
            pad_id=config.get("pad_token_id") or _id_of(tokenizer, tokens.get("pad_token")) or 0,
            context_tokens=config.get("max_position_embeddings", CONTEXT_TOKENS),
            model_type=config.get("model_type", ""),
            architectures=tuple(config.get("architectures", ())),
            archive=archive,
            archive_sha256=hashlib.sha256(archive).hexdigest(),
        )

    def encode(self, text: str) -> list[int]:
        """Ids of a text; special tokens written in it become theirs."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int], *, skip_special: bool = True) -> str:
        """Text of ids."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=skip_special)
        return text


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ArtifactError(f"{file}: {error}") from error
    if not isinstance(content, dict):
        raise ArtifactError(f"{file}: holds no JSON object")
    return content


def _id_of(tokenizer: Tokenizer, token: Any) -> int | None:
    """The id of a special token, which tokenizer_config.json gives as a string or as {"content": string}."""
    if isinstance(token, dict):
        token = token.get("content")
    number: int | None = tokenizer.token_to_id(token) if isinstance(token, str) else None
    return number


def _archive(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ARCHIVED:
            file = folder / name
            if file.is_file():
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), file.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
