"""A pool takes requests only once it has its tokenizer; others do not wait for it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from e2e.stack import eventually

from extproc.config.schema import Config
from extproc.gateway.processor import Processor
from extproc.ir import ErrorKind, RequestError
from extproc.simulator.spec import OWN_MODEL


async def test_a_pool_is_not_ready_before_its_tokenizer_is(tmp_path: Path) -> None:
    late = tmp_path / "late"
    pools = [
        {"name": "one", "models": ["one"], "workers": [], "tokenizer": str(OWN_MODEL)},
        {"name": "two", "models": ["two"], "workers": [], "tokenizer": str(late)},
    ]
    config = Config.model_validate(
        {
            "pools": pools,
            "listen": {"processor": [f"unix:{tmp_path}/p.sock"]},
            "envoy": {"directory": str(tmp_path / "xds")},
        }
    )
    processor = Processor(config)
    await processor.start()
    try:
        await eventually(lambda: processor.ready_now().detail["pools"] == {"one": True, "two": False}, "one is ready")
        assert processor.ready_now().ready
        assert not processor.ready.is_set()
        assert processor.fleet is not None
        backend = processor.fleet.backends["two"]
        with pytest.raises(RequestError) as refused:
            backend.ready_tokens()
        assert refused.value.info.kind is ErrorKind.UNAVAILABLE
        assert refused.value.info.retry_after_s

        shutil.copytree(OWN_MODEL, late)
        await eventually(processor.ready.is_set, "every pool is ready", 30.0)
        assert processor.ready_now().detail["pools"] == {"one": True, "two": True}
        assert backend.ready_tokens().vocab_size
    finally:
        await processor.stop(settle_s=0.0, grace_s=0.0)
