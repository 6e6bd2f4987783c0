"""From what was counted to rows with ratios and bars."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks.routing import report
from benchmarks.routing.contenders import Contender, smg_intervals
from benchmarks.routing.figures import Figures, Setting, figures, quantile
from benchmarks.routing.load import LoadResult, Outcome
from benchmarks.routing.trace import Scenario

SETTING = Setting(1.0, 2_000_000, 8.0, 20.0)


def made(contender: Contender, mean_s: float, p99_s: float, cached: float = 0.3, cores: float = 0.2) -> Figures:
    return Figures(
        contender=contender, setting=SETTING, requests=1, failed={}, mean_s=mean_s, p50_s=mean_s, p90_s=p99_s,
        p99_s=p99_s, slowdown_p99=3.0, cached_share=cached, busy=[0.5, 0.7], gateway_cores=[cores], engines_cores=0.1,
        client_cores=0.1, client_late_p99_ms=1.0, steps_late_ms=0.1, steps_latest_ms=1.0, elapsed_s=10.0,
        most_in_flight=9,
    )  # fmt: skip


def test_times_are_model_time_and_no_answer_is_worse_than_any():
    outcomes = [
        Outcome(0.0, first_s=0.1, prompt_tokens=1000, cached_tokens=200, status="ok"),
        Outcome(0.0, first_s=0.3, prompt_tokens=1000, cached_tokens=999, status="ok"),
        Outcome(0.0, first_s=0.2, status="broken off in the stream"),
        Outcome(0.0, status="HTTP 503"),
    ]
    total = {"computed_tokens": 8000, "late_ms": 2.0, "steps": 4, "latest_ms": 9.0}
    result = LoadResult(outcomes, elapsed_s=2.0, cpu_s=0.5)
    seen = figures(Contender.TTFT, SETTING, result, [total, total], [0.5, 1.0], 8000.0, [0.4, 0.2], 1.0)
    assert seen.mean_s == pytest.approx((0.1 + 0.3 + 0.2) / 3 * 8)
    assert (seen.p50_s, seen.p99_s) == (pytest.approx(0.2 * 8), math.inf)
    assert seen.failed == {"broken off in the stream": 1, "HTTP 503": 1}
    assert seen.cached_share == pytest.approx(1199 / 2000)
    assert seen.busy == [pytest.approx(8000 / (4000 * 16)), pytest.approx(8000 / (8000 * 16))]
    assert (seen.gateway_cores, seen.engines_cores, seen.client_cores) == ([0.2, 0.1], 0.5, 0.25)
    assert seen.as_json()["p99_s"] is None


def test_slowdown_is_relative_to_the_own_uncached_prefill_of_at_least_a_step():
    outcomes = [
        Outcome(0.0, first_s=0.1, prompt_tokens=8000, cached_tokens=0, status="ok"),
        Outcome(0.0, first_s=0.1, prompt_tokens=8000, cached_tokens=7999, status="ok"),
    ]
    result = LoadResult(outcomes, elapsed_s=1.0)
    total = {"computed_tokens": 1, "late_ms": 0.0, "steps": 0, "latest_ms": 0.0}
    assert figures(Contender.SMG, SETTING, result, [total], [1.0], 8000.0, [0.0], 0.0).slowdown_p99 == pytest.approx(
        0.8 / 0.02
    )


def test_quantiles_are_values_that_were_seen():
    values = list(range(1, 101))
    assert [quantile(values, share) for share in (0.5, 0.9, 0.99, 1.0)] == [50, 90, 99, 100]
    assert quantile([7.0], 0.5) == 7.0


def test_ratios_are_to_smgs_better_setting_and_to_the_blind_policy():
    group = [
        made(Contender.TTFT, 1.0, 4.0, 0.36),
        made(Contender.LEAST_LOAD, 1.6, 9.0),
        made(Contender.SMG_EVENTS, 2.0, 8.0),
        made(Contender.SMG, 4.0, 7.0),
    ]
    rows = {row["name"]: row for row in report.rows(SETTING, group, 0.4)}
    mean, p99 = rows["trace-1.0-mean"], rows["trace-1.0-p99"]
    assert (mean["ratio_smg"], mean["ratio_blind"], mean["missed"]) == (0.5, 0.625, [])
    assert p99["ratio_smg"] == 0.5
    assert mean["share_of_ideal"] == pytest.approx(0.9)


def test_missed_bars_are_named():
    group = [made(Contender.TTFT, 1.0, 4.0, 0.2, cores=0.6), made(Contender.SMG, 1.25, 4.0)]
    rows = {row["name"]: row for row in report.rows(SETTING, group, 0.4)}
    assert rows["trace-1.0-mean"]["missed"] == ["ratio_smg 0.80 > 0.6", "ttft used 0.60 cores"]
    assert rows["trace-1.0-p99"]["missed"] == ["ratio_smg 1.00 > 0.75", "ttft used 0.60 cores"]
    assert "share_of_ideal 0.50 < 0.9" in rows["trace-1.0-cached"]["missed"]
    assert rows["trace-1.0-p50"]["missed"] == []


def test_what_was_not_measured_has_no_ratio():
    (mean, *_) = report.rows(SETTING, [made(Contender.SMG, 2.0, 8.0)], None)
    assert (mean["ours"], mean["ratio_smg"], mean["ratio_blind"], mean["missed"]) == (None, None, None, [])


def test_rows_of_other_settings_stay_in_the_file(tmp_path):
    file = tmp_path / "build" / "rows.json"
    report.write_json([{"name": "a", "ours": 1}, {"name": "b", "ours": 1}], file, ("name",))
    report.write_json([{"name": "b", "ours": 2}], file, ("name",))
    assert json.loads(file.read_text()) == [{"name": "a", "ours": 1}, {"name": "b", "ours": 2}]


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        (SETTING, "trace-1.0"),
        (Setting(0.6, 500_000, 8.0, 20.0), "trace-0.6-kv0.5M"),
        (Setting(1.0, 2_000_000, 4.0, 20.0), "trace-1.0-x4"),
        (Setting(1.0, 2_000_000, 8.0, 20.0, Scenario.KILL), "kill-1.0"),
    ],
)
def test_names_of_settings(setting, name):
    assert setting.name == name


def test_the_peers_intervals_shrink_with_the_clock():
    options = smg_intervals(8.0)
    given = dict(zip(options[::2], map(int, options[1::2]), strict=True))
    assert given["--load-monitor-interval"] == 1
    assert given["--worker-warmup-secs"] == 8
    assert given["--worker-stale-secs"] > given["--load-monitor-interval"]
    assert smg_intervals(1.0) == []


def test_ratios_at_half_the_speed_are_compared():
    row = {"name": "trace-1.0-mean", "speed_up": 8.0, "ratio_smg": 0.5, "ratio_blind": 0.8}
    slower = {"name": "trace-1.0-x4-mean", "speed_up": 4.0, "ratio_smg": 0.51, "ratio_blind": 0.9}
    other = {"name": "trace-0.6-mean", "speed_up": 8.0, "ratio_smg": 0.5, "ratio_blind": 0.8}
    same, changed = report.at_half_the_speed([row, slower, other])
    assert "MISSED" not in same
    assert "+12.5%, MISSED" in changed


def test_a_run_on_a_machine_that_was_late_is_marked():
    late = made(Contender.SMG, 2.0, 8.0)
    late.steps_latest_ms = 2_000.0
    (mean, *_) = report.rows(SETTING, [made(Contender.TTFT, 1.0, 4.0), late], None)
    assert mean["missed"] == ["the machine was late in the run of smg"]
    assert "2000!" in report.table([late])
