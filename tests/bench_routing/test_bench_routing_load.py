"""The client of routing benchmarks: whatever becomes of a request, it is counted as that."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from benchmarks.routing import load as client
from benchmarks.routing.load import load

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(**fields: object) -> bytes:
    data = b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def answer(tokens: int, usage: int | None = None) -> list[bytes]:
    """An answer in pieces: headers, a chunk with the role, chunks with content, usage, the end."""
    role = event(choices=[{"delta": {"role": "assistant", "content": ""}}])
    contents = [event(choices=[{"delta": {"content": '"'}}]) for _ in range(tokens)]
    counts = {
        "prompt_tokens": 100,
        "completion_tokens": tokens if usage is None else usage,
        "prompt_tokens_details": {"cached_tokens": 48},
    }
    return [HEAD, role, *contents, event(choices=[], usage=counts), b"e\r\ndata: [DONE]\n\n\r\n", b"0\r\n\r\n"]


@asynccontextmanager
async def serving(answers):
    """A server that answers each request by its path's number; None as a piece closes, "stall" waits for ever."""
    connections = []

    async def connected(reader, writer):
        connections.append(asyncio.current_task())
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                for piece in answers[int(head.split()[1][1:])]:
                    if piece is None:
                        return
                    if piece == "stall":
                        await asyncio.Event().wait()
                    writer.write(piece)
                    await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in connections:
            task.cancel()


def requests(count: int) -> list[bytes]:
    return [f"POST /{number} HTTP/1.1\r\ncontent-length: 0\r\n\r\n".encode() for number in range(count)]


async def run(answers, *, drain_s=5.0, tokens=3):
    async with serving(answers) as port:
        return await load(port, requests(len(answers)), [0.0] * len(answers), [tokens] * len(answers), drain_s)


async def test_first_content_and_usage_are_read_from_whole_answers():
    result = await run([answer(3)])
    (outcome,) = result.outcomes
    assert outcome.ok
    assert (outcome.prompt_tokens, outcome.cached_tokens) == (100, 48)
    assert outcome.late_s <= outcome.first_s <= outcome.end_s


@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_any_cut_of_the_bytes_gives_the_same(size):
    whole = b"".join(answer(3))
    result = await run([[whole[at : at + size] for at in range(0, len(whole), size)]])
    assert result.outcomes[0].ok
    assert result.outcomes[0].cached_tokens == 48


async def test_an_empty_content_is_no_first_token():
    result = await run([[*answer(3)[:2], "stall"]], drain_s=0.1)
    assert result.outcomes[0].first_s is None


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\nno"], "HTTP 503"),
        ([*answer(3)[:3], None], "connection closed"),
        ([None], "connection closed"),
        ([HEAD, b"0\r\n\r\n"], "no content"),
        ([*answer(3)[:3], b"0\r\n\r\n"], "broken off in the stream"),
        (answer(2), "wrong number of tokens"),
        ([*answer(3)[:3], "stall"], "unfinished"),
    ],
)
async def test_what_goes_wrong_is_counted_and_others_go_on(pieces, status):
    result = await run([answer(3), pieces, answer(3)], drain_s=0.3)
    assert [outcome.status for outcome in result.outcomes] == ["ok", status, "ok"]
    if status != "unfinished":
        assert result.first_mistake.startswith(status)


async def test_nobody_to_connect_to_is_counted():
    async with serving([]) as port:
        pass
    result = await load(port, requests(2), [0.0, 0.0], [3, 3], 5.0)
    assert all(outcome.status.startswith("no connection") for outcome in result.outcomes)


async def test_connections_are_used_again():
    opened = 0

    async def connected(reader, writer):
        nonlocal opened
        opened += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"".join(answer(3)))
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    result = await load(port, requests(3), [0.0, 0.2, 0.4], [3] * 3, 5.0)
    server.close()
    assert all(outcome.ok for outcome in result.outcomes)
    assert opened < 3


async def test_requests_in_flight_are_bounded(monkeypatch):
    monkeypatch.setattr(client, "MAX_IN_FLIGHT", 2)
    result = await run([["stall"]] * 3, drain_s=0.1)
    assert sorted(outcome.status for outcome in result.outcomes) == [
        "not sent: too many in flight", "unfinished", "unfinished",
    ]  # fmt: skip
    assert result.most_in_flight == 2
