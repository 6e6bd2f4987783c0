"""Every exchange is counted exactly once, whatever Envoy, the engine and the client do, and in whatever order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import pytest
from exchange.exchange_fakes import (
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
)
from gateway_in_process import CHAT, build_gateway, chat_body, chunk, complete, load_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.exchange.exchange import Exchange, HeldBodies, WrongModeError
from extproc.gateway.gateway import Gateway
from extproc.gateway.pools import Fleet
from extproc.observe.metrics import Metrics
from extproc.tokens.model import ModelTokens

Act = Callable[[Exchange], object]


def sends(message: bytes) -> Act:
    return lambda exchange: exchange.receive(message)


GRPC = {"content_type": "application/grpc"}

HEAD = sends(request_headers(**{":path": CHAT}))
STREAM = sends(request_body(chat_body(stream=True), end=True))
WHOLE = sends(request_body(chat_body(stream=False), end=True))
UPSTREAM = sends(response_headers(**GRPC))
TOKENS = sends(response_body(chunk([20, 21])))
LAST = sends(response_body(complete([20, 21, 22], 3)))
END = sends(response_trailers(grpc_status="0"))
EXPIRE: Act = lambda exchange: exchange.expire()  # noqa: E731
FAIL: Act = lambda exchange: exchange.fail()  # noqa: E731

ACTS: dict[str, Act] = {
    "head": HEAD,
    "head of an unknown URL": sends(request_headers(**{":path": "/nothing"})),
    "head without a body": sends(request_headers(end=True, **{":path": CHAT})),
    "models": sends(request_headers(end=True, **{":path": "/v1/models", ":method": "GET"})),
    "head of a large body": sends(request_headers(**{":path": CHAT, "content-length": "99999"})),
    "stream": STREAM,
    "whole": WHOLE,
    "a part of a body": sends(request_body(b'{"model": "m", ')),
    "too much of a body": sends(request_body(b"x" * 5000)),
    "no JSON": sends(request_body(b"]", end=True)),
    "unknown model": sends(request_body(chat_body(stream=True, model="other"), end=True)),
    "request trailers": sends(request_trailers()),
    "upstream": UPSTREAM,
    "local reply": sends(response_headers(status=503, details="no_healthy_upstream")),
    "local reply without a body": sends(response_headers(status=503, end=True, details="upstream_reset")),
    "no gRPC": sends(response_headers(status=200, content_type="text/html")),
    "tokens": TOKENS,
    "last": LAST,
    "garbage": sends(response_body(b"\x00\x00\x00\x00\x03abc")),
    "end of body": sends(response_body(b"", end=True)),
    "end": END,
    "bad end": sends(response_trailers(grpc_status="13", grpc_message="boom")),
    "expire": EXPIRE,
    "fail": FAIL,
}
LIKELY = [["head", "stream", "upstream"], ["head", "whole", "upstream"], ["head", "stream", "upstream", "tokens"], []]


@pytest.fixture(scope="module")
def tokens() -> Iterator[ModelTokens]:
    with asyncio.Runner() as runner:
        loaded = runner.run(load_tokens())
        yield loaded
        runner.run(loaded.aclose())


class Counted:
    """A gateway and what it has counted."""

    def __init__(self, tokens: ModelTokens) -> None:
        self.gateway: Gateway
        self.metrics: Metrics
        self.fleet: Fleet
        self.gateway, self.metrics, self.fleet = build_gateway(tokens)

    def exchange(self, *acts: Act) -> Exchange:
        exchange = Exchange(self.gateway, HeldBodies(1 << 20))
        # An Envoy in another mode is refused: nothing more comes then.
        with contextlib.suppress(WrongModeError):
            for act in acts:
                act(exchange)
        return exchange

    def of(self, *acts: Act) -> dict[tuple[str, str], float]:
        """Status and error type to how many, after one exchange that did this and was closed."""
        self.exchange(*acts).close()
        return self.requests()

    def requests(self) -> dict[tuple[str, str], float]:
        result: dict[tuple[str, str], float] = {}
        for sample in self._samples("extproc_requests_total"):
            key = (sample.labels["status"], sample.labels["error_type"])
            result[key] = result.get(key, 0) + sample.value
        return {key: value for key, value in result.items() if value}

    def total(self, name: str) -> float:
        return sum(sample.value for sample in self._samples(name))

    def _samples(self, name: str):  # type: ignore[no-untyped-def]
        return [s for metric in self.metrics.registry.collect() for s in metric.samples if s.name == name]


@pytest.fixture
def counted(tokens: ModelTokens) -> Counted:
    return Counted(tokens)


@settings(max_examples=400, deadline=None)
@given(start=st.sampled_from(LIKELY), acts=st.lists(st.sampled_from(sorted(ACTS)), max_size=8))
def test_whatever_happens_it_is_counted_once(tokens: ModelTokens, start: list[str], acts: list[str]) -> None:
    counted = Counted(tokens)
    exchange = counted.exchange(*(ACTS[name] for name in [*start, *acts]))
    exchange.close()
    exchange.close()
    assert sum(counted.requests().values()) == 1
    assert counted.total("gen_ai_server_request_duration_seconds_count") == 1
    assert all((worker.running, worker.waiting_tokens) == (0, 0) for worker in counted.fleet.workers)


@pytest.mark.parametrize(
    ("acts", "ended"),
    [
        ([HEAD, STREAM, UPSTREAM, TOKENS, LAST, END], ("2xx", "")),
        ([HEAD, WHOLE, UPSTREAM, LAST, END], ("2xx", "")),
        ([HEAD, ACTS["no JSON"]], ("4xx", "invalid_request")),
        ([HEAD, ACTS["unknown model"]], ("4xx", "model_not_found")),
        ([HEAD, ACTS["too much of a body"]], ("4xx", "too_large")),
        ([ACTS["head of an unknown URL"]], ("4xx", "not_found")),
        ([ACTS["models"]], ("2xx", "")),
        ([HEAD, STREAM, ACTS["local reply"], ACTS["end of body"]], ("5xx", "unavailable")),
        ([HEAD, STREAM, UPSTREAM, ACTS["bad end"]], ("5xx", "server")),
        ([HEAD, STREAM, UPSTREAM, TOKENS, ACTS["bad end"]], ("2xx", "server")),
        ([HEAD, STREAM, UPSTREAM, TOKENS, END], ("2xx", "bad_gateway")),
        ([HEAD, STREAM, UPSTREAM, ACTS["garbage"]], ("5xx", "bad_gateway")),
        ([HEAD, STREAM, UPSTREAM, TOKENS, EXPIRE], ("2xx", "timeout")),
        ([HEAD, EXPIRE], ("5xx", "timeout")),
        ([HEAD, FAIL], ("5xx", "server")),
        ([], ("", "cancelled")),
        ([HEAD], ("", "cancelled")),
        ([HEAD, STREAM], ("", "cancelled")),
        ([HEAD, WHOLE, UPSTREAM], ("", "cancelled")),
        ([HEAD, STREAM, UPSTREAM, TOKENS], ("2xx", "cancelled")),
    ],
)
def test_it_is_counted_as_what_it_was(counted: Counted, acts: list[Act], ended: tuple[str, str]) -> None:
    assert counted.of(*acts) == {ended: 1}
    assert counted.total("extproc_cancelled_total") == (ended[1] == "cancelled")
    assert counted.total("extproc_deadline_exceeded_total") == (EXPIRE in acts)
    assert counted.total("extproc_engine_protocol_errors_total") == (ACTS["garbage"] in acts)


async def test_an_answer_from_another_worker_is_a_retry_and_one_from_elsewhere_an_ignored_destination(
    counted: Counted,
) -> None:
    # The fake's answers come from 10.0.0.2: with two workers in turn, one of two requests was meant for it.
    chosen = []
    for _ in range(20):
        exchange = counted.exchange(HEAD, STREAM)
        (busy,) = [worker for worker in counted.fleet.workers if worker.running]
        chosen.append(busy.address)
        UPSTREAM(exchange)
        exchange.close()
    assert counted.total("extproc_retries_seen_total") == chosen.count("10.0.0.1:1")
    assert counted.total("extproc_destination_ignored_total") == 0
    foreign = response_headers(content_type="application/grpc").replace(b"10.0.0.2:1", b"10.0.0.9:1")
    counted.of(HEAD, STREAM, sends(foreign))
    assert counted.total("extproc_destination_ignored_total") == 1


async def test_a_client_that_leaves_while_its_prompt_is_encoded_is_counted_once(tokens: ModelTokens) -> None:
    counted = Counted(tokens)
    exchange = counted.exchange(HEAD)
    backend = counted.fleet.backends["main"]
    inline, tokens._tokenizer._inline_characters = tokens._tokenizer._inline_characters, -1
    try:
        STREAM(exchange)
        pending = exchange.pending
        assert pending is not None
        exchange.close()
        assert exchange.resume(await pending) == []
    finally:
        tokens._tokenizer._inline_characters = inline
    assert counted.requests() == {("", "cancelled"): 1}
    assert [(w.running, w.waiting_tokens) for w in backend.pool.workers] == [(0, 0), (0, 0)]
