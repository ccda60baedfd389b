"""What a leg used, as the provider reported it; and the caps that end it between turns."""

from __future__ import annotations

import pytest

from lionnb.errors import LegFailedError
from lionnb.records import Fate, RunStatus, Usage
from lionnb.testing import Reply
from tests.legs.story import ended


def said(text, used):
    return Reply(text=text, usage=used)


async def test_usage_is_told_for_each_turn_and_for_the_leg(scene):
    s = scene((said("one", (10, 3)), said("two", (20, 4))))
    leg = s.leg()
    await s.working()
    leg.steer("more")
    s.answer_all()
    result = await leg
    assert [(t.usage.input_tokens, t.usage.output_tokens) for t in result.turns] == [(10, 3), (20, 4)]
    assert (result.usage.input_tokens, result.usage.output_tokens) == (30, 7) and result.usage == leg.usage
    assert [t.usage.total_tokens for t in s.stored_turns(leg)] == [13, 24]


async def test_unknown_stays_unknown_and_is_never_zero(scene):
    s = scene((said("one", None),))
    leg = s.leg(max_tokens=1)  # what is not known reaches no cap
    s.answer_all()
    result = await leg
    assert result.usage == Usage() and result.usage.total_tokens is None and result.note is None


async def test_what_is_known_in_part_is_summed_in_part(scene):
    s = scene((said("one", None), said("two", (5, 2))))
    leg = s.leg()
    await s.working()
    leg.steer("more")
    s.answer_all()
    result = await leg
    assert [t.usage.total_tokens for t in result.turns] == [None, 7] and result.usage.total_tokens == 7


async def test_a_failed_turn_counts_what_it_used(scene):
    """Its tools, its parsing, something after the answer failed: the tokens are spent."""
    from pydantic import BaseModel

    class Number(BaseModel):
        n: int

    s = scene((said("no number at all", (10, 3)),))
    leg = s.leg(op="communicate", response_format=Number, num_parse_retries=0)
    s.answer_all()
    await ended(leg)
    with pytest.raises(LegFailedError):
        await leg
    assert leg.status is RunStatus.FAILED
    assert leg.turns[0].usage.total_tokens >= 13 and leg.usage == leg.turns[0].usage


async def test_a_cap_of_turns_ends_the_leg_and_rejects_what_is_pending(scene):
    s = scene()
    leg = s.leg(max_turns=2)
    await s.working()
    first = leg.steer("fits")
    await s.answer()
    await s.working()
    second = leg.steer("does not fit")
    s.answer_all()
    result = await leg
    assert (result.status, len(result.turns), len(s.requests)) == (RunStatus.COMPLETED, 2, 2)
    assert result.note == "max_turns=2 was reached" == s.run(leg).ended_note
    assert [(await r).fate for r in (first, second)] == [Fate.APPLIED, Fate.REJECTED]
    assert "the run ended" in second.sentence


async def test_a_cap_of_tokens_ends_the_leg_between_turns(scene):
    s = scene((said("one", (60, 20)), said("two", (30, 10)), "never"))
    leg = s.leg(max_tokens=100)
    await s.working()
    first = leg.steer("fits, for 80 are used")
    await s.answer()
    await s.working()
    second = leg.steer("does not fit")
    s.answer_all()
    result = await leg
    assert result.note == "max_tokens=100 was reached (120 used)" and len(s.requests) == 2
    assert [(await r).fate for r in (first, second)] == [Fate.APPLIED, Fate.REJECTED]


async def test_a_turn_that_called_nobody_is_no_turn_of_the_cap(scene):
    """A continuation that found nothing, or a wait that was cancelled, costs nothing."""
    s = scene()
    leg = s.leg(max_turns=2)
    await s.working()
    receipt = leg.steer("taken back")
    claim = s.store.hold("claim_all")
    await s.answer()
    await claim.reached()
    s.store.ask(lambda core: core.withdraw(receipt.control_id, "ana", 1.0))
    late = s.store.ask(lambda core: core.admit(leg.session_id, text="and this one", by="eve", now=1.0))
    s.store.ask(lambda core: core.withdraw(late.unwrap().id, "ana", 1.0))
    end = s.store.hold("end")
    claim.open()
    await end.reached()
    s.store.ask(lambda core: core.admit(leg.session_id, text="lands", by="eve", now=1.0)).unwrap()
    end.open()
    s.answer_all()
    result = await leg
    assert [t.end for t in result.turns] == ["returned", "nothing", "returned"] and "> lands" in s.last(1)


async def test_money_is_told_only_where_it_is_reported(scene):
    s = scene()
    leg = s.leg()
    s.answer_all()
    assert (await leg).usage.cost_usd is None
