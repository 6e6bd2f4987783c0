"""What each step of a batch computes and how long it takes, on a clock that only the test moves."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import extproc
from extproc.simulator.batching import Batch, Pace

PACE = {
    "prefill_tokens_per_s": 8000.0,
    "step_s": 0.02,
    "sequence_s": 0.0001,
    "chunk_tokens": 2048,
    "max_running": 256,
}


class Request:
    """A job of so many uncached prompt tokens and answer tokens, which notes when its tokens come."""

    def __init__(self, run: Run, prompt: int, answer: int = 1, *, sequences: int = 1) -> None:
        self.run = run
        self.prompt = range(prompt)
        self.left = answer
        self.sequences = sequences
        self.room = True
        self.started_at: float | None = None
        self.tokens_at: list[float] = []
        self.chunks: list[int] = []

    @property
    def idle(self) -> bool:
        return self.left == 0

    def fits(self) -> bool:
        return self.room

    def start(self) -> int:
        self.started_at = self.run.now
        return len(self.prompt)

    def computed(self, tokens: int) -> None:
        self.chunks.append(tokens)

    def prefilled(self) -> None:
        assert sum(self.chunks) == len(self.prompt)

    def step(self) -> None:
        self.left -= 1
        self.tokens_at.append(round(self.run.now, 9))
        if not self.left:
            self.run.batch.remove(self)


class Run:
    """A batch and its virtual clock."""

    def __init__(self, **pace: float) -> None:
        self.batch = Batch(Pace(**{**PACE, **pace}))
        self.now = 0.0

    def submit(self, prompt: int, answer: int = 1, **options: int) -> Request:
        request = Request(self, prompt, answer, **options)
        self.batch.submit(request)
        return request

    def step(self) -> float | None:
        duration = self.batch.begin()
        if duration is not None:
            self.now += duration
            self.batch.end()
        return duration

    def to_the_end(self) -> None:
        while self.step() is not None:
            pass


def test_an_idle_engine_has_no_step():
    assert Run().step() is None


def test_a_prompt_takes_its_tokens_at_the_prefill_rate_and_the_first_token_comes_with_its_last_chunk():
    run = Run()
    request = run.submit(6000)
    run.to_the_end()
    assert request.chunks == [2048, 2048, 1904]
    assert request.tokens_at == [pytest.approx(6000 / 8000)]


def test_a_short_prompt_takes_a_whole_step():
    run = Run()
    request = run.submit(10)
    run.to_the_end()
    assert request.tokens_at == [0.02]


def test_every_decoding_sequence_makes_steps_longer():
    run = Run()
    requests = [run.submit(1, 3) for _ in range(10)]
    assert run.step() == pytest.approx(0.02)  # prefill of all ten
    assert run.step() == pytest.approx(0.02 + 10 * 0.0001)
    assert [len(request.tokens_at) for request in requests] == [2] * 10


def test_sequences_of_one_request_count_each():
    run = Run()
    run.submit(1, 2, sequences=5)
    run.step()
    assert run.step() == pytest.approx(0.02 + 5 * 0.0001)


def test_decoding_goes_on_beside_a_long_prompt_a_token_for_each_chunk():
    run = Run()
    decoding = run.submit(1, 100)
    run.step()
    long = run.submit(4000)
    durations = [run.step(), run.step()]
    # The decoding sequence's token is one of the chunk's.
    assert long.chunks == [2047, 1953]
    assert durations == [pytest.approx(2047 / 8000 + 0.0001), pytest.approx(1953 / 8000 + 0.0001)]
    assert len(decoding.tokens_at) == 3


def test_prompts_are_computed_in_order_of_arrival_and_share_a_chunk():
    run = Run()
    first, second, third = run.submit(1500), run.submit(1500), run.submit(100)
    run.step()
    assert (first.chunks, second.chunks, third.started_at) == ([1500], [548], None)
    run.step()
    assert (second.chunks, third.chunks) == ([548, 952], [100])


def test_a_prompt_that_arrives_during_a_step_waits_for_its_end():
    run = Run()
    run.submit(2048)
    duration = run.batch.begin()
    late = run.submit(100)
    run.now += duration
    run.batch.end()
    assert late.started_at is None
    run.step()
    assert late.tokens_at == [pytest.approx(0.256 + 0.02)]


def test_no_more_sequences_than_the_batch_holds():
    run = Run(max_running=4)
    requests = [run.submit(1, 2) for _ in range(6)]
    run.step()
    assert [request.started_at is None for request in requests] == [False] * 4 + [True] * 2
    assert (run.batch.running_sequences, run.batch.waiting_sequences) == (4, 2)
    run.to_the_end()
    assert all(request.idle for request in requests)


def test_a_request_larger_than_the_batch_runs_alone():
    run = Run(max_running=4)
    small, large = run.submit(1, 2), run.submit(1, 2, sequences=8)
    run.step()
    assert large.started_at is None
    run.to_the_end()
    assert small.idle
    assert large.idle


def test_a_prompt_without_room_in_the_cache_waits_unless_it_is_alone():
    run = Run()
    first = run.submit(100, 3)
    second = run.submit(100)
    second.room = False
    run.step()
    run.step()
    assert second.started_at is None
    run.step()
    assert first.idle
    run.step()
    assert second.idle


def test_a_slow_worker_is_slow_in_everything():
    fast, slow = Run(), Run(speed=0.5)
    for run in (fast, slow):
        run.submit(3000, 5)
        run.submit(10, 7)
        run.to_the_end()
    assert slow.now == pytest.approx(2 * fast.now)
    assert slow.batch.busy_s == pytest.approx(slow.now)


def test_a_job_that_leaves_takes_no_more_of_the_prefill():
    run = Run()
    leaving, staying = run.submit(20_000), run.submit(100)
    run.step()
    run.batch.remove(leaving)
    run.step()
    assert staying.idle
    assert run.batch.prefill_tokens_left == 0


def test_a_step_whose_only_job_leaves_is_needless():
    run = Run()
    request = run.submit(20_000)
    run.batch.begin()
    assert not run.batch.needless
    run.batch.remove(request)
    assert run.batch.needless


def test_where_nothing_takes_time_all_happens_within_the_call():
    run = Run(prefill_tokens_per_s=0.0, step_s=0.0)
    request = run.submit(5000, 9)
    assert len(request.tokens_at) == 9
    assert run.step() is None


def test_without_prefill_time_the_first_token_comes_at_once_and_the_others_with_the_steps():
    run = Run(prefill_tokens_per_s=0.0)
    request = run.submit(5000, 3)
    assert request.tokens_at == [0.0]
    run.to_the_end()
    assert request.tokens_at == [0.0, pytest.approx(0.0201), pytest.approx(0.0402)]


def test_nothing_that_routes_knows_the_simulator():
    package = Path(extproc.__file__).parent
    starts_it = (package / "simulator", package / "cli")
    files = [file for file in package.rglob("*.py") if not file.is_relative_to(starts_it[0])]
    knowing = {file for file in files for name in imported(file) if name.startswith("extproc.simulator")}
    assert knowing  # the command line does: the search finds something
    assert {file for file in knowing if not file.is_relative_to(starts_it[1])} == set()


def imported(file: Path) -> list[str]:
    """Modules that a file imports, wherever in it."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return names
