"""What is counted of requests, and the account of one request.

Names and labels of `gen_ai_…` follow the OpenTelemetry conventions for generative AI in their Prometheus form. Labels
hold only what the configuration names, so a client cannot make series.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from time import perf_counter

from prometheus_client import CollectorRegistry
from prometheus_client.process_collector import ProcessCollector

from extproc.observe.instruments import CounterFamily, HistogramFamily

UNKNOWN = "unknown"
"""The model of a request that ended before it named one of ours, and the operation of one without a head."""

CANCELLED = "cancelled"
"""`error_type` of an exchange that ended before its answer did: the client left, or Envoy gave the request up."""

_DURATION_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_ERROR_S = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24)
_PER_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS = tuple(float(4**power) for power in range(14))
"""Buckets as the conventions advise."""

_MODEL = "gen_ai_request_model"
_OPERATION = "gen_ai_operation_name"


class _Series:
    """The children of one model and operation that a request which goes well needs."""

    __slots__ = ("cached", "duration", "first_token", "input", "ok", "output", "per_token")

    def __init__(self, metrics: Metrics, model: str, operation: str) -> None:
        self.ok = metrics.requests.child(model, operation, "2xx", "")
        self.duration = metrics.duration.child(operation, model, "")
        self.first_token = metrics.first_token.child(operation, model)
        self.per_token = metrics.per_token.child(operation, model)
        self.input = metrics.tokens.child(operation, model, "input")
        self.output = metrics.tokens.child(operation, model, "output")
        self.cached = metrics.tokens.child(operation, model, "cached_input")


class Metrics:
    """The metrics of one process, in a registry of their own."""

    def __init__(self, models: Iterable[str], pools: Iterable[str]) -> None:
        """`models`: every name and alias that requests may carry; all others count as `unknown`."""
        self.requests = CounterFamily(
            "extproc_requests",
            "Requests that ended, each once: by the status class that the client got (none: it left before) and the "
            "kind of error, empty where the answer was complete.",
            ("model", "operation", "status", "error_type"),
        )
        self.duration = HistogramFamily(
            "gen_ai_server_request_duration_seconds",
            "Time from a request's headers to the end of its answer.",
            (_OPERATION, _MODEL, "error_type"),
            _DURATION_S,
        )
        self.first_token = HistogramFamily(
            "gen_ai_server_time_to_first_token_seconds",
            "Time from a request's headers to the first piece of its answer, of complete streamed answers.",
            (_OPERATION, _MODEL),
            _FIRST_TOKEN_S,
        )
        self.per_token = HistogramFamily(
            "gen_ai_server_time_per_output_token_seconds",
            "Time per token after the first, of complete streamed answers.",
            (_OPERATION, _MODEL),
            _PER_TOKEN_S,
        )
        self.tokens = HistogramFamily(
            "gen_ai_client_token_usage",
            "Tokens of complete answers, as the engine counts them. Input includes cached input.",
            (_OPERATION, _MODEL, "gen_ai_token_type"),
            _TOKENS,
        )
        self.destination_ignored = CounterFamily(
            "extproc_destination_ignored",
            "Answers that came from a host which is no worker of the pool.",
            ("pool",),
        )
        self.retries = CounterFamily(
            "extproc_retries_seen",
            "Answers that came from another worker than the one chosen first: Envoy has tried again.",
            ("pool",),
        )
        self.protocol_errors = CounterFamily(
            "extproc_engine_protocol_errors", "Answers of engines that could not be read.", ("pool",)
        )
        self.cancelled = CounterFamily(
            "extproc_cancelled", "Exchanges that ended before their answer did.", ("operation",)
        )
        self.lost = CounterFamily(
            "extproc_fields_lost",
            "Requests dispatched without something that they asked for, by the field that asked for it.",
            ("operation", "field"),
        )
        self._lost_fields: set[str] = set()
        self.deadlines = CounterFamily(
            "extproc_deadline_exceeded", "Exchanges that took longer than limits.deadline_s.", ("operation",)
        )
        self.queue_wait = HistogramFamily(
            "extproc_queue_wait_seconds",
            "Time that requests waited for room on a pool with caps, of those that had to and got it.",
            ("pool",),
            _DURATION_S,
        )
        self.admission_refused = CounterFamily(
            "extproc_admission_refused",
            "Requests that a pool with caps refused: its queue was full, they waited too long in it, or they made room "
            "there for a higher priority.",
            ("pool", "reason"),
        )
        self.decisions = CounterFamily(
            "extproc_route_decisions",
            "Workers chosen, by the rule of the pool's policy that decided.",
            ("pool", "policy", "rule"),
        )
        self.estimate_error = HistogramFamily(
            "extproc_route_estimate_error_seconds",
            "How far the time to the first token, from the choice of the worker on, was from what the policy expected "
            "(`direction`: later or earlier), of streamed answers.",
            ("pool", "direction"),
            _ERROR_S,
        )
        self.models = frozenset(models)
        self._series: dict[tuple[str, str], _Series] = {}
        for pool in pools:  # a series that exists from the start shows its first event as an increase
            for family in (self.destination_ignored, self.retries, self.protocol_errors):
                family.child(pool)
        # No auto_describe: that would collect everything at each registration.
        self.registry = CollectorRegistry(auto_describe=False)
        for collector in (
            self.requests,
            self.duration,
            self.first_token,
            self.per_token,
            self.tokens,
            self.destination_ignored,
            self.retries,
            self.protocol_errors,
            self.cancelled,
            self.deadlines,
            self.decisions,
            self.estimate_error,
            self.lost,
            self.queue_wait,
            self.admission_refused,
        ):
            self.registry.register(collector)
        ProcessCollector(registry=self.registry)

    def lost_field(self, field: str) -> str:
        """The field's label: without indices, and of a bounded number of them."""
        field = _INDEX.sub("[*]", field)
        known = self._lost_fields
        if field not in known:
            if len(known) >= _MOST_FIELDS:
                return _OTHER
            known.add(field)
        return field

    def series(self, model: str, operation: str) -> _Series:
        """The children of a model and operation, made at the first call."""
        key = (model, operation)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = _Series(self, model, operation)
        return series

    def ended(self, model: str, operation: str, status: str, error_type: str, took_s: float) -> None:
        """Count a request that did not go well, or that never went to an engine."""
        self.requests.child(model, operation, status, error_type).inc()
        self.duration.child(operation, model, error_type).observe(took_s)


_INDEX = re.compile(r"\[\d+\]")
_MOST_FIELDS = 200
_OTHER = "other"


class RequestAccount:
    """One request's account: whatever happens and however often it is told, the request is counted once."""

    __slots__ = ("_begun_s", "_ended", "_metrics", "_started_s", "model", "operation", "pool")

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._started_s = perf_counter()
        self._begun_s = 0.0
        self._ended = False
        self.operation = UNKNOWN
        self.model = UNKNOWN
        self.pool = ""

    def names_model(self, model: str) -> None:
        """The model as the client wrote it."""
        if model in self._metrics.models:
            self.model = model

    def begins(self) -> None:
        """The first piece of a streamed answer goes to the client."""
        self._begun_s = perf_counter()

    def completes(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> None:
        """The engine's answer is complete and has all gone to the client."""
        if self._ended:
            return
        self._ended = True
        now_s = perf_counter()
        series = self._metrics.series(self.model, self.operation)
        series.ok.value += 1
        series.duration.observe(now_s - self._started_s)
        series.input.observe(prompt_tokens)
        series.output.observe(completion_tokens)
        series.cached.observe(cached_tokens)
        begun_s = self._begun_s
        if begun_s:
            series.first_token.observe(begun_s - self._started_s)
            if completion_tokens > 1:
                series.per_token.observe((now_s - begun_s) / (completion_tokens - 1))

    def replies(self, status: int, error_type: str) -> None:
        """The gateway answers itself, or an answer breaks: with the status that the client gets, or has got."""
        if self._ended:
            return
        self._ended = True
        took_s = perf_counter() - self._started_s
        self._metrics.ended(self.model, self.operation, f"{status // 100}xx", error_type, took_s)

    def closes(self) -> None:
        """The exchange is over. If nothing has ended the request, it was cancelled."""
        if self._ended:
            return
        self._ended = True
        self._metrics.cancelled.child(self.operation).inc()
        status = "2xx" if self._begun_s else ""
        took_s = perf_counter() - self._started_s
        self._metrics.ended(self.model, self.operation, status, CANCELLED, took_s)

    def loses(self, fields: Iterable[str]) -> None:
        """It is dispatched without what these fields ask for."""
        metrics = self._metrics
        for field in {metrics.lost_field(field) for field in fields}:
            metrics.lost.child(self.operation, field).inc()

    def exceeds_deadline(self) -> None:
        """The deadline passed; how the request ends is told besides."""
        if not self._ended:
            self._metrics.deadlines.child(self.operation).inc()

    def destination_ignored(self) -> None:
        """A host that is no worker of the pool answers."""
        self._metrics.destination_ignored.child(self.pool).inc()

    def retried(self) -> None:
        """Another worker answers than the one chosen first."""
        self._metrics.retries.child(self.pool).inc()

    def protocol_error(self) -> None:
        """The engine's answer cannot be read."""
        self._metrics.protocol_errors.child(self.pool).inc()
