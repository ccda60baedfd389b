"""The tables: what a leg is doing, and what follows a turn."""

from __future__ import annotations

import pytest

from lionnb.errors import IllegalTransitionError
from lionnb.legs.states import ESCALATION, FOLLOWS, TRANSITIONS, LegPhase, TurnEnd, step
from lionnb.records import RunStatus


def test_the_tables_know_every_state():
    assert set(TRANSITIONS) == set(LegPhase) and set(FOLLOWS) == set(TurnEnd)
    assert all(to <= set(LegPhase) for to in TRANSITIONS.values())
    assert set(ESCALATION) <= set(TurnEnd) and len(set(ESCALATION)) == len(ESCALATION)


def test_only_the_end_is_terminal_and_every_phase_reaches_it():
    assert [p for p, to in TRANSITIONS.items() if not to] == [LegPhase.ENDED]
    for frm in set(LegPhase) - {LegPhase.ENDING, LegPhase.ENDED}:
        assert LegPhase.ENDING in TRANSITIONS[frm]
    assert TRANSITIONS[LegPhase.ENDING] == {LegPhase.ENDED}


@pytest.mark.parametrize("frm", LegPhase)
@pytest.mark.parametrize("to", LegPhase)
def test_a_step_that_the_table_lacks_raises(frm, to):
    if to in TRANSITIONS[frm]:
        assert step(frm, to) is to
    else:
        with pytest.raises(IllegalTransitionError):
            step(frm, to)


def test_what_follows_a_turn():
    """Returned or CANCEL: drain; raised: failed; deadline: timed out; stop: cancelled."""
    on = {TurnEnd.RETURNED, TurnEnd.NOTHING, TurnEnd.CLEAN_STOP, TurnEnd.TURN_CANCELLED}
    assert {end for end, status in FOLLOWS.items() if status is None} == on
    assert FOLLOWS[TurnEnd.RAISED] is RunStatus.FAILED
    assert FOLLOWS[TurnEnd.DEADLINE] is RunStatus.TIMED_OUT
    assert FOLLOWS[TurnEnd.STOPPED] is FOLLOWS[TurnEnd.TASK_CANCELLED] is RunStatus.CANCELLED


def test_a_turn_that_goes_on_is_never_a_reason_to_end_and_the_other_way_round():
    """Every reason to cancel but a cancelled turn ends the leg, and a stop outranks the deadline."""
    assert [FOLLOWS[why] for why in ESCALATION] == [
        None,
        RunStatus.TIMED_OUT,
        RunStatus.CANCELLED,
        RunStatus.CANCELLED,
    ]
