"""A small client of the Chat Completions API that measures what the demo shows.

Blocking, standard library only: the official SDK is a development dependency.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DECISION_HEADER = "x-gateway-decision"
_TIMEOUT_S = 60.0


@dataclass
class Answer:
    """One answer with its measurements. `error` is set where there is no usable answer."""

    status: int
    text: str = ""
    decision: Mapping[str, Any] = field(default_factory=dict)  # worker, policy, reason and more, as the gateway says
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    first_token_s: float | None = None  # from sending to the first text; None if not streamed
    total_s: float = 0.0
    error: str | None = None
    body: str = ""  # of an error, as it came

    @property
    def worker(self) -> str:
        """Which worker answered, as far as the gateway says."""
        return str(self.decision.get("worker", "?"))

    @property
    def tokens_per_s(self) -> float | None:
        """Rate of generation after the first token."""
        if self.first_token_s is None or self.completion_tokens < 2 or self.total_s <= self.first_token_s:
            return None
        return (self.completion_tokens - 1) / (self.total_s - self.first_token_s)


class ChatClient:
    """Sends chat requests to one gateway."""

    def __init__(self, host: str, port: int, model: str) -> None:
        self._host = host
        self._port = port
        self._model = model

    def ask(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        stream: bool = True,
        max_tokens: int = 64,
        on_text: Callable[[str], object] = lambda text: None,
        **fields: object,
    ) -> Answer:
        """Send a conversation. `on_text` hears each piece of a streamed answer as it comes."""
        request: dict[str, object] = {
            "model": self._model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "stream": stream,
            **fields,
        }
        if stream:
            request["stream_options"] = {"include_usage": True}
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        started = time.perf_counter()
        try:
            headers = {"content-type": "application/json", "x-gateway-debug": "1"}
            connection.request("POST", "/v1/chat/completions", json.dumps(request), headers)
            response = connection.getresponse()
            answer = Answer(response.status, decision=_decision(response))
            if response.status != 200:
                answer.body = response.read().decode(errors="replace")
                answer.error = _message(answer.body) or f"HTTP status {response.status}"
            elif stream:
                _read_stream(response, answer, started, on_text)
            else:
                _read_whole(response, answer)
            answer.total_s = time.perf_counter() - started
            return answer
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
            return Answer(0, total_s=time.perf_counter() - started, error=f"{type(error).__name__}: {error}")
        finally:
            connection.close()


def _decision(response: http.client.HTTPResponse) -> Mapping[str, Any]:
    decision = json.loads(response.getheader(DECISION_HEADER) or "{}")
    return decision if isinstance(decision, dict) else {}


def _message(body: str) -> str | None:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return None


def _read_whole(response: http.client.HTTPResponse, answer: Answer) -> None:
    completion = json.loads(response.read())
    answer.text = completion["choices"][0]["message"]["content"]
    _take_usage(completion["usage"], answer)


def _read_stream(
    response: http.client.HTTPResponse, answer: Answer, started: float, on_text: Callable[[str], object]
) -> None:
    pieces: list[str] = []
    for chunk in _events(response):
        if "error" in chunk:
            answer.error = str(chunk["error"].get("message", chunk["error"]))
        if chunk.get("usage"):
            _take_usage(chunk["usage"], answer)
        for choice in chunk.get("choices", ()):
            text = choice["delta"].get("content")
            if text:
                if answer.first_token_s is None:
                    answer.first_token_s = time.perf_counter() - started
                pieces.append(text)
                on_text(text)
    answer.text = "".join(pieces)


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON of each server-sent event. Raises ValueError if the stream breaks off before `[DONE]` or an error."""
    broken = False
    while line := response.readline():
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if not isinstance(event, dict):
            raise ValueError(f"not a chunk: {event!r}")
        broken = "error" in event
        yield event
    if not broken:
        raise ValueError("the stream ended before data: [DONE]")


def _take_usage(usage: Mapping[str, Any], answer: Answer) -> None:
    answer.prompt_tokens = usage["prompt_tokens"]
    answer.completion_tokens = usage["completion_tokens"]
    answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
