"""A loopback HTTP server that gives one canned answer, for official SDKs to read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from openai import OpenAI


class _Server(HTTPServer):
    answer: tuple[int, tuple[tuple[str, str], ...], bytes] = (500, (), b"")


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        status, headers, body = self.server.answer
        self.send_response(status)
        for name, value in (*headers, ("content-length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class CannedServer:
    """Where it listens, and what it will answer next."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self.url = f"http://127.0.0.1:{server.server_port}"

    def will_answer(self, status: int, headers: tuple[tuple[str, str], ...], body: bytes) -> None:
        self._server.answer = (status, headers, body)


class Reader:
    """OpenAI's SDK in strict mode, and the answer that it will read next."""

    def __init__(self, server: CannedServer, client: OpenAI) -> None:
        self._server = server
        self.client = client

    def will_read(self, status: int, headers: tuple[tuple[str, str], ...], body: bytes) -> OpenAI:
        self._server.will_answer(status, headers, body)
        return self.client


@contextmanager
def canned_server() -> Iterator[CannedServer]:
    server = _Server(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield CannedServer(server)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def canned_reader() -> Iterator[Reader]:
    with (
        canned_server() as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, _strict_response_validation=True) as client,
    ):
        yield Reader(server, client)
