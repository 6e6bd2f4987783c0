"""Results without ids find their calls: the oldest of their function, as a list that is searched would say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.dialects.waiting_calls import WaitingCalls

NAMES = st.sampled_from(["f", "g"])
STEPS = st.lists(
    st.one_of(st.tuples(st.just("add"), NAMES), st.tuples(st.none() | st.integers(0, 9), st.none() | NAMES))
)


@given(STEPS)
def test_the_oldest_call_of_a_function_is_answered_first(steps: list[tuple[str | int | None, str | None]]) -> None:
    calls = WaitingCalls()
    waiting: list[tuple[str, str]] = []
    added = 0
    for step, name in steps:
        if step == "add":
            assert name is not None
            calls.add(str(added), name)
            waiting.append((str(added), name))
            added += 1
            continue
        call_id = None if step is None else str(step)
        expected = next((each for each in waiting if each[0] == call_id), None)
        if expected is None:
            expected = next((each for each in waiting if name in (None, each[1])), None)
        assert calls.take(call_id, name) == expected
        if expected is not None:
            waiting.remove(expected)


def test_an_id_that_comes_again_is_the_later_call() -> None:
    calls = WaitingCalls()
    calls.add("1", "f")
    calls.add("1", "g")
    assert calls.take(None, "f") is None
    assert calls.take(None, "g") == ("1", "g")
    assert calls.take(None, None) is None
