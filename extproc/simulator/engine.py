"""One simulated engine: its requests, its cache and its load. `service` gives it a protocol."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from smg_grpc_proto.generated import vllm_engine_pb2

from extproc.simulator import constants
from extproc.simulator.answer import Answer, plan
from extproc.simulator.artifacts import Artifacts
from extproc.simulator.batching import Pace
from extproc.simulator.embedding import vector
from extproc.simulator.faults import Faults
from extproc.simulator.generate import Generation
from extproc.simulator.kv_cache import KvCache
from extproc.simulator.kv_events import KvEvents
from extproc.simulator.kv_events import Load as KvLoad
from extproc.simulator.kv_publisher import ZmqPublisher
from extproc.simulator.scheduler import Scheduler
from extproc.simulator.spec import Answers, EngineSpec
from extproc.simulator.text import Echo, Natural, Script, Scripted
from extproc.simulator.validation import Sampling, check_prompt, read_prompt, read_sampling
from extproc.transport.service import Call
from extproc.transport.status import RpcError, Status

_UNSEEDED_CHOICES = 64
"""Requests without a seed choose among so many answers, so that natural text is made once and then only looked up."""


@dataclass(frozen=True, slots=True)
class Load:
    """What GetLoads reports."""

    running: int  # sequences
    waiting: int  # sequences
    used_tokens: int  # in blocks that running sequences hold
    capacity_tokens: int
    waiting_uncached_tokens: int  # prompt tokens of waiting requests that are not in the cache now
    tokens_per_s: float  # generated, lately
    cache_hit_rate: float  # prompt tokens reused / prompt tokens, since the start

    @property
    def usage(self) -> float:
        """Share of the cache that running sequences hold."""
        return self.used_tokens / self.capacity_tokens if self.capacity_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Totals:
    """What an engine did since its start, for benchmarks."""

    requests: int  # that ended, however
    prompt_tokens: int  # of them
    cached_tokens: int
    computed_tokens: int  # prompt tokens, also of requests that still run
    generated_tokens: int
    busy_s: float  # model time of all steps
    steps: int
    late_ms: float  # how late steps ended, mean and most: wall time
    latest_ms: float


class Engine:
    """Runs on the event loop that is running. All methods are for its thread."""

    def __init__(self, spec: EngineSpec, artifacts: Artifacts) -> None:
        self.spec = spec
        self.artifacts = artifacts
        self.context_tokens = spec.context_tokens or artifacts.context_tokens
        self.requests: deque[vllm_engine_pb2.GenerateRequest] = deque(maxlen=spec.recorded_requests)
        self.embed_requests: deque[vllm_engine_pb2.EmbedRequest] = deque(maxlen=spec.recorded_requests)
        self.aborted_ids: deque[str] = deque(maxlen=spec.recorded_requests)
        self.cache = KvCache(spec.kv_cache_tokens, spec.block_tokens)
        self.on_health: Callable[[bool], None] = lambda healthy: None
        self.on_death: Callable[[], None] = lambda: None
        self.on_restart: Callable[[], None] = lambda: None
        self._scheduler = Scheduler(
            Pace(
                prefill_tokens_per_s=spec.prefill_tokens_per_s,
                step_s=spec.decode_step_s,
                sequence_s=spec.decode_sequence_s,
                chunk_tokens=spec.chunk_tokens,
                max_running=spec.max_running,
                speed=spec.speed,
            ),
            spec.speed_up,
        )
        self.kv_events: KvEvents | None = None
        self.kv_publisher: ZmqPublisher | None = None
        if not spec.no_kv_events:
            self._publish_kv_events()
        self._script = _script(spec, artifacts)
        self._chance = random.Random(spec.seed)  # noqa: S311  # no secret
        self._turn = 0
        self._live: dict[Generation, None] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._faults = spec.faults
        self._faulty_calls_left = spec.faults.times
        self._requests = 0  # that ended, as in the next three
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._generated_tokens = 0
        self._rate_since = (time.monotonic(), 0)
        self._rate = 0.0
        self._starting: asyncio.TimerHandle | None = None
        if spec.start_delay_s:
            self._starting = asyncio.get_running_loop().call_later(spec.start_delay_s, self._started)

    def _publish_kv_events(self) -> None:
        spec = self.spec
        events = self.kv_events = self.cache.watcher = KvEvents(
            spec.block_tokens, lambda: self._faults, self._kv_load, spec.speed_up
        )
        if spec.kv_zmq:
            self.kv_publisher = ZmqPublisher(spec.kv_zmq, spec.kv_zmq_replay, spec.kv_zmq_topic)
            events.carriers.append(self.kv_publisher)

    def _kv_load(self) -> KvLoad:
        batch, cache = self._scheduler.batch, self.cache
        usage = cache.held_blocks / cache.capacity_blocks if cache.capacity_blocks else 0.0
        return KvLoad(batch.running_sequences, batch.waiting_sequences, usage)

    # Health and faults.

    @property
    def healthy(self) -> bool:
        """What both health services say."""
        return self._starting is None and not self._faults.unhealthy

    @property
    def faults(self) -> Faults:
        """What it does wrong."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._faults = faults
        self._faulty_calls_left = faults.times
        self.on_health(self.healthy)

    def _started(self) -> None:
        self._starting = None
        self.on_health(self.healthy)

    def _claim_faults(self) -> Faults:
        """The faults of one Generate call."""
        faults = self._faults
        left = self._faulty_calls_left
        if left is None:
            return faults
        if left:
            self._faulty_calls_left = left - 1
            return faults
        return replace(faults, refuse_status=0, break_kind=None)

    # Requests.

    def generate(self, call: Call, data: bytes) -> Generation:
        """Take a request; its messages go to `call`. Raises RpcError where it is refused."""
        request = vllm_engine_pb2.GenerateRequest.FromString(data)
        self.requests.append(request)
        if self._starting is not None:
            raise RpcError(Status.UNAVAILABLE, "the engine is starting")
        faults = self._claim_faults()
        if faults.refuse_status:
            raise RpcError(faults.refuse_status, faults.details)
        artifacts = self.artifacts
        sampling = read_sampling(request.sampling_params, artifacts.vocabulary)
        prompt = read_prompt(request, artifacts, self.context_tokens)
        generation = Generation(
            call,
            request,
            prompt,
            sampling,
            [self._answer(prompt, sampling, index, faults) for index in range(sampling.n)],
            cache=self.cache,
            vocabulary=artifacts.vocabulary,
            tokens_per_chunk=self.spec.tokens_per_chunk,
            faults=faults,
            ended=self._ended,
            die=self._die,
            restart=self._restart,
        )
        self._live[generation] = None
        self._idle.clear()
        self._scheduler.submit(generation)
        return generation

    def embed(self, request: vllm_engine_pb2.EmbedRequest) -> vllm_engine_pb2.EmbedResponse:
        """A vector of length 1, the same for the same prompt. Takes no time. Raises RpcError where it is refused."""
        dimensions = self.spec.embedding_dimensions
        if not dimensions:
            raise RpcError(Status.INVALID_ARGUMENT, "This model does not support pooling")
        if self._starting is not None:
            raise RpcError(Status.UNAVAILABLE, "the engine is starting")
        faults = self._claim_faults()
        if faults.refuse_status:
            raise RpcError(faults.refuse_status, faults.details)
        ids = request.tokenized.input_ids[:]
        check_prompt(ids, self.artifacts.vocabulary, self.context_tokens)
        self.embed_requests.append(request)
        return vllm_engine_pb2.EmbedResponse(
            embedding=vector(ids, dimensions), prompt_tokens=len(ids), embedding_dim=dimensions
        )

    def abort(self, request_ids: Iterable[str]) -> None:
        """End the requests with these ids, all of them where one id came twice; unknown ids are none."""
        wanted = set(request_ids)
        self.aborted_ids.extend(wanted)
        for generation in list(self._live):
            if generation.request_id in wanted:
                generation.abort()

    async def flush_cache(self, timeout_s: float) -> bool:
        """Empty the cache, waiting so long for running requests. False if some still run."""
        if timeout_s > 0 and not self._idle.is_set():
            try:
                await asyncio.wait_for(self._idle.wait(), timeout_s)
            except TimeoutError:
                return False
        return self.cache.clear()

    def close(self) -> None:
        """Forget what runs; no timer is left behind."""
        for generation in list(self._live):
            generation.cancel()
        self._scheduler.close()
        if self.kv_events is not None:
            self.kv_events.close()
        if self.kv_publisher is not None:
            self.kv_publisher.close()
        if self._starting is not None:
            self._starting.cancel()

    def load(self) -> Load:
        """What it does now."""
        batch = self._scheduler.batch
        cache = self.cache
        block_tokens = cache.block_tokens
        waiting = [job.prompt for job in batch.waiting]
        return Load(
            running=batch.running_sequences,
            waiting=batch.waiting_sequences,
            used_tokens=cache.held_blocks * block_tokens,
            capacity_tokens=cache.capacity_blocks * block_tokens,
            waiting_uncached_tokens=sum(len(prompt) - cache.cached_tokens(prompt) for prompt in waiting),
            tokens_per_s=self._tokens_per_s(),
            cache_hit_rate=self._cached_tokens / self._prompt_tokens if self._prompt_tokens else 0.0,
        )

    def totals(self) -> Totals:
        """What it did so far."""
        scheduler = self._scheduler
        return Totals(
            requests=self._requests,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            computed_tokens=scheduler.batch.computed_tokens,
            generated_tokens=self._generated_tokens,
            busy_s=scheduler.batch.busy_s,
            steps=scheduler.steps,
            late_ms=scheduler.late_s / scheduler.steps * 1e3 if scheduler.steps else 0.0,
            latest_ms=scheduler.latest_s * 1e3,
        )

    def _answer(self, prompt: list[int], sampling: Sampling, index: int, faults: Faults) -> Answer:
        if sampling.seed is not None:
            turn = seed = sampling.seed + index
        else:
            turn = self._turn
            self._turn += 1
            seed = index if sampling.greedy else self._chance.randrange(_UNSEEDED_CHOICES)
        return plan(
            self._script.ids(prompt, turn, seed),
            sampling,
            self.context_tokens - len(prompt),
            self.artifacts,
            ignore_stop_strings=faults.ignore_stop_strings,
        )

    def _ended(self, generation: Generation) -> None:
        self._live.pop(generation, None)
        self._scheduler.remove(generation)
        self._requests += 1
        self._prompt_tokens += len(generation.prompt)
        self._cached_tokens += generation.cached_tokens
        self._generated_tokens += generation.generated_tokens
        if not self._live:
            self._idle.set()

    def _die(self) -> None:
        self.close()
        self.on_death()

    def _restart(self) -> None:
        self.close()
        self.on_restart()

    def _tokens_per_s(self) -> float:
        now = time.monotonic()
        generated = self._generated_tokens + sum(generation.generated_tokens for generation in self._live)
        since, before = self._rate_since
        if now - since >= constants.RATE_WINDOW_S:
            self._rate = (generated - before) / (now - since)
            self._rate_since = (now, generated)
        return self._rate


def _script(spec: EngineSpec, artifacts: Artifacts) -> Script:
    match spec.answers:
        case Answers.ECHO:
            return Echo(artifacts)
        case Answers.NATURAL:
            return Natural(artifacts, spec.answer_tokens)
        case Answers.SCRIPT:
            return Scripted(artifacts, spec.texts)
