"""A second leg: on the same Branch, under the same name, inside of a turn; and two hundred one after the other."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

import lionnb
from lionnb.errors import LegExistsError, TurnDeadlockError
from lionnb.legs import legs
from lionnb.legs.states import LegPhase, TurnEnd
from lionnb.records import Fate, RunStatus
from tests.legs.story import ended, heard

# A leg that was stopped or failed leaves a question without an answer: the next turn says so, and that is right.
LEFT = pytest.mark.filterwarnings("ignore:turn .* left a question:UserWarning")


# ---------------------------------------------------------------------- re-running a cell
async def test_a_branch_with_a_live_leg_refuses_a_second_one_by_name(scene):
    """Re-running a cell never pays twice."""
    s = scene()
    leg = s.leg(name="survey")
    await s.working()
    with pytest.raises(LegExistsError, match="this Branch already has a live leg: survey") as caught:
        s.leg()
    assert caught.value.run_id == leg.run_id and "attach" in str(caught.value)
    s.answer_all()
    await leg
    assert len(s.requests) == 1


async def test_a_live_leg_of_the_same_name_on_another_branch_refuses(scene, road):
    """Re-running the cell that builds the Branch makes a new Branch."""
    s, other = scene(), scene()
    leg = s.leg(name="survey")
    await s.working()
    with pytest.raises(LegExistsError, match="the name 'survey' already has a live leg"):
        other.leg(name="survey")
    second = other.leg(name="another")
    third = scene().leg()  # no name is no name in common
    s.answer_all()
    other.answer_all()
    await leg
    await second
    third.stop()
    await third
    assert len(other.requests) == 1


async def test_after_its_end_another_one_may_start(scene):
    s = scene()
    s.answer_all()
    for said in ("one", "two"):
        assert (await s.leg(name="survey")).value == said
    assert [leg.live for leg in legs() if leg.branch is s.branch] == [False, False]


async def test_attach_returns_the_live_leg(scene, caplog):
    s = scene()
    leg = s.leg()
    await s.working()
    assert s.leg(on_existing="attach") is leg and "attached" not in caplog.text
    assert s.leg("other words", on_existing="attach") is leg
    assert caplog.text.count("attached") == 1 and "the instruction given here differs" in caplog.text
    s.answer_all()
    await leg
    assert len(s.requests) == 1
    again = s.leg(on_existing="attach")  # nothing is live: a new one
    assert again is not leg and (await again).value == "two"


@LEFT
async def test_stop_ends_the_live_one_first(scene):
    s = scene()
    first = s.leg()
    await s.working()
    receipt = first.steer("pending")
    second = s.leg("anew", on_existing="stop")
    assert second.phase is LegPhase.WAITING and second.live
    s.answer_all()
    result = await second
    assert first.status is RunStatus.CANCELLED and (await receipt).fate is Fate.REJECTED
    assert result.status is RunStatus.COMPLETED and "anew" in s.last(-1)
    order = [e.data["operation"] for e in s.branch.turns.events() if e.kind in ("start", "end")]
    assert len(order) == 4 and len(result.turns) == 1


async def test_queue_starts_after_the_live_one(scene):
    s = scene()
    first = s.leg("the first task")
    await s.working()
    second = s.leg("the second task", on_existing="queue")
    late = first.steer("still the first")
    s.answer_all()
    await second
    assert first.phase is LegPhase.ENDED and (await late).fate is Fate.APPLIED
    assert ["first task" in s.last(0), "> still the first" in s.last(1), "second task" in s.last(2)] == [True] * 3


async def test_queued_legs_start_one_after_the_other(scene):
    """Two that wait for the same one must not start together."""
    s = scene()
    first = s.leg("task 0")
    await s.working()
    waiting = [s.leg(f"task {i}", on_existing="queue") for i in (1, 2, 3)]
    seen = []
    for leg in waiting:
        leg.feed.listen(
            lambda e, leg=leg: e.data.get("sentence") == "starting" and seen.append((leg, [x.live for x in waiting]))
        )
    s.answer_all()
    for leg in (first, *waiting):
        await leg
    assert [leg for leg, _ in seen] == waiting
    assert [live for _, live in seen] == [[True] * 3, [False, True, True], [False, False, True]]
    assert [f"task {i}" in s.last(i) for i in range(4)] == [True] * 4


async def test_a_queued_leg_can_be_stopped_while_it_waits(scene):
    s = scene()
    first = s.leg()
    await s.working()
    second, third = (s.leg(f"task {i}", on_existing="queue") for i in (2, 3))
    receipt = second.steer("never")
    second.stop()
    result = await second
    assert (result.status, result.turns, result.note) == (RunStatus.CANCELLED, (), "stopped") and first.live
    assert (await receipt).fate is Fate.REJECTED and s.run(second).status is RunStatus.CANCELLED
    s.answer_all()
    await third
    assert not first.live and len(s.requests) == 2


async def test_a_queued_legs_row_gets_its_deadline_when_its_time_begins(scene):
    """`lionnb ctl status` shows it: not before, and not never."""
    s = scene()
    s.leg()
    await s.working()
    second = s.leg("then this", on_existing="queue", timeout_s=600)
    await asyncio.wrap_future(second._run.registering)
    told = [e.data["deadline_at"] for e in second.feed.events() if e.kind == "leg"]
    assert s.run(second).deadline_at is None and second.budget.deadline_at is None and not any(told)
    await s.answer()
    await s.working()
    assert s.run(second).deadline_at == pytest.approx(second.budget.deadline_at, abs=5)
    s.answer_all()
    await second


async def test_a_queued_legs_time_begins_when_it_starts(scene):
    s = scene()
    first = s.leg()
    await s.working()
    second = s.leg("then this", on_existing="queue", timeout_s=600)
    second.steer("so that its row is written")
    assert second.budget.started is None and s.run(second).deadline_at is None
    s.answer_all()
    await second
    assert second.budget.started is not None and first.status is RunStatus.COMPLETED


@LEFT
async def test_a_leg_that_failed_lets_the_queued_one_start(scene):
    s = scene((ValueError("no"), "two"))
    first = s.leg()
    await s.working()
    second = s.leg("then this", on_existing="queue")
    s.answer_all()
    assert (await second).value == "two"
    await ended(first)
    assert first.status is RunStatus.FAILED


async def test_two_threads_start_no_two_legs_on_one_branch(scene):
    """The look-up and the entry are one; here the other thread's loop is refused, by name."""
    s = scene()
    leg = s.leg()
    await s.working()
    said = []

    def elsewhere():
        async def start():
            with pytest.raises(LegExistsError) as caught:
                s.leg()
            said.append(caught.value.run_id)

        asyncio.run(start())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    await asyncio.get_running_loop().run_in_executor(None, thread.join)
    assert said == [leg.run_id]
    s.answer_all()
    await leg


# ---------------------------------------------------------------------- with foreground calls
async def test_a_leg_that_waits_behind_a_foreground_call_says_so(scene):
    """Its view, its repr and the receipts of its steers; and the first words again once it has the Branch."""
    s = scene()
    cell = asyncio.create_task(s.branch.communicate("hello"))
    await s.working()
    leg = s.leg()
    said = await heard(leg.feed, lambda e: e.kind == "leg" and e.data["sentence"].startswith("waits"))
    held = s.branch.current_turn.turn_id
    assert said.data["sentence"].startswith("waits for the Branch behind ") and held[:8] in said.data["sentence"]
    assert "waits for the Branch behind" in repr(leg) and leg.phase is LegPhase.IN_TURN
    receipt = leg.steer("more")
    assert receipt.sentence == "queued: lands at the end of this leg's first turn, which waits for the Branch"
    await s.answer()
    await cell
    await s.working()
    assert leg.doing == "in turn" and receipt.sentence == "queued: lands at the end of the current turn"
    assert [e.data["sentence"] for e in leg.feed.events() if e.kind == "leg"][-1] == "in turn"
    s.answer_all()
    await leg
    assert receipt.fate is Fate.APPLIED


async def test_a_steer_for_a_continuation_that_waits_lands_in_that_very_turn(scene):
    """So it also fits where no further turn does."""
    s = scene()
    leg = s.leg(max_turns=2)
    await s.working()
    first = leg.steer("first")
    cells = [asyncio.create_task(s.branch.communicate(text)) for text in ("hello", "and again")]
    await heard(s.branch.turns, lambda e: e.kind == "wait" and len(s.branch.turn_queue) == 2)
    await s.answer()
    await heard(leg.feed, lambda e: e.kind == "leg" and e.data["sentence"].startswith("waits"))
    second = leg.steer("second")
    assert second.sentence == "queued: lands in this leg's next turn, which waits for the Branch; 1 before it"
    held = [s.branch.current_turn.turn_id]
    await s.answer()  # the next caller has the Branch: the leg says behind whom it waits now
    await s.working()
    held.append(s.branch.current_turn.turn_id)
    sentences = [e.data["sentence"] for e in leg.feed.events() if e.kind == "leg"]
    assert held[0] != held[1] and held[1][:8] in sentences[-1]
    s.answer_all()
    await asyncio.gather(*cells)
    await leg
    assert (first.fate, second.fate, len(leg.turns)) == (Fate.APPLIED, Fate.APPLIED, 2)


async def test_a_legs_turns_queue_with_foreground_calls_in_order_of_arrival(scene):
    s = scene()
    leg = s.leg("the leg")
    await s.working()
    receipt = leg.steer("after the cells")
    cells = [asyncio.create_task(s.branch.communicate(f"cell {i}")) for i in range(2)]
    await heard(s.branch.turns, lambda e: e.kind == "wait" and len(s.branch.turn_queue) == 2)
    await s.answer()
    await s.answer()
    await s.working()
    await heard(s.branch.turns, lambda e: e.kind == "wait" and e.data["operation"] == "operate")
    assert receipt.fate is Fate.PENDING and s.rows(leg)[0].handed_over_at is None
    assert [w.operation for w in s.branch.turn_queue] == ["operate"]
    s.answer_all()
    await asyncio.gather(*cells)
    await leg
    told = ["the leg", "cell 0", "cell 1", "> after the cells"]
    assert [said in s.last(i) for i, said in enumerate(told)] == [True] * 4


async def test_a_steer_that_comes_while_the_continuation_waits_goes_with_it(scene):
    """The claim is taken after the lock: everything that is pending at that moment."""
    s = scene()
    leg = s.leg()
    await s.working()
    first = leg.steer("first")
    cell = asyncio.create_task(s.branch.communicate("a cell"))
    await s.answer()
    await s.working()
    await heard(s.branch.turns, lambda e: e.kind == "wait" and e.data["operation"] == "operate")
    second = leg.steer("second")
    s.answer_all()
    result = await leg
    await cell
    assert result.turns[1].steers == (first.control_id, second.control_id) and len(s.requests) == 3


# ---------------------------------------------------------------------- inside of a turn
def middle(fn):
    """An operation that runs *fn* inside of its turn, as a tool would, and answers with what it gives."""

    async def run(branch, instruction, *args, **kwargs):
        return await fn()

    return run


async def test_a_leg_started_inside_of_a_turn_is_no_part_of_it(scene):
    """It neither runs in that turn nor dies with it: it queues for the Branch like anybody."""
    s = scene()
    started = []

    async def tool():
        started.append(s.leg("from a tool"))
        started[0].steer("and this")  # sent from inside: no person's
        await heard(s.branch.turns, lambda e: e.kind == "wait")  # it waits for this very turn
        assert len(s.branch.turn_queue) == 1 and not s.requests
        return "outer"

    assert await s.branch.operate(instruction="outer", middle=middle(tool)) == "outer"
    (leg,) = started
    s.answer_all()
    result = await leg
    assert [t.end for t in result.turns] == [TurnEnd.RETURNED] * 2
    turns = s.branch.turns.records()
    assert len(turns) == 3 and turns[1].turn_id == result.turns[0].turn_id != turns[0].turn_id
    assert s.rows(leg)[0].created_by == f"turn:{turns[0].turn_id}"


async def test_a_leg_started_by_another_legs_tool_goes_on_without_it(scene, road):
    outer, inner = scene(), scene()
    children = []

    async def tool():
        children.append(inner.leg("child"))
        return "parent's answer"

    parent = outer.leg(middle=middle(tool))
    assert (await parent).value == "parent's answer"
    (child,) = children
    assert child.live
    inner.answer_all()
    assert (await child).value == "one" and child.status is RunStatus.COMPLETED


async def test_a_tool_may_await_a_leg_on_another_branch(scene):
    outer, inner = scene(), scene()
    inner.answer_all()

    async def tool():
        return (await inner.leg("child")).value

    assert (await outer.leg(middle=middle(tool))).value == "one"


async def test_a_turn_that_awaits_a_leg_on_its_own_branch_is_told_of_the_deadlock(scene):
    """The leg waits for the turn, and the turn for the leg: an error, not a silence."""
    s = scene()
    started = []

    async def tool():
        started.append(s.leg("on the same Branch"))
        with pytest.raises(TurnDeadlockError, match=started[0].run_id):
            await started[0]
        return "told"

    assert await s.branch.operate(instruction="outer", middle=middle(tool)) == "told"
    s.answer_all()
    assert (await started[0]).value == "one"


async def test_a_leg_that_awaits_itself_is_told_of_the_deadlock(scene):
    s = scene()
    held = []

    async def tool():
        with pytest.raises(TurnDeadlockError):
            await held[0]
        return "told"

    held.append(s.leg(middle=middle(tool)))
    assert (await held[0]).value == "told"


async def test_a_childs_wait_that_may_never_end_is_logged_and_not_raised(scene, caplog):
    """Nobody may be awaiting the child; it is cancelled with its turn."""
    s = scene()
    s.answer_all()
    waits = []

    async def tool():
        leg = s.leg("on the same Branch")
        waits.append((leg, asyncio.create_task(leg.result())))
        await asyncio.sleep(0)
        return "went on"

    assert await s.branch.operate(instruction="outer", middle=middle(tool)) == "went on"
    leg, wait = waits[0]
    assert (await wait).value == "one" and "may never end" in caplog.text and leg.run_id in caplog.text


async def test_a_tool_can_stop_or_steer_its_own_leg(scene):
    s = scene()
    held = []

    async def tool():
        held[0].steer("a note to myself")
        held[0].stop()
        await asyncio.Event().wait()

    held.append(s.leg(middle=middle(tool)))
    result = await held[0]
    assert result.status is RunStatus.CANCELLED and s.states(held[0]) == ["rejected"]


async def test_what_the_caller_has_in_its_context_reaches_the_leg_but_its_turn_does_not(scene):
    import contextvars

    from lionnb.turns.context import chain, inside_of

    var = contextvars.ContextVar("request", default="none")
    s, seen = scene(), []

    async def tool():
        seen.append((var.get(), len(chain()), inside_of()))
        return "seen"

    async def starts():
        return s.leg(middle=middle(tool))

    var.set("this cell")
    other = scene()
    leg = await other.branch.operate(instruction="outer", middle=middle(starts))
    await leg
    assert seen == [("this cell", 2, ())]  # the leg's own turn, and the operation nested in it


# ---------------------------------------------------------------------- many, and none left
@pytest.mark.slow
@pytest.mark.parametrize("road", ["cli"], indirect=True)
async def test_many_legs_leave_no_task_thread_or_listener(scene):
    many = 120  # more than are kept
    s = scene(["again"])
    s.answer_all()
    before = (len(asyncio.all_tasks()), threading.active_count())
    for i in range(many):
        await s.leg(name=f"leg {i}")
        if i == 20:
            before = (len(asyncio.all_tasks()), threading.active_count())
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) <= before[0] and threading.active_count() <= before[1]
    assert s.branch.turns._listeners == [] and s.branch.turns.chunks_wanted == 0
    assert s.store._watchers.watched() == frozenset() and not s.store._hearts
    assert len([leg for leg in legs() if not leg.live]) <= 100
    assert len(s.store.ask(lambda core: core.list_sessions())) == many


@pytest.mark.parametrize("road", ["cli"], indirect=True)
async def test_a_finished_leg_that_nobody_holds_is_collected(scene, monkeypatch):
    """Beyond the last hundred nothing of lionnb holds one; here none is kept."""
    from lionnb.legs import registry

    monkeypatch.setattr(registry, "_KEEP_ENDED", 0)
    s = scene(["again"])
    s.answer_all()
    ref = weakref.ref(s.leg())
    s.legs.clear()
    await ref()
    await s.leg(name="the next one")  # makes room
    s.legs.clear()
    gc.collect()
    assert ref() is None
    assert isinstance(s.branch, lionnb.Branch)
