"""Metrics of several processes add up, and do not fall when one ends."""

from __future__ import annotations

from extproc.observe.exposition import Family, Sample
from extproc.supervisor.totals import Retired, add_up


def counter(value: float, worker: str = "a") -> Family:
    return Family("c_total", "counter", "help of c", [Sample("c_total", (("worker", worker),), value)])


def gauge(name: str, value: float) -> Family:
    return Family(name, "gauge", f"help of {name}", [Sample(name, (), value)])


def values(families: list[Family]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(sample.name, sample.labels): sample.value for family in families for sample in family.samples}


def test_counters_are_summed_by_their_labels() -> None:
    total = add_up([[counter(3), counter(1, "b")], [counter(4)]])
    assert values(total) == {("c_total", (("worker", "a"),)): 7, ("c_total", (("worker", "b"),)): 1}
    (family,) = total
    assert (family.name, family.kind, family.documentation) == ("c_total", "counter", "help of c")


def test_histograms_are_summed_bucket_by_bucket() -> None:
    def histogram(low: float, high: float) -> Family:
        samples = [Sample("h_bucket", (("le", "1.0"),), low), Sample("h_bucket", (("le", "+Inf"),), high)]
        return Family("h", "histogram", "h", [*samples, Sample("h_count", (), high), Sample("h_sum", (), 2 * high)])

    assert values(add_up([[histogram(1, 3)], [histogram(2, 2)]])) == {
        ("h_bucket", (("le", "1.0"),)): 3,
        ("h_bucket", (("le", "+Inf"),)): 5,
        ("h_count", ()): 5,
        ("h_sum", ()): 10,
    }


def test_gauges_are_what_they_mean_for_all_together() -> None:
    parts = [
        [
            gauge("extproc_exchanges_in_flight", number),
            gauge("extproc_event_loop_longest_turn_seconds", number),
            gauge("extproc_worker_ready", number),
        ]
        for number in (2.0, 0.0, 1.0)
    ]
    assert values(add_up(parts)) == {
        ("extproc_exchanges_in_flight", ()): 3,
        ("extproc_event_loop_longest_turn_seconds", ()): 2,
        ("extproc_worker_ready", ()): 0,
    }


def test_a_total_does_not_fall_when_a_process_ends() -> None:
    retired = Retired()
    before = add_up([[counter(10)], [counter(5)], retired.families])
    retired.add([counter(10), gauge("extproc_exchanges_in_flight", 7)])
    after = add_up([[], [counter(5)], retired.families])
    assert values(before) == values(after)
    retired.add([counter(1)])
    assert values(add_up([[counter(5)], retired.families])) == {("c_total", (("worker", "a"),)): 16}


def test_what_only_one_process_has_is_kept() -> None:
    assert values(add_up([[], [gauge("g", 1.0)]])) == {("g", ()): 1.0}
