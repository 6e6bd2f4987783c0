"""What metrics cost: us per request and per scrape, the best of several rounds. A streamed token costs nothing.

Run: python benchmarks/bench_observe.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter

from extproc.observe.exposition import families, render
from extproc.observe.metrics import Metrics, RequestAccount

ROUNDS = 7
MODELS = [f"model-{number}" for number in range(20)]


def best_us(run: Callable[[], object], count: int) -> float:
    """Microseconds per run."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = perf_counter()
        for _ in range(count):
            run()
        best = min(best, perf_counter() - started)
    return 1e6 * best / count


def main() -> None:
    """Print the table."""
    metrics = Metrics(MODELS, ["main"])

    def account() -> RequestAccount:
        account = RequestAccount(metrics)
        account.operation = "chat"
        account.names_model("model-7")
        account.pool = "main"
        return account

    def streamed() -> None:
        one = account()
        one.begins()
        one.completes(300, 100, 0)
        one.closes()

    def whole() -> None:
        one = account()
        one.completes(300, 100, 0)
        one.closes()

    def refused() -> None:
        one = account()
        one.replies(400, "invalid_request")
        one.closes()

    for name, run in (("a streamed answer", streamed), ("a whole answer", whole), ("a refusal", refused)):
        print(f"{name:30} {best_us(run, 100_000):9.2f} us")
    for model in MODELS:
        metrics.series(model, "chat")

    async def scrapes() -> None:
        started = perf_counter()
        for _ in range(20):
            text = await render(families(metrics.registry))
        print(f"{f'a scrape of {len(text) // 1000} KB':30} {1e6 * (perf_counter() - started) / 20:9.0f} us")

    asyncio.run(scrapes())


if __name__ == "__main__":
    main()
