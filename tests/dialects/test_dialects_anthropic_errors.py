"""Anthropic's errors and listings, as its official SDK reads them, and which requests are its."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import pytest
from anthropic import _exceptions
from dialects_canned_server import CannedServer, canned_server

from extproc.dialects.anthropic_errors import error_answer
from extproc.dialects.anthropic_models import AnthropicModels
from extproc.dialects.base import Inbound
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.registry import all_dialects
from extproc.dialects.routes import Routes
from extproc.ir import ErrorInfo, ErrorKind, ModelCard, Operation, RequestError

ERRORS = json.loads((Path(__file__).parent / "cases" / "anthropic" / "errors.json").read_text())
INBOUND = Inbound("POST", "/v1/messages", "", {"x-request-id": "req"})
CARDS = [ModelCard(f"org/model-{number}", 1_700_000_000, context_tokens=4096) for number in range(7)]
ROUTES = Routes(all_dialects(BodyLimits()))
VERSION = {"anthropic-version": "2023-06-01"}


@pytest.fixture(scope="module")
def server() -> Iterator[CannedServer]:
    with canned_server() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: CannedServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server.url, api_key="x", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


@pytest.mark.parametrize("case", ERRORS, ids=lambda case: f"{case['status']} {case['error']['kind']}")
def test_an_error_has_the_status_and_type_that_clients_know(
    case: dict[str, Any], client: anthropic.Anthropic, server: CannedServer
) -> None:
    rendered = error_answer(msgspec.convert(case["error"], ErrorInfo), INBOUND)
    assert rendered.status == case["status"]
    headers = dict(rendered.headers)
    assert headers == {"content-type": "application/json", **case.get("headers", {})}
    assert json.loads(rendered.body) == {
        "type": "error",
        "error": {"type": case["type"], "message": case.get("message", "no")},
        "request_id": "req",
    }
    server.will_answer(rendered.status, (*rendered.headers, ("request-id", "req")), rendered.body)
    with pytest.raises(getattr(_exceptions, case["raises"])) as raised:
        client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "a"}])
    assert raised.value.request_id == "req"
    assert type(raised.value) is getattr(_exceptions, case["raises"])


def test_every_kind_of_error_has_a_case() -> None:
    assert {case["error"]["kind"] for case in ERRORS} == {kind.value for kind in ErrorKind}


def test_the_sdk_pages_through_all_models(client: anthropic.Anthropic, server: CannedServer) -> None:
    listed: list[str] = []
    query = "limit=3"
    while True:
        rendered = AnthropicModels().list(Inbound("GET", "/v1/models", query, VERSION), CARDS)
        server.will_answer(rendered.status, rendered.headers, rendered.body)
        page = client.models.list(limit=3)
        assert len(page.data) <= 3
        listed += [model.id for model in page.data]
        if not page.has_more:
            break
        assert page.last_id is not None
        query = f"limit=3&after_id={page.last_id}"
    assert listed == [card.id for card in CARDS]
    model = page.data[0]
    assert (model.type, model.lifecycle, model.max_input_tokens) == ("model", "active", 4096)
    assert model.created_at.timestamp() == 1_700_000_000


def test_pages_go_backwards_too() -> None:
    rendered = AnthropicModels().list(Inbound("GET", "/v1/models", "limit=2&before_id=org/model-4", VERSION), CARDS)
    page = json.loads(rendered.body)
    assert [card["id"] for card in page["data"]] == ["org/model-2", "org/model-3"]
    assert (page["has_more"], page["first_id"], page["last_id"]) == (True, "org/model-2", "org/model-3")


def test_no_models_are_an_empty_page() -> None:
    page = json.loads(AnthropicModels().list(Inbound("GET", "/v1/models", "", VERSION), []).body)
    assert page == {"data": [], "has_more": False, "first_id": None, "last_id": None}


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "after_id=none", "before_id=none", "after_id=a&before_id=b"]
)
def test_a_page_that_makes_no_sense_is_refused(query: str) -> None:
    with pytest.raises(RequestError) as caught:
        AnthropicModels().list(Inbound("GET", "/v1/models", query, VERSION), CARDS)
    assert caught.value.info.kind is ErrorKind.INVALID_REQUEST


@pytest.mark.parametrize(
    ("method", "path", "headers", "dialect", "operation"),
    [
        ("POST", "/v1/messages", {}, "anthropic", Operation.GENERATE),
        ("POST", "/v1/messages?beta=true", VERSION, "anthropic", Operation.GENERATE),
        ("POST", "/v1/messages/count_tokens", {}, "anthropic", Operation.COUNT_TOKENS),
        ("GET", "/v1/models?limit=5", VERSION, "anthropic", Operation.LIST_MODELS),
        ("GET", "/v1/models", {"x-api-key": "k"}, "anthropic", Operation.LIST_MODELS),
        ("GET", "/v1/models/org/a", VERSION | {"authorization": "Bearer k"}, "anthropic", Operation.GET_MODEL),
        ("GET", "/v1/models", {"authorization": "Bearer k"}, "openai_models", Operation.LIST_MODELS),
        ("GET", "/v1/models", {}, "openai_models", Operation.LIST_MODELS),
        ("GET", "/v1/messages", {}, "anthropic", None),
        ("POST", "/v1/messages/batches", {}, "anthropic", None),
        ("POST", "/v1/files", VERSION, "anthropic", None),
    ],
)
def test_requests_are_told_apart_by_path_and_headers(
    method: str, path: str, headers: dict[str, str], dialect: str, operation: Operation | None
) -> None:
    route = ROUTES.find(method, path, headers)
    assert (route.dialect.name, route.operation) == (dialect, operation)
