"""Worker URLs in every form that people write."""

from __future__ import annotations

import pytest

from extproc.cli.many_values import repeat_option, split_commas


@pytest.mark.parametrize(
    ("written", "understood"),
    [
        (["--u", "a", "b", "--policy", "random"], ["--u", "a", "--u", "b", "--policy", "random"]),
        (["--u", "a", "--u", "b"], ["--u", "a", "--u", "b"]),
        (["--u=a", "b", "c"], ["--u", "a", "--u", "b", "--u", "c"]),
        (["--policy", "random", "--u", "a"], ["--policy", "random", "--u", "a"]),
        (["--u", "a", "--flag", "b"], ["--u", "a", "--flag", "b"]),
        (["--u", "a,b", "c"], ["--u", "a,b", "--u", "c"]),
        # A missing value is left for the command line library to complain about.
        (["--u"], ["--u"]),
        (["--u", "--policy", "random"], ["--u", "--policy", "random"]),
        ([], []),
    ],
)
def test_values_after_one_another_become_a_repeated_option(written: list[str], understood: list[str]) -> None:
    assert repeat_option(written, ["--u"]) == understood


def test_commas_separate_and_duplicates_and_spaces_are_dropped() -> None:
    assert split_commas(["a:1,b:2", " c:3 ", "b:2,"]) == ["a:1", "b:2", "c:3"]
