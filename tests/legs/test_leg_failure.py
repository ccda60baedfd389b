"""A leg that fails says so once, in one sentence, to whoever looks; and the history stays what it was."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from lionnb.errors import LegFailedError
from lionnb.records import RunStatus
from tests.legs.story import ended, heard

LEFT = pytest.mark.filterwarnings("ignore:turn .* left a question:UserWarning")


async def fail(s, error=None):
    leg = s.leg(name="survey")
    s.answer_all()
    await ended(leg)
    assert leg.status is RunStatus.FAILED
    return leg


async def test_awaiting_it_raises_one_sentence_with_model_turn_and_cause(scene):
    s = scene((ValueError("the provider\nsays no\n  at length"),))
    leg = await fail(s)
    with pytest.raises(LegFailedError) as caught:
        await leg
    error, said = caught.value, str(caught.value)
    assert "\n" not in said and said.count(leg.run_id) == 1
    assert leg.turns[0].turn_id[:8] in said and "gpt-4o-mini" in said
    assert type(error.__cause__).__name__ in said and "history is safe" in said
    assert error.__cause__ is leg.turns[0].error
    assert (error.run_id, error.turn_id) == (leg.run_id, leg.turns[0].turn_id)
    assert leg.note == said


async def test_what_a_provider_says_acts_on_no_terminal_and_forges_no_line_of_the_log(scene, caplog):
    """Escape codes and overrides of direction, in the log, the note, the row, the error and IPython's traceback."""
    s = scene((ValueError("no\x1b[2J\x9b31m\u202efdp.exe\u2028leg forged: completed\r\nleg forged"),))
    leg = await fail(s)
    with pytest.raises(LegFailedError) as caught:
        await leg
    (logged,) = [record.getMessage() for record in caplog.records if "failed in turn" in record.getMessage()]
    shown = [logged, str(caught.value), leg.note, s.run(leg).ended_note, *caught.value._render_traceback_()]
    assert all(line.isprintable() for text in shown for line in text.split("\n") if "forged" not in line), shown
    assert ("no" in logged or not s.cli) and "forged" not in logged and "\x1b" not in "".join(shown)
    assert not {"\x9b", "\u202e", "\r"} & {*"".join(shown)}


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


async def test_an_error_without_a_text_fails_a_leg_like_any_other(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    leg._turn._operation._call = lambda *_: mute()

    async def mute():
        raise Mute

    leg.steer("more")
    s.answer_all()
    await ended(leg)
    assert leg.status is RunStatus.FAILED and "its text cannot be read" in leg.note
    assert s.states(leg) == ["applied"] and leg.turns[-1].steers


async def test_everybody_who_awaits_it_gets_the_error(scene):
    leg = await fail(scene((ValueError("no"),)))
    caught = await asyncio.gather(leg.result(), leg.result(), return_exceptions=True)
    assert [type(e) for e in caught] == [LegFailedError] * 2


async def test_nobody_awaits_it_and_it_is_said_all_the_same(scene, caplog):
    """In the log at WARNING, in the feed, and on the run's row; never only in the collector's log."""
    caplog.set_level(logging.WARNING)
    s = scene((ValueError("no"),))
    leg = await fail(s)
    warned = [r for r in caplog.records if r.name.startswith("lionnb.legs") and leg.run_id in r.getMessage()]
    assert [r.levelno for r in warned] == [logging.WARNING]
    said = await heard(leg.feed, lambda e: e.kind == "leg" and e.data["status"] == "failed")
    assert said.data["sentence"] == leg.note
    run = s.run(leg)
    assert run.status is RunStatus.FAILED and type(leg.turns[0].error).__name__ in run.ended_note


@pytest.mark.parametrize("awaited", [False, True])
async def test_no_exception_is_reported_as_never_retrieved(scene, awaited):
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    s = scene((ValueError("no"),))
    leg = await fail(s)
    if awaited:
        waiting = asyncio.create_task(leg.result())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait((waiting,))
    s.legs.clear()
    del leg
    gc.collect()
    assert complaints == []


@LEFT
async def test_the_history_is_safe_and_the_next_leg_goes_on_with_it(scene):
    s = scene(("one", ValueError("no"), "three"))
    s.answer_all()
    await s.leg()
    await fail(s)
    result = await s.leg("go on")
    assert result.value == "three" and "one" in s.sent(2) and s.branch.turn_queue == []


async def test_the_value_of_the_turns_before_it_is_not_lost(scene):
    """They stand in `turns`; the error is the last one's."""
    s = scene(("one", ValueError("no")))
    leg = s.leg()
    await s.working()
    leg.steer("more")
    s.answer_all()
    await ended(leg)
    assert [t.value for t in leg.turns] == ["one", None] and leg.turns[0].error is None
    with pytest.raises(LegFailedError):
        await leg


async def test_an_error_before_the_turn_began_is_told_without_one(scene):
    """No model, say: the entry itself fails."""
    s = scene()
    s.branch.mdls.registry.clear()
    leg = await fail(s)
    with pytest.raises(LegFailedError, match="in turn"):
        await leg
    assert leg.turns[0].end == "raised" and len(s.requests) == 0


async def test_an_error_without_a_text_is_told_by_its_name(scene):
    async def nameless(*args, **kwargs):
        raise KeyError

    s = scene()
    leg = s.leg(middle=nameless)
    with pytest.raises(LegFailedError, match=r"KeyError\. The history"):
        await leg


@pytest.mark.parametrize("where", ["_one_turn", "end_if_idle", "_close"])
async def test_a_fault_outside_of_the_turns_never_leaves_a_leg_that_does_not_end(scene, caplog, where):
    """A bug of ours is told, recorded, and awaited like any other end."""
    s = scene()
    leg = s.leg()
    receipt = leg.steer("pending")

    async def broken(*args):
        return 1 / 0

    setattr(leg._run if where == "end_if_idle" else leg, where, broken)
    s.answer_all()
    if where == "_close":
        assert (await leg).status is RunStatus.COMPLETED  # buried; the record has it already
    else:
        with pytest.raises(LegFailedError, match="ZeroDivisionError"):
            await leg
        assert "failed outside of its turns" in caplog.text
    leg.flush(10)
    assert s.run(leg).terminal and receipt.settled
    task = leg.task
    assert (task.exception() is not None) == (where == "_close")  # the one fault that has no other teller


async def test_it_shows_itself_in_one_line(scene):
    leg = await fail(scene((ValueError("no"),)))
    assert repr(leg) == f"<leg survey {leg.run_id}: failed, ended, 1 turn(s)>"
