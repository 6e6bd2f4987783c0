"""What each dialect costs beside Chat Completions: CPU of the processor per streamed token, per answer and per request.

The real gateway in this process, without Envoy and without the connection to it, whose cost is the same for all: so
the ratios are greater than those of a whole processor. Rows:

  token     one more token of a streamed answer, from Envoy's message to ours
  answer    the rest of a streamed answer: its beginning and its end
  request   from the request's headers to the engine's request, by size: parsing, template, tokens, routing
  parse     the dialect's part of that

Figures are CPU microseconds, medians of rounds in which the dialects take turns. They are written to
build/bench-dialects.json, and the status says whether tokens and requests are within 1.3 times Chat's.

Run: python benchmarks/bench_dialects.py [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any

from gateway import model
from in_process import InProcess, answer, completion, request

from extproc.dialects.json_body import BodyLimits
from extproc.dialects.registry import all_dialects
from extproc.dialects.routes import Routes
from extproc.exchange.exchange import Exchange, State
from extproc.supervisor.process import settle_memory

OUTPUT = Path(__file__).parent.parent / "build" / "bench-dialects.json"
BAR = 1.3
BARRED = ("token", "request", "parse")
TOKENS = 400
SIZES: Mapping[str, tuple[int, int, int]] = {"300 words": (1, 300, 40), "201 turns of 60 words": (201, 60, 10)}
"""Turns, words in each, requests in a round."""

Turns = list[tuple[str, str]]
Body = tuple[str, dict[str, Any]]


def chat(turns: Turns) -> Body:
    return "/v1/chat/completions", {
        "model": model.MODEL,
        "messages": [{"role": role, "content": text} for role, text in turns],
        "max_tokens": 500,
        "temperature": 0.7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def responses(turns: Turns) -> Body:
    return "/v1/responses", {
        "model": model.MODEL,
        "input": [{"role": role, "content": text} for role, text in turns],
        "max_output_tokens": 500,
        "temperature": 0.7,
        "stream": True,
    }


def anthropic(turns: Turns) -> Body:
    return "/v1/messages", {
        "model": model.MODEL,
        "messages": [{"role": role, "content": text} for role, text in turns],
        "max_tokens": 500,
        "temperature": 0.7,
        "stream": True,
    }


def gemini(turns: Turns) -> Body:
    return f"/v1beta/models/{model.MODEL}:streamGenerateContent?alt=sse", {
        "contents": [
            {"role": {"assistant": "model"}.get(role, role), "parts": [{"text": text}]} for role, text in turns
        ],
        "generationConfig": {"maxOutputTokens": 500, "temperature": 0.7},
    }


def ollama(turns: Turns) -> Body:
    return "/api/chat", {
        "model": model.MODEL,
        "messages": [{"role": role, "content": text} for role, text in turns],
        "options": {"num_predict": 500, "temperature": 0.7},
        "stream": True,
    }


DIALECTS: Mapping[str, Callable[[Turns], Body]] = {
    "chat": chat,
    "responses": responses,
    "anthropic": anthropic,
    "gemini": gemini,
    "ollama": ollama,
}


def turns_of(count: int, words: int, number: int) -> Turns:
    """A conversation that begins and ends with the user."""
    return [
        (("user", "assistant")[at % 2], " ".join(f"word{(number + at * words + word) % 997}" for word in range(words)))
        for at in range(count)
    ]


async def forwarded(gateway: InProcess, messages: list[bytes]) -> Exchange:
    """An exchange whose request is on its way to the engine."""
    exchange = gateway.exchange()
    for message in messages:
        sent = exchange.receive(message)
    if exchange.pending is not None:
        sent = exchange.resume(await exchange.pending)
    assert exchange.state is State.FORWARDED, sent
    return exchange


async def measure(rounds: int) -> list[dict[str, Any]]:
    """The rows of all dialects."""
    gateway = await InProcess.load()
    routes = Routes(all_dialects(BodyLimits()))
    head, *pieces, end = answer(range(1000, 1000 + TOKENS), 300)
    last = completion(300, TOKENS)
    costs_us: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    settle_memory()

    def note(dialect: str, row: str, started: float, count: int) -> None:
        costs_us[dialect, row].append(1e6 * (thread_time() - started) / count)

    for number in range(rounds + 1):
        for dialect, body in DIALECTS.items():
            path, fields = body(turns_of(1, 50, number))
            exchange = await forwarded(gateway, request(json.dumps(fields).encode(), path))
            started = thread_time()
            exchange.receive(head)
            exchange.receive(pieces[0])
            begun = thread_time() - started
            started = thread_time()
            for piece in pieces[1:]:
                exchange.receive(piece)
            note(dialect, "token", started, len(pieces) - 1)
            started = thread_time() - begun
            exchange.receive(last)
            exchange.receive(end)
            note(dialect, "answer", started, 1)
            exchange.close()
        for size, (turns, words, count) in SIZES.items():
            for dialect, body in DIALECTS.items():
                bodies = [body(turns_of(turns, words, number * count + one)) for one in range(count)]
                path = bodies[0][0]
                data = [json.dumps(fields).encode() for _, fields in bodies]
                route = routes.find("POST", path, {})
                assert route.dialect.chat is not None
                started = thread_time()
                for one in data:
                    route.dialect.chat.parse(route.inbound, one)
                note(dialect, f"parse, {size}", started, count)
                messages = [request(one, path) for one in data]
                started = thread_time()
                exchanges = [await forwarded(gateway, one) for one in messages]
                note(dialect, f"request, {size}", started, count)
                for exchange in exchanges:
                    exchange.close()
        gc.collect()
        if number == 0:
            costs_us.clear()  # everything was for the first time
    await gateway.aclose()
    return [
        {
            "dialect": dialect,
            "row": row,
            "us": round(median(costs), 3),
            # Rounds are compared each with itself: what disturbs the machine for a while disturbs both.
            "ratio_chat": round(median(a / b for a, b in zip(costs, costs_us["chat", row], strict=True)), 3),
        }
        for (dialect, row), costs in sorted(costs_us.items(), key=lambda item: item[0][1])
    ]


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    rows = asyncio.run(measure(parser.parse_args().rounds))
    above = False
    for row in rows:
        missed = row["row"].startswith(BARRED) and row["ratio_chat"] > BAR
        above = above or missed
        print(
            f"{row['row']:32} {row['dialect']:12} {row['us']:10.2f} us {row['ratio_chat']:7.2f}"
            + (f"  above {BAR}" if missed else "")
        )
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(rows, indent=1) + "\n")
    return int(above)


if __name__ == "__main__":
    sys.exit(main())
