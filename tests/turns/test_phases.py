"""The phases of a turn as a table."""

from __future__ import annotations

import pytest

from lionnb.errors import IllegalTransitionError
from lionnb.turns.phases import TRANSITIONS, Phase, step


def test_every_phase_is_in_the_table_and_the_last_one_is_terminal():
    assert set(TRANSITIONS) == set(Phase)
    assert TRANSITIONS[Phase.CLOSED] == frozenset()
    assert {to for targets in TRANSITIONS.values() for to in targets} == set(Phase) - {Phase.ACTIVE}


def test_a_phase_never_moves_backward():
    """Source: ADR-0018 D1."""
    order = list(Phase)
    assert all(order.index(to) > order.index(frm) for frm, targets in TRANSITIONS.items() for to in targets)


@pytest.mark.parametrize("frm", list(Phase))
@pytest.mark.parametrize("to", list(Phase))
def test_a_step_that_the_table_lacks_raises_and_changes_nothing(frm, to):
    phase = frm
    if to in TRANSITIONS[frm]:
        assert step(phase, to) is to
        return
    with pytest.raises(IllegalTransitionError) as caught:
        phase = step(phase, to)
    assert phase is frm and (caught.value.frm, caught.value.to) == (frm.value, to.value)
