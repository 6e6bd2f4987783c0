"""Starts stacks with the Envoy of the test."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from stack import Stack, StartStack, running_stack


@pytest.fixture
def start_stack(envoy_binary: Path, tmp_path: Path) -> StartStack:
    """Starts stacks, each test's once with each supported Envoy."""

    def start(**options: Any) -> contextlib.AbstractAsyncContextManager[Stack]:
        return running_stack(envoy_binary, tmp_path, **options)

    return start
