"""A request is counted once, whatever happens to it and however often it is told."""

from __future__ import annotations

import itertools

import pytest
from prometheus_client import CollectorRegistry

from extproc.observe.metrics import Metrics, RequestAccount


def requests(registry: CollectorRegistry) -> dict[tuple[str, str, str, str], float]:
    """Model, operation, status and error_type to how many."""
    return {
        (s.labels["model"], s.labels["operation"], s.labels["status"], s.labels["error_type"]): s.value
        for metric in registry.collect()
        for s in metric.samples
        if s.name == "extproc_requests_total"
    }


def count_of(registry: CollectorRegistry, name: str) -> float:
    return sum(s.value for metric in registry.collect() for s in metric.samples if s.name == name)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(["m", "alias"], ["pool"])


def account(metrics: Metrics, model: str = "m") -> RequestAccount:
    account = RequestAccount(metrics)
    account.operation = "chat"
    account.names_model(model)
    account.pool = "pool"
    return account


ENDS = {
    "completes": lambda a: a.completes(10, 5, 4),
    "replies": lambda a: a.replies(400, "invalid_request"),
    "closes": lambda a: a.closes(),
}


@pytest.mark.parametrize("order", list(itertools.permutations(ENDS)))
def test_only_the_first_end_counts(metrics: Metrics, order: tuple[str, ...]) -> None:
    one = account(metrics)
    for end in order:
        ENDS[end](one)
    expected = {
        "completes": ("m", "chat", "2xx", ""),
        "replies": ("m", "chat", "4xx", "invalid_request"),
        "closes": ("m", "chat", "", "cancelled"),
    }[order[0]]
    assert {key: value for key, value in requests(metrics.registry).items() if value} == {expected: 1}
    assert count_of(metrics.registry, "gen_ai_server_request_duration_seconds_count") == 1
    assert count_of(metrics.registry, "extproc_cancelled_total") == (order[0] == "closes")


def test_a_model_that_is_not_configured_makes_no_series(metrics: Metrics) -> None:
    for number in range(50):
        account(metrics, f"made-up-{number}").replies(404, "model_not_found")
    assert requests(metrics.registry) == {("unknown", "chat", "4xx", "model_not_found"): 50}


def test_tokens_are_counted_by_their_kind(metrics: Metrics) -> None:
    account(metrics).completes(100, 20, 60)
    account(metrics, "alias").completes(1, 1, 0)
    sums = {
        (s.labels["gen_ai_request_model"], s.labels["gen_ai_token_type"]): s.value
        for metric in metrics.registry.collect()
        for s in metric.samples
        if s.name == "gen_ai_client_token_usage_sum"
    }
    assert sums == {
        ("m", "input"): 100,
        ("m", "output"): 20,
        ("m", "cached_input"): 60,
        ("alias", "input"): 1,
        ("alias", "output"): 1,
        ("alias", "cached_input"): 0,
    }


def test_time_to_and_between_tokens_is_of_streams_only(metrics: Metrics) -> None:
    account(metrics).completes(1, 5, 0)
    streamed = account(metrics)
    streamed.begins()
    streamed.completes(1, 5, 0)
    of_one_token = account(metrics)
    of_one_token.begins()
    of_one_token.completes(1, 1, 0)
    assert count_of(metrics.registry, "gen_ai_server_time_to_first_token_seconds_count") == 2
    assert count_of(metrics.registry, "gen_ai_server_time_per_output_token_seconds_count") == 1
    assert count_of(metrics.registry, "gen_ai_server_request_duration_seconds_count") == 3


def test_a_stream_that_the_client_leaves_had_its_status(metrics: Metrics) -> None:
    one = account(metrics)
    one.begins()
    one.closes()
    assert requests(metrics.registry) == {("m", "chat", "2xx", "cancelled"): 1}


def test_a_deadline_after_the_end_is_none(metrics: Metrics) -> None:
    one = account(metrics)
    one.exceeds_deadline()
    one.replies(504, "timeout")
    one.exceeds_deadline()
    assert count_of(metrics.registry, "extproc_deadline_exceeded_total") == 1


def test_two_processors_in_one_process_count_apart() -> None:
    one, other = Metrics(["m"], ["pool"]), Metrics(["m"], ["pool"])
    account(one).completes(1, 1, 0)
    assert requests(other.registry) == {}


def test_fields_without_effect_are_counted_once_a_request_and_not_without_bound(metrics: Metrics) -> None:
    one = account(metrics)
    one.loses(["messages[0].a", "messages[7].a", "user"])
    one.loses(f"field{number}" for number in range(500))
    found = {
        s.labels["field"]: s.value
        for metric in metrics.registry.collect()
        for s in metric.samples
        if s.name == "extproc_fields_lost_total"
    }
    assert (found["messages[*].a"], found["user"]) == (1, 1)
    assert len(found) == 201
    assert "other" in found
