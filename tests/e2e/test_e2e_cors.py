"""Pages in browsers: what Envoy answers for us."""

from __future__ import annotations

import pytest
from stack import StartStack

pytestmark = pytest.mark.envoy

PAGE = "https://chat.example.com"
ASKS = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/messages", "/api/chat", "/v1beta/models/m:generateContent"]
)
async def test_a_page_that_may_call_gets_its_preflight(start_stack: StartStack, path: str) -> None:
    async with start_stack(settings={"cors": {"origins": ["https://*.example.com"]}}) as stack:
        answer = await stack.http.options(path, headers=ASKS)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert answer.headers["access-control-allow-headers"] == "*, authorization"
        assert answer.headers["access-control-max-age"] == "7200"
        refused = await stack.http.options(path, headers=ASKS | {"origin": "https://elsewhere.org"})
        assert refused.status_code in (404, 405)
        assert "access-control-allow-origin" not in refused.headers


async def test_answers_and_errors_may_be_read_by_the_page(start_stack: StartStack) -> None:
    async with start_stack(settings={"cors": {"origins": [PAGE]}}) as stack:
        body = {"model": "simulated", "messages": [{"role": "user", "content": "Hi"}]}
        for model, status in (("simulated", 200), ("other", 404)):
            for stream in (False, True):
                answer = await stack.http.post(
                    "/v1/chat/completions", json=body | {"model": model, "stream": stream}, headers={"origin": PAGE}
                )
                assert answer.status_code == status
                assert answer.headers["access-control-allow-origin"] == PAGE
                assert answer.headers["access-control-expose-headers"] == "*"
        assert "access-control-allow-origin" not in (await stack.http.get("/v1/models")).headers


async def test_every_origin_may_be_allowed(start_stack: StartStack) -> None:
    async with start_stack(settings={"cors": {"origins": ["*"]}}) as stack:
        answer = await stack.http.get("/v1/models", headers={"origin": "null"})
        assert answer.headers["access-control-allow-origin"] == "null"


async def test_without_the_setting_no_page_may_call(start_stack: StartStack) -> None:
    async with start_stack() as stack:
        answer = await stack.http.options("/v1/chat/completions", headers=ASKS)
        assert answer.status_code == 405
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert "access-control-allow-origin" not in answer.headers
