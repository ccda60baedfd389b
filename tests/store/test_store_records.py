"""The record of turns and signals, on every back end."""

from __future__ import annotations

import pytest

from lionnb.records import TurnOutcome, Usage


async def test_a_turn_comes_back_as_it_was_put(core, turn):
    put = turn(
        "t-1", branch_name="researcher", session_id="s-1", model="gpt", task="leg", started_at=2.0, ended_at=3.0,
        outcome=TurnOutcome.FAILED, error="ValueError: <b>no</b>", usage=Usage(input_tokens=3, cost_usd=0.5),
        blocks=({"name": "rules", "tokens": 9, "text": "…"},), skipped=("a",), failed=("b", "c"),
        degraded=({"name": "d", "why": "budget"},), carried=("c-1", "c-2"),
    )  # fmt: skip
    assert await core.put_turn(put, 1.0)
    assert await core.list_turns() == [put]


async def test_a_turn_is_one_row_from_its_wait_to_its_end(core, turn):
    for outcome, ended_at in ((TurnOutcome.WAITING, None), (TurnOutcome.RUNNING, None), (TurnOutcome.COMPLETED, 4.0)):
        assert await core.put_turn(turn("t-1", outcome=outcome, ended_at=ended_at), 1.0)
    assert [(row.outcome, row.ended_at) for row in await core.list_turns()] == [(TurnOutcome.COMPLETED, 4.0)]


async def test_an_old_copy_does_not_overwrite_a_turn_that_has_ended(core, turn):
    await core.put_turn(turn("t-1", outcome=TurnOutcome.COMPLETED, ended_at=4.0), 1.0)
    assert not await core.put_turn(turn("t-1", outcome=TurnOutcome.RUNNING, ended_at=None), 2.0)
    assert [row.outcome for row in await core.list_turns()] == [TurnOutcome.COMPLETED]


async def test_a_wait_that_never_became_a_turn_is_one_row(core, turn):
    for outcome in (TurnOutcome.WAITING, TurnOutcome.CANCELLED_WAITING):
        await core.put_turn(turn(None, queued_at=1.5, task="a", outcome=outcome), 1.0)
    await core.put_turn(turn(None, queued_at=1.6, task="a", outcome=TurnOutcome.WAITING), 1.0)
    assert [row.outcome for row in await core.list_turns()] == [TurnOutcome.CANCELLED_WAITING, TurnOutcome.WAITING]


async def test_many_turns_are_put_in_one_transaction_and_an_old_copy_overwrites_nothing(core, turn):
    await core.put_turns([], 1.0)
    await core.put_turns([turn(f"t-{i}", outcome=TurnOutcome.COMPLETED, ended_at=4.0) for i in range(3)], 1.0)
    await core.put_turns([turn("t-1", outcome=TurnOutcome.RUNNING, ended_at=None), turn("t-3", ended_at=5.0)], 2.0)
    assert [(row.turn_id, row.ended_at) for row in await core.list_turns()] == [
        ("t-0", 4.0), ("t-1", 4.0), ("t-2", 4.0), ("t-3", 5.0),
    ]  # fmt: skip


async def test_branches_are_found_by_their_beginning_whether_they_have_a_run_or_not(core, turn):
    for name in ("ab-2", "ab-1", "ab", "x%"):
        await core.put_turn(turn(f"t-{name}", branch_id=name), 1.0)
    assert await core.branches_of_turns("ab") == ["ab", "ab-1", "ab-2"]
    assert await core.branches_of_turns("ab-") == ["ab-1", "ab-2"]
    for nothing in ("", "%", "AB", "x_", "\x00", "\ud800", "a" * 300):
        assert await core.branches_of_turns(nothing) == []


async def test_turns_are_listed_in_the_order_in_which_they_were_asked_for(core, turn):
    for at, name, run in ((1.0, "t-2", "s-1"), (1.0, "t-1", None), (3.0, "t-4", "s-1"), (2.0, "t-3", "s-1")):
        await core.put_turn(turn(name, session_id=run, branch_id=f"b-{run}", queued_at=at), 1.0)
    await core.put_turn(turn("t-2", session_id="s-1", branch_id="b-s-1", queued_at=1.0, ended_at=9.0), 1.0)
    assert [row.turn_id for row in await core.list_turns()] == ["t-2", "t-1", "t-3", "t-4"]
    assert [row.turn_id for row in await core.list_turns("s-1")] == ["t-2", "t-3", "t-4"]
    assert [row.turn_id for row in await core.list_turns(branch_id="b-None")] == ["t-1"]


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"], ids=["nul", "surrogate"])
async def test_what_a_database_cannot_keep_never_costs_the_record_of_a_turn(core, turn, text):
    """A model's or a tool's text; a steer with such a text is refused at the door."""
    block = {"name": "x", "text": text}
    await core.put_turn(turn("t-1", error=text, blocks=(block,)), 1.0)
    (row,) = await core.list_turns()
    assert row.error == "a\ufffdb" and row.blocks == (block,)


async def test_signals_come_back_in_order_and_narrowed(core, event):
    await core.put_signals("b-1", [event(2, turn_id="t-1"), event(1, data={"text": "é\x00", "n": [1, None]})])
    await core.put_signals("b-2", [event(3)], session_id="s-1")
    await core.put_signals("b-2", [])
    assert [found.i for found in await core.list_signals()] == [2, 1, 3]
    assert await core.list_signals(turn_id="t-1") == [event(2, turn_id="t-1")]
    assert [found.i for found in await core.list_signals("b-2", session_id="s-1")] == [3]
    assert (await core.list_signals("b-1"))[1].data == {"text": "é\x00", "n": [1, None]}
