"""What would take the event loop too long is refused before it is rendered."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.config.schema import Config
from extproc.gateway.pools import build_fleet
from extproc.ir import ChatRequest, ErrorKind, RequestError, Text, ToolCall, Turn
from extproc.simulator.spec import OWN_MODEL
from extproc.tokens.model import ModelTokens


async def test_more_json_in_calls_than_templates_can_take_is_refused() -> None:
    backend = build_fleet(Config.model_validate({"pools": [{"name": "m", "models": ["m"], "workers": []}]})).backends[
        "m"
    ]
    backend.tokens = await ModelTokens.load(Path(OWN_MODEL))

    def asks(characters: int) -> ChatRequest:
        arguments = '{"a":"' + "x" * (characters - 8) + '"}'
        calls = tuple(ToolCall(call_id=f"c{at}", name="f", arguments=arguments) for at in range(4))
        return ChatRequest(model="m", turns=(Turn("user", (Text("q"),)), Turn("assistant", calls)))

    try:
        backend.check_size(asks(1 << 18))
        with pytest.raises(RequestError, match="1048580 characters: at most 1048576") as refused:
            backend.check_size(asks((1 << 18) + 1))
        assert refused.value.info.kind is ErrorKind.INVALID_REQUEST
    finally:
        await backend.tokens.aclose()
