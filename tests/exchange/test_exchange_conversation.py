"""One HTTP request's conversation with Envoy, message by message."""

from __future__ import annotations

import asyncio

import exchange_fakes as fakes
import pytest
from exchange_fakes import FakeAnswer, FakeApplication, kinds, parse
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from extproc.exchange.application import Outcome, ReadBody, Reply
from extproc.exchange.exchange import Exchange, HeldBodies, State, WrongModeError
from extproc.exchange.ext_proc_pb2 import (
    BodySendMode,
    CommonResponse,
    HttpHeaders,
    ProcessingRequest,
    ProtocolConfiguration,
)


def start(application: FakeApplication | None = None, limit: int = 10_000) -> tuple[Exchange, FakeApplication]:
    application = application or FakeApplication()
    return Exchange(application, HeldBodies(limit)), application


def forwarded(answer: FakeAnswer | None = None) -> tuple[Exchange, FakeApplication]:
    exchange, application = start(FakeApplication(answer=answer or FakeAnswer()))
    exchange.receive(fakes.request_headers())
    exchange.receive(fakes.request_body(b"hello", end=True))
    assert exchange.state is State.FORWARDED
    return exchange, application


def test_the_reply_to_the_headers_is_held_until_the_body_is_complete() -> None:
    exchange, application = start()
    assert exchange.receive(fakes.request_headers()) == []
    assert exchange.receive(fakes.request_body(b"hel")) == []
    assert exchange.receive(fakes.request_body(b"lo")) == []
    (reply,) = parse(exchange.receive(fakes.request_body(b"", end=True)))
    common = reply.request_headers.response
    assert application.bodies == [b"hello"]
    assert common.status == CommonResponse.CONTINUE_AND_REPLACE
    assert common.body_mutation.body == b"hello"
    assert common.clear_route_cache
    assert {h.header.key: h.header.raw_value for h in common.header_mutation.set_headers} == {
        ":path": b"/up",
        "x-gateway-pool": b"p",
    }
    assert list(common.header_mutation.remove_headers) == ["content-length"]
    assert reply.dynamic_metadata.fields["envoy.lb"].struct_value.fields["destination"].string_value == "10.0.0.1:1"


def test_a_request_without_body_ends_with_its_headers() -> None:
    exchange, application = start()
    assert kinds(exchange.receive(fakes.request_headers(end=True))) == ["request_headers"]
    assert application.bodies == [b""]


@pytest.mark.parametrize("size", [5, 150_000])
def test_a_request_that_ends_in_trailers_is_replaced_with_them(size: int) -> None:
    exchange, _ = start(FakeApplication(on_head=lambda head: ReadBody(1 << 20)), limit=1 << 20)
    exchange.receive(fakes.request_headers())
    exchange.receive(fakes.request_body(bytes(size)))
    (reply,) = parse(exchange.receive(fakes.request_trailers()))
    assert reply.request_headers.response.status == CommonResponse.CONTINUE_AND_REPLACE
    assert len(reply.request_headers.response.body_mutation.body) == size


def test_a_large_body_goes_out_in_pieces() -> None:
    exchange, _ = start(FakeApplication(on_head=lambda head: ReadBody(1 << 20)), limit=1 << 20)
    exchange.receive(fakes.request_headers())
    replies = exchange.receive(fakes.request_body(bytes(150_000), end=True))
    assert kinds(replies) == ["request_headers", "request_body", "request_body", "request_body"]
    ends = [r.request_body.response.body_mutation.streamed_response.end_of_stream for r in parse(replies)[1:]]
    assert ends == [False, False, True]


def test_what_comes_after_the_requests_end_is_ignored() -> None:
    exchange, application = forwarded()
    assert exchange.receive(fakes.request_body(b"again", end=True)) == []
    assert exchange.receive(fakes.request_trailers()) == []
    assert application.bodies == [b"hello"]


def test_an_early_reply_ends_the_conversation_and_the_body_in_flight_is_ignored() -> None:
    exchange, application = start(FakeApplication(on_head=lambda head: Reply(404, (("a", "b"),), b"no", "unknown")))
    (reply,) = parse(exchange.receive(fakes.request_headers()))
    assert reply.immediate_response.status.code == 404
    assert reply.immediate_response.body == b"no"
    assert reply.immediate_response.details == "unknown"
    assert exchange.receive(fakes.request_body(b"x", end=True)) == []
    assert application.closed == 1
    exchange.close()
    assert application.closed == 1


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_over_the_limit_is_refused_as_soon_as_it_is_known(declared: bool) -> None:
    exchange, application = start()
    if declared:
        replies = exchange.receive(fakes.request_headers(content_length="1001"))
    else:
        assert exchange.receive(fakes.request_headers()) == []
        assert exchange.receive(fakes.request_body(bytes(1000))) == []
        replies = exchange.receive(fakes.request_body(b"x"))
    assert parse(replies)[0].immediate_response.status.code == 413
    assert application.bodies == []


def test_all_exchanges_share_one_budget_for_bodies_and_give_it_back() -> None:
    held = HeldBodies(1500)
    first, _ = Exchange(FakeApplication(), held), None
    second_application = FakeApplication()
    second = Exchange(second_application, held)
    for exchange in (first, second):
        exchange.receive(fakes.request_headers())
    assert first.receive(fakes.request_body(bytes(1000))) == []
    assert parse(second.receive(fakes.request_body(bytes(600))))[0].immediate_response.status.code == 503
    assert held.held_bytes == 1000
    first.close()
    assert held.held_bytes == 0


async def test_an_outcome_that_waits_is_taken_when_it_comes() -> None:
    future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    exchange, application = start(FakeApplication(on_body=lambda body: future))
    exchange.receive(fakes.request_headers())
    assert exchange.receive(fakes.request_body(b"x", end=True)) == []
    assert exchange.state is State.DECIDING
    assert exchange.pending is future
    assert kinds(exchange.resume(application.forward(b"x"))) == ["request_headers"]
    assert exchange.pending is None


async def test_an_outcome_that_comes_too_late_is_released() -> None:
    future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    exchange, application = start(FakeApplication(on_body=lambda body: future))
    exchange.receive(fakes.request_headers())
    exchange.receive(fakes.request_body(b"x", end=True))
    exchange.close()
    assert exchange.resume(application.forward(b"x")) == []
    assert application.answer.closed == 1
    assert application.closed == 1


def test_an_answer_begins_with_its_first_piece_and_ends_before_the_trailers() -> None:
    exchange, application = forwarded()
    assert exchange.receive(fakes.response_headers()) == []
    replies = exchange.receive(fakes.response_body(b"a"))
    assert kinds(replies) == ["response_headers", "response_body"]
    head = parse(replies)[0].response_headers.response.header_mutation
    assert (head.set_headers[0].header.key, head.set_headers[0].header.raw_value) == (":status", b"200")
    assert kinds(exchange.receive(fakes.response_body(b"b"))) == ["response_body"]
    last = exchange.receive(fakes.response_trailers())
    assert kinds(last) == ["response_body", "response_trailers"]
    piece, trailers = parse(last)
    assert piece.response_body.response.body_mutation.streamed_response.body == b"|end"
    assert not piece.response_body.response.body_mutation.streamed_response.end_of_stream
    assert "grpc-status" in trailers.response_trailers.header_mutation.remove_headers
    assert application.answer.ends == [{"grpc-status": "0"}]
    assert application.answer.heads[0].served_by == "10.0.0.2:1"
    assert not application.answer.heads[0].local


def test_an_answer_held_to_the_end_goes_out_whole_and_without_the_upstreams_trailers() -> None:
    exchange, _ = forwarded(FakeAnswer(held=True))
    exchange.receive(fakes.response_headers())
    assert exchange.receive(fakes.response_body(b"ab")) == []
    head, piece, trailers = parse(exchange.receive(fakes.response_trailers()))
    assert head.WhichOneof("response") == "response_headers"
    assert piece.response_body.response.body_mutation.streamed_response.body == b"ab"
    assert not piece.response_body.response.body_mutation.streamed_response.end_of_stream
    assert "grpc-status" in trailers.response_trailers.header_mutation.remove_headers


def test_a_large_answer_held_to_the_end_goes_out_in_pieces() -> None:
    exchange, _ = forwarded(FakeAnswer(held=True))
    exchange.receive(fakes.response_headers())
    exchange.receive(fakes.response_body(bytes(100_000)))
    replies = exchange.receive(fakes.response_trailers())
    assert kinds(replies) == ["response_headers", "response_body", "response_body", "response_trailers"]
    assert not any(r.response_body.response.body_mutation.streamed_response.end_of_stream for r in parse(replies)[1:3])


def test_an_answer_of_headers_alone_is_replaced() -> None:
    exchange, application = forwarded()
    (reply,) = parse(exchange.receive(fakes.response_headers(end=True, grpc_status="8")))
    assert reply.response_headers.response.status == CommonResponse.CONTINUE_AND_REPLACE
    assert reply.response_headers.response.body_mutation.body == b"|end"
    assert application.answer.ends[0]["grpc-status"] == "8"


def test_an_answer_without_trailers_ends_with_its_body() -> None:
    exchange, _ = forwarded()
    exchange.receive(fakes.response_headers(status=503, details="no_healthy_upstream"))
    replies = exchange.receive(fakes.response_body(b"no", end=True))
    assert kinds(replies) == ["response_headers", "response_body", "response_body"]
    assert parse(replies)[-1].response_body.response.body_mutation.streamed_response.end_of_stream


def test_an_answer_that_is_complete_early_ends_its_body_and_hears_nothing_more() -> None:
    exchange, application = forwarded(FakeAnswer(end_after=2))
    exchange.receive(fakes.response_headers())
    exchange.receive(fakes.response_body(b"a"))
    (last,) = parse(exchange.receive(fakes.response_body(b"b")))
    assert last.response_body.response.body_mutation.streamed_response.end_of_stream
    assert exchange.receive(fakes.response_body(b"c")) == []
    assert exchange.receive(fakes.response_trailers()) == []
    assert application.answer.pieces == [b"a", b"b"]


@pytest.mark.parametrize("messages_before", range(5))
def test_a_deadline_gives_a_clear_end_at_any_moment(messages_before: int) -> None:
    exchange, application = start()
    steps = [
        fakes.request_headers(),
        fakes.request_body(b"x", end=True),
        fakes.response_headers(),
        fakes.response_body(b"a"),
    ]
    for step in steps[:messages_before]:
        exchange.receive(step)
    replies = parse(exchange.expire())
    assert exchange.state is State.OVER
    if messages_before <= 3:  # no piece of a body has come, so Envoy would take none
        assert replies[0].immediate_response.status.code == 504
    else:
        assert replies[0].response_body.response.body_mutation.streamed_response.body == b"|expired"
        assert replies[0].response_body.response.body_mutation.streamed_response.end_of_stream
    assert exchange.expire() == []
    exchange.close()
    assert application.closed == 1
    assert application.answer.closed == (1 if messages_before >= 2 else 0)


@pytest.mark.parametrize("where", ["head", "body", "end"])
def test_an_internal_error_gives_a_clear_end(where: str) -> None:
    exchange, application = forwarded(FakeAnswer(raise_in=where))
    replies = []
    for step in (fakes.response_headers(), fakes.response_body(b"a"), fakes.response_trailers()):
        replies += exchange.receive(step)
    assert exchange.state is State.OVER
    last = parse(replies)[-1]
    if where == "head":
        assert last.immediate_response.body == b"|failed"
    else:
        assert last.response_body.response.body_mutation.streamed_response.end_of_stream
        assert last.response_body.response.body_mutation.streamed_response.body == b"|failed"
    exchange.close()
    assert application.answer.closed == 1


def test_an_internal_error_while_deciding_is_an_immediate_500() -> None:
    def broken(body: bytes) -> Outcome:
        raise RuntimeError

    exchange, application = start(FakeApplication(on_body=broken))
    exchange.receive(fakes.request_headers())
    (reply,) = parse(exchange.receive(fakes.request_body(b"x", end=True)))
    assert reply.immediate_response.status.code == 500
    assert application.closed == 1


def test_envoys_own_answer_before_ours_passes_unchanged() -> None:
    exchange, application = start()
    exchange.receive(fakes.request_headers())
    assert kinds(exchange.receive(fakes.response_headers(status=408, details="request_timeout"))) == [
        "response_headers"
    ]
    (piece,) = parse(exchange.receive(fakes.response_body(b"late", end=True)))
    assert piece.response_body.response.body_mutation.streamed_response.body == b"late"
    assert application.closed == 1


def test_a_stream_that_starts_with_the_answer_passes_unchanged() -> None:
    exchange, application = start()
    assert kinds(exchange.receive(fakes.response_headers())) == ["response_headers"]
    assert kinds(exchange.receive(fakes.response_body(b"x"))) == ["response_body"]
    assert kinds(exchange.receive(fakes.response_trailers())) == ["response_trailers"]
    exchange.close()
    assert application.closed == 1


def test_a_listener_in_another_mode_is_named() -> None:
    exchange, _ = start()
    message = ProcessingRequest(
        request_headers=HttpHeaders(),
        protocol_config=ProtocolConfiguration(
            request_body_mode=BodySendMode.BUFFERED, response_body_mode=BodySendMode.FULL_DUPLEX_STREAMED
        ),
    )
    with pytest.raises(WrongModeError, match="it has BUFFERED and FULL_DUPLEX_STREAMED"):
        exchange.receive(message.SerializeToString())


@pytest.mark.parametrize("kind", ["request_body", "request_trailers", "response_body", "response_trailers", "empty"])
def test_what_comes_before_any_headers_is_an_error(kind: str) -> None:
    exchange, application = start()
    with pytest.raises(WrongModeError, match="request_header_mode and response_header_mode SEND"):
        exchange.receive(STEPS[kind])
    exchange.close()
    assert application.closed == 1


@pytest.mark.parametrize("kind", ["response_body", "response_trailers"])
def test_an_answer_without_headers_is_an_error(kind: str) -> None:
    exchange, application = start()
    exchange.receive(fakes.request_headers(end=True))
    with pytest.raises(WrongModeError, match=f"{kind} came before any headers"):
        exchange.receive(STEPS[kind])
    exchange.close()
    assert (application.closed, application.answer.closed) == (1, 1)


def test_bytes_that_are_no_message_are_refused() -> None:
    exchange, _ = start()
    with pytest.raises(DecodeError):
        exchange.receive(b"\xff\xff\xff")


STEPS = {
    "request_headers": fakes.request_headers(),
    "request_headers_end": fakes.request_headers(end=True),
    "request_body": fakes.request_body(b"x"),
    "request_body_end": fakes.request_body(b"y", end=True),
    "request_trailers": fakes.request_trailers(),
    "response_headers": fakes.response_headers(),
    "response_headers_end": fakes.response_headers(end=True),
    "response_body": fakes.response_body(b"z"),
    "response_body_end": fakes.response_body(b"", end=True),
    "response_trailers": fakes.response_trailers(),
    "empty": b"",
}


@given(
    steps=st.lists(st.sampled_from([*STEPS, "expire", "fail", "close"]), max_size=14),
    held=st.booleans(),
    end_after=st.none() | st.integers(1, 3),
    raise_in=st.sampled_from(["", "", "head", "body", "end"]),
)
def test_any_order_of_messages_releases_everything_once_and_keeps_the_replies_in_order(
    steps: list[str], held: bool, end_after: int | None, raise_in: str
) -> None:
    application = FakeApplication(answer=FakeAnswer(held=held, end_after=end_after, raise_in=raise_in))
    budget = HeldBodies(10_000)
    exchange = Exchange(application, budget)
    replies: list[bytes] = []
    for step in steps:
        if step == "close":
            exchange.close()
        elif step in ("expire", "fail"):
            replies += getattr(exchange, step)()
        else:
            try:
                replies += exchange.receive(STEPS[step])
            except WrongModeError:
                break  # the transport ends the call
    was_forwarded = "request_headers" in kinds(replies)
    exchange.close()
    assert application.closed == 1
    assert application.answer.closed == (1 if was_forwarded else 0)
    assert budget.held_bytes == 0
    said = kinds(replies)
    order = ["request_headers", "request_body", "request_trailers", "response_headers", "response_body"]
    ranks = [order.index(kind) for kind in said if kind in order]
    assert ranks == sorted(ranks)
    for once in ("request_headers", "response_headers", "immediate_response"):
        assert said.count(once) <= 1


def test_an_answer_that_has_begun_may_show_a_sign_of_life() -> None:
    exchange, _ = forwarded(FakeAnswer(sign=b": alive"))
    assert exchange.keep_alive() == [], "there is nothing to keep alive yet"
    exchange.receive(fakes.response_headers())
    assert exchange.keep_alive() == []
    exchange.receive(fakes.response_body(b"one"))
    (reply,) = parse(exchange.keep_alive())
    assert reply.response_body.response.body_mutation.streamed_response.body == b": alive"
    assert not reply.response_body.response.body_mutation.streamed_response.end_of_stream
    exchange.receive(fakes.response_trailers())
    assert exchange.keep_alive() == []
