"""Which operation a method and path ask for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.dialects.openai_errors import render_error
from extproc.dialects.routes import Operation, Route, find_route
from extproc.ir import RequestError

CASES = json.loads((Path(__file__).parent / "data" / "routes.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["request"])
def test_a_request_is_routed_or_told_what_would_work(case: dict[str, Any]) -> None:
    method, path = case["request"].split(" ", 1)
    if "operation" in case:
        assert find_route(method, path) == Route(Operation(case["operation"]), case.get("argument", ""))
        return
    with pytest.raises(RequestError) as caught:
        find_route(method, path)
    rendered = render_error(caught.value.info)
    assert json.loads(rendered.body)["error"]["code"] == case["code"]
    assert dict(rendered.headers).get("allow") == case.get("allow")


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_method_and_path_are_routed_or_refused(method: str, path: str) -> None:
    try:
        refusal = ""
        find_route(method, path)
    except RequestError as error:
        refusal = error.info.message
    assert len(refusal) < 500
