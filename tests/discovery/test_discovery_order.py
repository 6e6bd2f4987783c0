"""Envoy learns first of a worker that comes, and last of one that goes; what operators did outlives a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from discovery_helpers import Place, found

from extproc.discovery.build import build_discovery
from extproc.discovery.discovery import ENVOY_NOTICES_S, ChangeError
from extproc.discovery.roster import Found

A, B, C = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"


async def test_one_that_comes_is_in_the_file_first_and_may_be_chosen_a_second_later(tmp_path: Path) -> None:
    place = Place(tmp_path, A)
    await place.discovery.start()
    assert place.done == [("written", [A]), ("published", {A: "in"})]
    assert place.discovery.roster["main"][0].wait_s == 0.0
    await place.source.listening.wait()
    place.source.tell(found(B))
    await place.until(("published", {A: "in", B: "in"}))
    assert place.done[2:] == [("written", [A, B]), ("published", {A: "in", B: "in"})]
    waits = {entry.address: entry.wait_s for entry in place.discovery.roster["main"]}
    assert waits[A] == 0.0
    assert ENVOY_NOTICES_S - 0.5 < waits[B] <= ENVOY_NOTICES_S
    await place.discovery.stop()


async def test_one_that_goes_drains_first_and_leaves_the_file_when_nothing_runs_on_it(tmp_path: Path) -> None:
    place = Place(tmp_path, A)
    await place.discovery.start()
    await place.source.listening.wait()
    place.source.tell(found(B))
    await place.until(("published", {A: "in", B: "in"}))
    place.running = {("main", B): 1}
    place.source.tell([])
    await place.until(("published", {A: "in", B: "draining"}))
    assert place.files["main"] == [A, B]
    place.running = {}
    await place.until(("published", {A: "in"}))
    assert place.done[-3:] == [
        ("published", {A: "in", B: "draining"}),
        ("written", [A]),
        ("published", {A: "in"}),
    ]
    await place.discovery.stop()


async def test_one_on_which_requests_never_end_leaves_after_its_time(tmp_path: Path) -> None:
    place = Place(tmp_path, A, drain_s=0.2)
    await place.discovery.start()
    await place.source.listening.wait()
    place.source.tell(found(B))
    await place.until(("published", {A: "in", B: "in"}))
    place.running = {("main", B): 1}
    place.source.tell([])
    await place.until(("published", {A: "in"}))
    await place.discovery.stop()


async def test_one_that_comes_back_while_it_drains_is_as_it_was(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.discovery.start()
    await place.source.listening.wait()
    place.source.tell(found(A))
    await place.until(("published", {A: "in"}))
    place.running = {("main", A): 1}
    place.source.tell([])
    await place.until(("published", {A: "draining"}))
    place.source.tell(found(A))
    await place.until(("published", {A: "in"}))
    assert place.files["main"] == [A]
    await place.discovery.stop()


async def test_what_was_added_and_drained_by_hand_and_what_sources_said_outlives_a_restart(tmp_path: Path) -> None:
    place = Place(tmp_path, A)
    await place.discovery.start()
    await place.source.listening.wait()
    place.source.tell(found(B))
    assert place.discovery.add("main", Found(C, "by-hand"))
    place.discovery.drain("main", A, drain=True)
    after = ("published", {A: "draining", B: "in", C: "in"})
    await place.until(after)
    await place.discovery.stop()

    again = Place(tmp_path, A)
    await again.discovery.start()  # its source says nothing
    assert again.done[-1] == after
    assert again.labels() == [A, B, "by-hand"]
    again.discovery.drain("main", A, drain=False)
    again.discovery.remove("main", C)
    await again.until(("published", {A: "in", B: "in", C: "draining"}))
    await again.discovery.stop()

    third = Place(tmp_path, A)
    await third.discovery.start()
    assert third.done[-1] == ("published", {A: "in", B: "in"})
    await third.discovery.stop()


async def test_a_worker_that_gets_the_address_of_a_drained_one_is_not_drained(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.discovery.start()
    await place.source.listening.wait()
    place.source.tell(found(A))
    await place.until(("published", {A: "in"}))
    place.discovery.drain("main", A, drain=True)
    await place.until(("published", {A: "draining"}))
    place.source.tell([])
    await place.until(("published", {}))
    place.source.tell(found(A))
    await place.until(("published", {A: "in"}))
    await place.discovery.stop()


async def test_what_cannot_be_is_refused_with_the_reason(tmp_path: Path) -> None:
    place = Place(tmp_path, A, engine="mlx")
    await place.discovery.start()
    discovery = place.discovery
    for status, words, change in (
        (404, "there is no pool 'x'; there are main, other", lambda: discovery.add("x", Found(B))),
        (409, "is in the pool main, from configuration", lambda: discovery.add("other", Found(A))),
        (400, "cannot name a rank", lambda: discovery.add("main", Found(B, ranks=2))),
        (404, "has no worker", lambda: discovery.drain("main", B, drain=True)),
        (409, "comes from configuration: take it out there, or drain it here", lambda: discovery.remove("main", A)),
    ):
        with pytest.raises(ChangeError, match=words) as caught:
            change()
        assert caught.value.status == status
    assert len(place.done) == 2
    await discovery.stop()


async def test_an_engine_whose_protocol_has_no_ranks_gets_none_and_names_stay_unique(tmp_path: Path) -> None:
    place = Place(tmp_path, engine="mlx")
    await place.discovery.start()
    await place.source.listening.wait()
    place.source.tell([Found(A, "same", ranks=4), Found(B, "same")])
    await place.until(("published", {A: "in", B: "in"}))
    assert [(entry.label, entry.ranks) for entry in place.discovery.roster["main"]] == [("same", 1), (B, 1)]
    await place.discovery.stop()


async def test_a_file_of_the_past_that_is_broken_is_begun_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "workers.json").write_text("{")
    place = Place(tmp_path, A)
    await place.discovery.start()
    assert place.done[-1] == ("published", {A: "in"})
    assert "begun anew" in caplog.text
    await place.discovery.stop()


async def test_a_folder_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    place = Place(tmp_path, A)
    await place.discovery.start()
    await place.source.listening.wait()
    write, fails = place.discovery._write_endpoints, [True]

    def sometimes(pool: str, addresses: object) -> bool:
        if fails:
            fails.pop()
            raise PermissionError(13, "Permission denied")
        return write(pool, addresses)  # type: ignore[arg-type]

    place.discovery._write_endpoints = sometimes
    place.source.tell(found(B))
    await place.until(("published", {A: "in", B: "in"}))
    await place.discovery.stop()


async def test_what_others_do_to_envoys_files_does_not_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extproc.discovery.discovery._FILE_CHECK_S", 0.05)
    place = Place(tmp_path, A)
    discovery = build_discovery(place.config, place._publish, place._running)
    await discovery.start()
    file = tmp_path / "xds" / "eds" / "main.yaml"
    before = file.read_text()
    for harm in (file.unlink, lambda: file.write_text("{}")):
        harm()
        async with asyncio.timeout(5):
            while not file.exists() or file.read_text() != before:  # noqa: ASYNC110 - nothing announces it
                await asyncio.sleep(0.01)
    await discovery.stop()


async def test_one_that_was_just_added_can_be_drained_and_removed_before_it_is_there(tmp_path: Path) -> None:
    place = Place(tmp_path, A)
    await place.discovery.start()
    assert place.discovery.add("main", Found(B))
    assert not place.discovery.add("main", Found(B))
    place.discovery.drain("main", B, drain=True)
    await place.until(("published", {A: "in", B: "draining"}))
    assert place.discovery.add("main", Found(C))
    place.discovery.remove("main", C)
    with pytest.raises(ChangeError):
        place.discovery.drain("main", C, drain=True)
    await place.discovery.stop()
