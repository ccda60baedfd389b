"""A leg's limits: what is one, what is left, and when they end it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lionnb.legs.budget import Budget, count_limit, seconds_limit

YEAR = 365 * 24 * 3600


@pytest.mark.parametrize(
    "value", [math.nan, -math.inf, 0, 0.0, -1, -0.5, YEAR + 1, 1e300, 10**400], ids=lambda v: f"{v!r:.8}"
)
def test_seconds_that_are_no_limit_are_refused(value):
    """h11, h13, h15, h23."""
    with pytest.raises(ValueError, match="timeout_s"):
        seconds_limit("timeout_s", value)


@pytest.mark.parametrize("value", [True, False, "60", b"60", [60], 1j, object()])
def test_what_is_no_number_of_seconds_is_refused(value):
    with pytest.raises(TypeError, match="a number of seconds or None"):
        seconds_limit("timeout_s", value)


@pytest.mark.parametrize(
    ("value", "limit"), [(None, None), (math.inf, None), (1, 1.0), (0.25, 0.25), (YEAR, YEAR), (np.float32(2), 2.0)]
)
def test_none_and_infinity_are_no_limit(value, limit):
    """h13, h23."""
    assert seconds_limit("timeout_s", value) == limit


@pytest.mark.parametrize("value", [0, -1, -(10**9)])
def test_counts_below_one_are_refused(value):
    with pytest.raises(ValueError, match="max_turns"):
        count_limit("max_turns", value)


@pytest.mark.parametrize("value", [True, 1.0, math.inf, math.nan, "3", None.__class__])
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(TypeError, match="a whole number or None"):
        count_limit("max_turns", value)


def test_numbers_of_numpy_are_numbers():
    assert type(count_limit("max_turns", np.int64(3))) is int and type(seconds_limit("x", np.float64(3))) is float


@given(st.floats() | st.integers() | st.booleans() | st.text(max_size=3) | st.none())
def test_a_limit_is_either_refused_or_can_be_waited_for(value):
    """Whatever is given: an error, no limit, or a finite positive number up to a year."""
    for check in (seconds_limit, count_limit):
        try:
            limit = check("x", value)
        except (TypeError, ValueError) as exc:
            assert str(exc).startswith("x")
        else:
            assert limit is None or (limit > 0 and math.isfinite(limit))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def started(**limits) -> tuple[Budget, Clock]:
    clock = Clock()
    budget = Budget(clock=clock, **limits)
    budget.start()
    return budget, clock


def test_the_original_budget_is_spent_and_never_extended():
    """ADR-0108: continuations spend whatever remains, measured from leg start."""
    budget, clock = started(timeout_s=10)
    clock.now += 4
    budget.start()  # a second start begins nothing anew
    assert budget.left_s == 6 and not budget.expired
    clock.now += 6
    assert budget.left_s == 0.0 and budget.expired
    clock.now += 100
    assert budget.left_s == 0.0


def test_before_the_start_all_of_it_is_left():
    clock = Clock()
    budget = Budget(timeout_s=10, clock=clock)
    clock.now += 50
    assert budget.left_s == 10 and not budget.expired


def test_without_a_timeout_it_never_expires():
    budget, clock = started()
    clock.now += 10**9
    assert budget.left_s is None and not budget.expired and budget.will_not_fit(10**9) is None


@pytest.mark.parametrize(
    ("limits", "turns", "tokens", "said"),
    [
        ({}, 99, 10**9, None),
        ({"max_turns": 2}, 1, None, None),
        ({"max_turns": 2}, 2, None, "max_turns=2"),
        ({"max_turns": 2}, 3, None, "max_turns=2"),
        ({"max_tokens": 100}, 9, 99, None),
        ({"max_tokens": 100}, 9, 100, "max_tokens=100"),
        ({"max_tokens": 100}, 9, None, None),  # unknown is not over the limit
        ({"max_turns": 5, "max_tokens": 100}, 5, 200, "max_turns=5"),
    ],
)
def test_a_cap_ends_a_leg_when_it_is_reached(limits, turns, tokens, said):
    cap = started(**limits)[0].cap_reached(turns, tokens)
    assert (cap is None) if said is None else (said in cap)


def test_what_will_not_fit_is_known_in_advance():
    budget, clock = started(timeout_s=10, max_turns=2)
    assert budget.will_not_fit(1) is None
    assert "max_turns=2" in budget.will_not_fit(2)
    clock.now += 10
    assert "deadline" in budget.will_not_fit(1)
