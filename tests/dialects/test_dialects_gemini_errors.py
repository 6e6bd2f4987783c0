"""Google's errors and listings, as its official SDK reads them, and which requests are its."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from dialects_canned_server import CannedServer, canned_server
from google import genai
from google.genai import errors, types

from extproc.dialects.base import Inbound
from extproc.dialects.gemini_errors import error_answer
from extproc.dialects.gemini_models import GeminiModels
from extproc.dialects.gemini_request import model_of
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.registry import all_dialects
from extproc.dialects.routes import Routes
from extproc.ir import ErrorInfo, ErrorKind, ModelCard, Operation, RequestError

ERRORS = json.loads((Path(__file__).parent / "cases" / "gemini" / "errors.json").read_text())
INBOUND = Inbound("POST", "/v1/models/m:generateContent", "", {}, "m")
CARDS = [ModelCard(f"org/model-{number}", 1_700_000_000, context_tokens=4096) for number in range(7)]
ROUTES = Routes(all_dialects(BodyLimits()))
KEY = {"x-goog-api-key": "k"}


@pytest.fixture(scope="module")
def server() -> Iterator[CannedServer]:
    with canned_server() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: CannedServer) -> genai.Client:
    return genai.Client(api_key="x", http_options=types.HttpOptions(base_url=server.url))


@pytest.mark.parametrize("case", ERRORS, ids=lambda case: f"{case['status']} {case['error']['kind']}")
def test_an_error_has_the_code_and_status_that_clients_know(
    case: dict[str, Any], client: genai.Client, server: CannedServer
) -> None:
    info = msgspec.convert(case["error"], ErrorInfo)
    rendered = error_answer(info, INBOUND)
    assert rendered.status == case["status"]
    assert dict(rendered.headers) == {"content-type": "application/json", **case.get("headers", {})}
    error = json.loads(rendered.body)["error"]
    message = case.get("message", "no")
    assert (error["code"], error["status"], error["message"]) == (case["status"], case["name"], message)
    delays = [detail["retryDelay"] for detail in error.get("details", ()) if "retryDelay" in detail]
    assert delays == ([case["delay"]] if "delay" in case else [])
    server.will_answer(rendered.status, rendered.headers, rendered.body)
    kind = errors.ClientError if rendered.status < 500 else errors.ServerError
    with pytest.raises(kind) as raised:
        client.models.generate_content(model="m", contents="a")
    assert (raised.value.code, raised.value.status, raised.value.message) == (case["status"], case["name"], message)


def test_every_kind_of_error_has_a_case() -> None:
    assert {case["error"]["kind"] for case in ERRORS} == {kind.value for kind in ErrorKind}


@pytest.mark.parametrize(
    ("path", "array"),
    [
        ("/v1/models/m:streamGenerateContent", True),
        ("/v1/models/m:streamGenerateContent?alt=json", True),
        ("/v1/models/m:streamGenerateContent?key=k&alt=sse", False),
        ("/v1/models/m:streamGenerateContent?$alt=sse", False),
        ("/v1/models/m:generateContent", False),
    ],
)
def test_an_error_in_place_of_an_array_stands_in_one(path: str, array: bool) -> None:
    inbound = ROUTES.find("POST", path, {}).inbound
    body = json.loads(error_answer(ErrorInfo(kind=ErrorKind.SERVER, message="no"), inbound).body)
    assert isinstance(body, list) is array
    assert (body[0] if array else body)["error"]["message"] == "no"


def test_the_sdk_pages_through_all_models(client: genai.Client, server: CannedServer) -> None:
    listed: list[str] = []
    query = "pageSize=3"
    while True:
        rendered = GeminiModels().list(Inbound("GET", "/v1/models", query, KEY), CARDS)
        server.will_answer(rendered.status, rendered.headers, rendered.body)
        pager = client.models.list(config={"page_size": 3})
        page = pager.page
        assert len(page) <= 3
        listed += [model.name or "" for model in page]
        token = json.loads(rendered.body).get("nextPageToken")
        if token is None:
            break
        query = f"pageSize=3&pageToken={token}"
    assert listed == [f"models/{card.id}" for card in CARDS]
    model = page[0]
    assert (model.display_name, model.input_token_limit) == ("org/model-6", 4096)
    assert "generateContent" in (model.supported_actions or ())


def test_no_models_are_an_empty_page() -> None:
    assert json.loads(GeminiModels().list(Inbound("GET", "/v1/models", "", KEY), []).body) == {"models": []}


@pytest.mark.parametrize("query", ["pageSize=x", "pageSize=-1", "pageToken=none", "page_size=1.5"])
def test_a_page_that_makes_no_sense_is_refused(query: str) -> None:
    with pytest.raises(RequestError) as caught:
        GeminiModels().list(Inbound("GET", "/v1/models", query, KEY), CARDS)
    assert caught.value.info.kind is ErrorKind.INVALID_REQUEST


@pytest.mark.parametrize(
    ("method", "path", "headers", "dialect", "operation", "model"),
    [
        ("POST", "/v1/models/m:generateContent", {}, "gemini", Operation.GENERATE, "m"),
        ("POST", "/v1beta/models/org/m:streamGenerateContent?alt=sse", {}, "gemini", Operation.GENERATE, "org/m"),
        ("POST", "/v1alpha/models/m:countTokens?key=k", {}, "gemini", Operation.COUNT_TOKENS, "m"),
        ("POST", "/v1beta1/publishers/google/models/m:generateContent", {}, "gemini", Operation.GENERATE, "m"),
        (
            "POST",
            "/v1/projects/p/locations/l/publishers/org/models/m:streamGenerateContent",
            {},
            "gemini",
            Operation.GENERATE,
            "org/m",
        ),
        (
            "POST",
            "/v1beta/models/a:generateContent:countTokens",
            {},
            "gemini",
            Operation.COUNT_TOKENS,
            "a:generateContent",
        ),
        ("GET", "/v1beta/models", {}, "gemini", Operation.LIST_MODELS, ""),
        ("GET", "/v1beta/models/org/m", {}, "gemini", Operation.GET_MODEL, "org/m"),
        ("GET", "/v1/models", KEY, "gemini", Operation.LIST_MODELS, ""),
        ("GET", "/v1/models?key=k", {}, "gemini", Operation.LIST_MODELS, ""),
        ("GET", "/v1/models/m", {"x-goog-api-client": "google-genai-sdk"}, "gemini", Operation.GET_MODEL, "m"),
        ("GET", "/v1/models?pageKey=k", {}, "openai_models", Operation.LIST_MODELS, ""),
        ("GET", "/v1/models", {"authorization": "Bearer k"}, "openai_models", Operation.LIST_MODELS, ""),
        ("GET", "/v1beta/models/m:generateContent", {}, "gemini", Operation.GET_MODEL, "m:generateContent"),
        ("POST", "/v1beta/models/m:predict", {}, "gemini", None, "m:predict"),
        ("POST", "/v1beta/cachedContents", {}, "gemini", None, ""),
        ("POST", "/v1/files", KEY, "gemini", None, ""),
    ],
)
def test_requests_are_told_apart_by_path_headers_and_query(
    method: str, path: str, headers: dict[str, str], dialect: str, operation: Operation | None, model: str
) -> None:
    route = ROUTES.find(method, path, headers)
    assert (route.dialect.name, route.operation, model_of(route.inbound)) == (dialect, operation, model)
