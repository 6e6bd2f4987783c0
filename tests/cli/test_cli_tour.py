"""The tour shows what was measured, and counts what failed."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rich.console import Console

from extproc.cli.chat import ChatClient
from extproc.cli.tour import Tour

MISTAKE = "temperature: must be at most 2, and this message is longer than a line of a narrow terminal is wide"


class Gateway(ThreadingHTTPServer):
    """Answers like a gateway whose workers take turns. `broken` names what it does wrong."""

    broken = ""
    requests = 0
    hold: threading.Event | None = None  # no answer before it is set

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = threading.Event()

    def answer(self, request: dict[str, object]) -> tuple[int, dict[str, str], str]:
        self.requests += 1
        self.asked.set()
        if self.hold:
            self.hold.wait(10)
        if request.get("temperature") == 7 and self.broken != "accepts anything":
            return 400, {}, json.dumps({"error": {"message": MISTAKE}})
        if self.broken == "no worker":
            return 503, {}, json.dumps({"error": {"message": "no worker can serve this now"}})
        headers = {}
        if self.broken != "no decision":
            decision = {"worker": f"engine-{self.requests % 2}", "policy": "round_robin", "reason": "next of 2"}
            headers["x-gateway-decision"] = json.dumps(decision)
        usage = {"prompt_tokens": 40, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 32}}
        if not request["stream"]:
            return 200, headers, json.dumps({"choices": [{"message": {"content": "Well"}}], "usage": usage})
        pieces = [{"choices": [{"delta": {"content": text}}]} for text in ("It [depends]", " on it.")]
        events = [*pieces, {"choices": [], "usage": usage}]
        return 200, headers, "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


class Handler(BaseHTTPRequestHandler):
    server: Gateway

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status, headers, body = self.server.answer(request)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Not on the test's output."""


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


async def tour_of(gateway: Gateway) -> tuple[str, list[str]]:
    output = io.StringIO()
    tour = Tour(Console(file=output, width=80), ChatClient("127.0.0.1", gateway.server_port, "tiny"), "round_robin")
    await tour.run()
    return output.getvalue(), tour.failures


async def test_a_tour_that_went_well_shows_answers_workers_and_measurements(gateway: Gateway) -> None:
    output, failures = await tour_of(gateway)
    assert failures == []
    assert "It [depends] on it." in output
    assert "answered by engine-1, policy round_robin: next of 2" in output
    assert "turn 4" in output
    assert " 32 " in output
    assert "████ 4" in output
    assert "policy round_robin knows who does" in " ".join(output.split())


async def test_an_errors_json_can_be_copied_from_a_narrow_terminal(gateway: Gateway) -> None:
    output, _ = await tour_of(gateway)
    assert json.loads(output[output.index("{") :]) == {"error": {"message": MISTAKE}}


async def test_an_interrupted_answer_ends_its_line_and_writes_no_more(gateway: Gateway) -> None:
    output = io.StringIO()
    gateway.hold = threading.Event()
    tour = Tour(Console(file=output, width=80), ChatClient("127.0.0.1", gateway.server_port, "tiny"), "round_robin")
    running = asyncio.create_task(tour.run())
    await asyncio.to_thread(gateway.asked.wait, 10)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    gateway.hold.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert output.getvalue().endswith("assistant  \n")


@pytest.mark.parametrize(
    ("broken", "count", "words"),
    [
        ("no worker", 12, "no worker can serve this now"),
        ("no decision", 12, "does not say which worker"),
        ("accepts anything", 1, "temperature 7 gave status 200"),
    ],
)
async def test_every_request_that_failed_is_counted(gateway: Gateway, broken: str, count: int, words: str) -> None:
    gateway.broken = broken
    _, failures = await tour_of(gateway)
    assert len(failures) == count
    assert words in failures[0]
