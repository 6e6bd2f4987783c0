"""The demo's client measures what it shows, and tells what went wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from extproc.cli.chat import ChatClient
from extproc.cli.ports import free_ports

USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
DECISION = json.dumps({"worker": "engine-2", "policy": "random", "reason": "any of 4"})
QUESTION = [{"role": "user", "content": "Hello"}]


def event(**chunk: object) -> str:
    return f"data: {json.dumps(chunk)}\n\n"


def text(piece: str) -> str:
    return event(choices=[{"index": 0, "delta": {"content": piece}}])


class Scripted(ThreadingHTTPServer):
    """Gives one scripted answer to everything, and keeps the last request."""

    status = 200
    body = ""
    headers: dict[str, str] = {}  # noqa: RUF012
    request_body: dict[str, object] = {}  # noqa: RUF012
    request_headers: dict[str, str] = {}  # noqa: RUF012


class Handler(BaseHTTPRequestHandler):
    server: Scripted

    def do_POST(self) -> None:
        self.server.request_body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.request_headers = dict(self.headers)
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.server.body.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Not on the test's output."""


@pytest.fixture
def server() -> Iterator[Scripted]:
    with Scripted(("127.0.0.1", 0), Handler) as scripted:
        threading.Thread(target=scripted.serve_forever, args=(0.01,), daemon=True).start()
        yield scripted
        scripted.shutdown()


@pytest.fixture
def client(server: Scripted) -> ChatClient:
    return ChatClient("127.0.0.1", server.server_port, "tiny")


def test_a_streamed_answer_is_heard_piece_by_piece_and_measured(server: Scripted, client: ChatClient) -> None:
    server.headers = {"x-gateway-decision": DECISION}
    server.body = text("Hel") + text("lo") + event(choices=[], usage=USAGE) + "data: [DONE]\n\n"
    heard: list[str] = []
    answer = client.ask(QUESTION, on_text=heard.append)
    assert heard == ["Hel", "lo"]
    assert (answer.text, answer.error, answer.worker) == ("Hello", None, "engine-2")
    assert (answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens) == (12, 8, 3)
    assert answer.first_token_s is not None
    assert 0 < answer.first_token_s <= answer.total_s
    assert server.request_body["stream_options"] == {"include_usage": True}
    assert server.request_headers["x-gateway-debug"] == "1"


def test_a_whole_answer_is_read(server: Scripted, client: ChatClient) -> None:
    server.body = json.dumps({"choices": [{"message": {"content": "Hello"}}], "usage": USAGE})
    answer = client.ask(QUESTION, stream=False, temperature=0)
    assert (answer.text, answer.error, answer.completion_tokens) == ("Hello", None, 3)
    assert server.request_body["temperature"] == 0
    assert "stream_options" not in server.request_body


def test_an_error_answer_gives_its_message_and_body(server: Scripted, client: ChatClient) -> None:
    server.status = 404
    server.body = json.dumps({"error": {"message": "no such model"}})
    answer = client.ask(QUESTION)
    assert (answer.status, answer.error, answer.body) == (404, "no such model", server.body)


def test_an_error_within_the_stream_is_an_error(server: Scripted, client: ChatClient) -> None:
    server.body = text("Hel") + event(error={"message": "the engine is gone"})
    answer = client.ask(QUESTION)
    assert (answer.text, answer.error) == ("Hel", "the engine is gone")


@pytest.mark.parametrize("body", ["", text("Hel"), "data: {nonsense\n\n", "data: []\n\n"])
def test_a_broken_stream_is_an_error(server: Scripted, client: ChatClient, body: str) -> None:
    server.body = body
    assert client.ask(QUESTION).error


def test_nobody_listening_is_an_error() -> None:
    (port,) = free_ports("127.0.0.1", 1)
    assert "ConnectionRefusedError" in str(ChatClient("127.0.0.1", port, "tiny").ask(QUESTION).error)
