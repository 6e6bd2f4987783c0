"""Which operation a method and path ask for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.dialects.base import Dialect, Inbound, Rendered, Row
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.openai_errors import render_error
from extproc.dialects.registry import all_dialects
from extproc.dialects.routes import Routes
from extproc.ir import ErrorInfo, Operation

CASES = json.loads((Path(__file__).parent / "data" / "routes.json").read_text())


ROUTES = Routes(all_dialects(BodyLimits()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["request"])
def test_a_request_is_routed_or_told_what_would_work(case: dict[str, Any]) -> None:
    method, path = case["request"].split(" ", 1)
    route = ROUTES.find(method, path, case.get("headers", {}))
    if "dialect" in case:
        assert route.dialect.name == case["dialect"]
    if "operation" in case:
        assert route.operation is Operation(case["operation"])
        assert route.inbound.argument == case.get("argument", "")
        return
    assert route.operation is None
    assert route.error is not None
    rendered = render_error(route.error)
    assert json.loads(rendered.body)["error"]["code"] == case["code"]
    assert dict(rendered.headers).get("allow") == case.get("allow")


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_method_and_path_are_routed_or_refused(method: str, path: str) -> None:
    route = ROUTES.find(method, path, {})
    assert (route.operation is None) != (route.error is None)
    assert len(route.error.message if route.error else "") < 500


def refused(name: str) -> Callable[[ErrorInfo, Inbound], Rendered]:
    return lambda error, inbound: Rendered(400, (), f"{name}: {error.message}".encode())


def with_header(inbound: Inbound) -> bool:
    return "x-second" in inbound.headers


FIRST = Dialect(
    name="first",
    rows=(Row("GET", "/v1/models", Operation.LIST_MODELS), Row("GET", "/v1/models/", Operation.GET_MODEL)),
    error=refused("first"),
)
SECOND = Dialect(
    name="second",
    rows=(
        Row("GET", "/v1/models", Operation.LIST_MODELS, when=with_header),
        Row("POST", "/v1/models/", Operation.GENERATE, ending=":generate"),
        Row("POST", "/v1/models/", Operation.COUNT_TOKENS, ending=":count"),
        Row("POST", "/v1/projects/*/models/", Operation.GENERATE, ending=":generate"),
    ),
    error=refused("second"),
    claims=with_header,
)


@pytest.mark.parametrize(
    ("method", "path", "headers", "dialect", "operation", "argument"),
    [
        ("GET", "/v1/models", {}, "first", Operation.LIST_MODELS, ""),
        ("GET", "/v1/models", {"x-second": "1"}, "second", Operation.LIST_MODELS, ""),
        ("GET", "/v1/models/a/b", {}, "first", Operation.GET_MODEL, "a/b"),
        ("GET", "/v1/models/a:generate", {}, "first", Operation.GET_MODEL, "a:generate"),
        ("POST", "/v1/models/a/b:generate?x=1", {}, "second", Operation.GENERATE, "a/b"),
        ("POST", "/v1/models/a:generate:count", {}, "second", Operation.COUNT_TOKENS, "a:generate"),
        ("POST", "/v1/projects/p/models/a/b:generate", {}, "second", Operation.GENERATE, "a/b"),
        ("POST", "/v1/projects/p/q/models/a:generate", {}, "first", None, ""),
        ("POST", "/elsewhere", {"x-second": "1"}, "second", None, ""),
        ("GET", "/elsewhere", {}, "first", None, ""),
        ("DELETE", "/v1/models", {"x-second": "1"}, "second", None, ""),
        ("DELETE", "/v1/models", {}, "first", None, ""),
    ],
)
def test_path_ending_and_headers_say_whose_request_it_is(
    method: str, path: str, headers: dict[str, str], dialect: str, operation: Operation | None, argument: str
) -> None:
    route = Routes((SECOND, FIRST)).find(method, path, headers)
    if operation is None and not headers:
        route = Routes((FIRST, SECOND)).find(method, path, headers)
    assert (route.dialect.name, route.operation, route.inbound.argument) == (dialect, operation, argument)
