"""Models by their Hugging Face id, where they are in the local hub cache already. Nothing is downloaded."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["HUB_PREFIX", "hub_folder"]

HUB_PREFIX = "hub:"
_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_REVISION = re.compile(r"[A-Za-z0-9][\w.-]*")


def hub_folder(value: str) -> Path:
    """The snapshot's folder for `hub:ORG/NAME` or `hub:ORG/NAME@REVISION` (a branch, a tag or a whole commit).

    The cache is where huggingface_hub has it: HF_HUB_CACHE, or `hub` in HF_HOME, or ~/.cache/huggingface/hub.
    Raises ValueError where the id is none, or its snapshot is not in the cache.
    """
    name, _, revision = value.removeprefix(HUB_PREFIX).partition("@")
    revision = revision or "main"
    if not _ID.fullmatch(name) or ".." in name or not _REVISION.fullmatch(revision) or ".." in revision:
        raise ValueError(f"{value!r} is not a model on the hub: write one such as hub:Qwen/Qwen3-8B")
    repository = _cache() / ("models--" + name.replace("/", "--"))
    reference = repository / "refs" / revision
    commit = reference.read_text("utf-8").strip() if reference.is_file() else revision
    snapshot = repository / "snapshots" / commit
    if not _REVISION.fullmatch(commit) or not snapshot.is_dir():
        raise ValueError(
            f"{name} ({revision}) is not in the local hub cache {_cache()}: download its tokenizer there, such as by "
            f"`hf download {name} --include '*token*' '*.json' '*.jinja'`"
        )
    return snapshot


def _cache() -> Path:
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "hub"
