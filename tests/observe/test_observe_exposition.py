"""What is served at /metrics: text that Prometheus' own parser reads, with what was counted in it."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from extproc.observe.exposition import Family, Sample, families, render
from extproc.observe.instruments import CounterFamily, Histogram, HistogramFamily
from extproc.observe.metrics import Metrics, RequestAccount

BOUNDS = (0.1, 1.0, 10.0)


async def test_a_parser_that_we_did_not_write_reads_it_back() -> None:
    metrics = Metrics(["m"], ["pool"])
    account = RequestAccount(metrics)
    account.names_model("m")
    account.completes(3, 2, 1)
    text = (await render(families(metrics.registry))).decode()
    read = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    collected = {
        (sample.name, tuple(sorted(sample.labels))): sample.value
        for family in families(metrics.registry)
        for sample in family.samples
        if not sample.name.startswith("process_")  # they go on
    }
    assert len(collected) > 50
    assert {key: read[key] for key in collected} == collected
    types = {family.name: family.type for family in text_string_to_metric_families(text)}
    assert types["extproc_requests"] == "counter"
    assert types["gen_ai_server_request_duration_seconds"] == "histogram"
    assert all(family.documentation for family in text_string_to_metric_families(text))


@given(st.text(max_size=30))
def test_any_label_is_quoted(label: str) -> None:
    registry = CollectorRegistry()
    Gauge("g", "text with \\ and\nlines", ["l"], registry=registry).labels(label).set(1.5)
    text = asyncio.run(render(families(registry))).decode()
    if "\r" in label:  # the parser takes it for an end of line, the format does not
        return
    (family,) = text_string_to_metric_families(text)
    (sample,) = family.samples
    assert (sample.labels, sample.value) == ({"l": label}, 1.5)


@given(st.lists(st.floats(0, 20, allow_nan=False)))
def test_a_histogram_counts_what_is_at_most_each_bound(values: list[float]) -> None:
    family = HistogramFamily("h", "h", (), BOUNDS)
    child = family.child()
    for value in values:
        child.observe(value)
    (metric,) = family.collect()
    counts = {s.labels["le"]: s.value for s in metric.samples if s.name == "h_bucket"}
    assert counts == {
        "0.1": sum(value <= 0.1 for value in values),
        "1.0": sum(value <= 1.0 for value in values),
        "10.0": sum(value <= 10.0 for value in values),
        "+Inf": len(values),
    }


def test_children_are_the_same_for_the_same_labels() -> None:
    family = CounterFamily("c", "c", ("a", "b"))
    assert family.child("x", "y") is family.child("x", "y")
    assert family.child("x", "y") is not family.child("y", "x")
    assert isinstance(HistogramFamily("h", "h", (), BOUNDS).child(), Histogram)


async def test_long_texts_are_made_in_slices() -> None:
    """While one is made, the loop turns for others."""
    samples = [Sample("g", (("worker", f"w{number}"),), float(number)) for number in range(20_000)]
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(turn())
    text = await render([Family("g", "gauge", "g", samples)])
    other.cancel()
    assert text.count(b"\n") == 20_002
    assert turns > 3
