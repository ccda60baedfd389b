"""A run that has ended goes on under a new leg: what it takes along, who may take it, and what it says."""

from __future__ import annotations

import contextlib

import pytest

import lionnb
from lionnb.errors import LegExistsError, LegFailedError, ResumeRefusedError, SteerRefusedError, StoreError
from lionnb.legs import legs
from lionnb.legs.snapshot import snapshot_of
from lionnb.records import Fate, RunStatus
from lionnb.status import told
from tests.legs.story import deadline, ended, phase, spend
from tests.store.processes import Other

pytestmark = pytest.mark.databases

# What was stopped or failed leaves a question without an answer: the next turn says so, and that is right.
LEFT = pytest.mark.filterwarnings("ignore:turn .* left a question:UserWarning")


async def stopped_with(s, *texts: str):
    """A leg that was stopped in its first turn while *texts* were pending."""
    leg = s.leg(name="survey", timeout_s=600, max_turns=9)
    await s.working()
    receipts = [leg.steer(text) for text in texts]
    leg.stop()
    await ended(leg)
    return leg, receipts


def again(s, leg, *args, **how):
    """Resume *leg* in scene *s*, which waits for its provider."""
    s.legs.append(leg.resume(*args, **how))
    return s.legs[-1]


async def anew(s) -> None:
    """The provider has been left by whoever was there, and works on another call."""
    await s.gate.left()
    await s.working()


# ---------------------------------------------------------------------- what it takes along
@LEFT
async def test_what_the_sweep_rejected_is_delivered_by_the_leg_that_goes_on(scene):
    """ADR-0108: the record keeps what was rejected, and the new row says which one it sends again."""
    s = scene()
    first, receipts = await stopped_with(s, "old", "new")
    assert "leg.resume" not in first.note and [r.fate for r in receipts] == [Fate.REJECTED] * 2
    s.answer_all()
    second = again(s, first)
    result = await second
    assert result.status is RunStatus.COMPLETED and len(result.turns) == 1
    assert s.last(-1).index("> old") < s.last(-1).index("> new")
    rows = s.rows(first)
    assert [row.state.value for row in rows] == ["rejected"] * 2 + ["applied"] * 2
    assert [row.resent_from for row in rows] == [None, None, rows[0].id, rows[1].id]
    assert [row.text for row in rows[2:]] == ["old", "new"] and {row.created_by for row in rows[2:]} == {
        rows[0].created_by
    }
    assert (second.run_id, second.session_id) == (first.run_id, first.session_id)
    assert s.run(first).status is RunStatus.COMPLETED


@LEFT
async def test_what_is_sent_again_has_a_receipt_and_the_old_one_points_to_it(scene):
    """Nobody is told to resume what was resumed, in Python or in the terminal."""
    s = scene()
    first, (old,) = await stopped_with(s, "old")
    second = again(s, first)
    new = second.receipts[-1]
    assert new.text == "old" and old.again is new and old.fate is Fate.REJECTED
    assert f"sent again as control {new.control_id[:8]}: " in old.sentence and "lionnb.resume" not in old.sentence
    s.answer_all()
    await second
    assert (await new).fate is Fate.APPLIED and "applied in turn" in old.sentence
    rows, session = s.rows(first), s.run(first)
    (view,) = s.store.ask(lambda core: core.views([session], 0.0))
    lines = [one.sentence for one in told(rows, session, view, 0.0)]
    assert lines[0] == f"not delivered; sent again as control {new.control_id[:8]}, which is applied"


@LEFT
async def test_what_a_chain_of_resumes_sends_is_told_by_the_oldest_receipt(scene):
    s = scene()
    gate = s.store.hold("claim_all")
    first, (old,) = await stopped_with(s, "often")
    second = again(s, first)
    second.stop()
    gate.open()
    await ended(second)
    s.answer_all()
    third = again(s, first)
    await third
    assert old.again.again is third.receipts[-1] and "applied in turn" in old.sentence
    assert all(receipt.settled for receipt in third.receipts)


@LEFT
async def test_an_instruction_takes_what_is_queued_along_in_one_turn(scene):
    s = scene()
    first, _ = await stopped_with(s, "only surveys")
    s.answer_all()
    result = await again(s, first, "Go on with part two")
    assert len(result.turns) == 1 and "Go on with part two" in s.last(-1) and "> only surveys" in s.last(-1)


@LEFT
async def test_resuming_twice_sends_nothing_twice(scene):
    """The second time there is nothing to deliver."""
    s = scene()
    first, _ = await stopped_with(s, "once")
    s.answer_all()
    second = again(s, first)
    await second
    with pytest.raises(ValueError, match="resume needs an instruction"):
        again(s, second)
    with pytest.raises(ValueError, match="resume needs an instruction"):
        again(s, first)
    await again(s, first, "and more")
    assert [row.state.value for row in s.rows(first)] == ["rejected", "applied"]


@LEFT
async def test_what_is_rejected_again_is_sent_again_and_its_forerunner_is_not(scene):
    s = scene()
    first, _ = await stopped_with(s, "often")
    second = again(s, first, "other work first", resend=False)
    await anew(s)
    assert s.states(first) == ["rejected"]
    second.stop()
    await ended(second)
    third = again(s, second, resend=True)
    await anew(s)
    assert s.states(first) == ["rejected", "applied"] or s.states(first) == ["rejected", "delivering"]
    third.stop()
    await ended(third)
    assert s.states(first) == ["rejected", "applied"]


@LEFT
async def test_a_chain_of_rejections_is_followed_from_its_end(scene):
    s = scene()
    gate = s.store.hold("claim_all")
    first, _ = await stopped_with(s, "often")
    second = again(s, first)
    second.stop()
    gate.open()
    await ended(second)
    s.answer_all()
    await again(s, second)
    rows = s.rows(first)
    assert [row.state.value for row in rows] == ["rejected", "rejected", "applied"]
    assert [row.resent_from for row in rows] == [None, rows[0].id, rows[1].id]


@LEFT
async def test_what_was_withdrawn_stays_withdrawn_and_without_resend_nothing_is_sent(scene):
    s = scene()
    leg = s.leg()
    await s.working()
    taken_back = leg.steer("never mind")
    leg.steer("rejected")
    lionnb.withdraw(taken_back.control_id, by="ana", store=s.store)
    leg.stop()
    await ended(leg)
    with pytest.raises(ValueError, match="With resend=True"):
        again(s, leg, resend=False)
    s.answer_all()
    await again(s, leg, "go on", resend=False)
    assert s.states(leg) == ["withdrawn", "rejected"]
    await again(s, leg)
    assert s.states(leg) == ["withdrawn", "rejected", "applied"]


@LEFT
async def test_what_an_end_left_pending_is_simply_claimed_and_its_receipt_stays_true(scene):
    """An end that the store did not take: the row is pending on a run that this kernel knows to be over."""
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("left behind")
    s.store.fail("end", *[StoreError("the disk is full")] * 4)
    leg.stop()
    await ended(leg)
    assert receipt.fate is Fate.NEVER_LANDED and receipt.settled and s.run(leg).status is RunStatus.RUNNING
    s.store.hooks.clear()
    second = again(s, leg)
    assert receipt.fate is Fate.PENDING and not receipt.settled
    s.answer_all()
    await second
    assert (await receipt).fate is Fate.APPLIED and s.states(leg) == ["applied"]


# ---------------------------------------------------------------------- the new leg
@LEFT
async def test_it_has_a_budget_of_its_own_of_the_same_size_unless_told(scene):
    s = scene()
    first, _ = await stopped_with(s)
    spend(first, 500)
    second = again(s, first, "go on")
    assert (second.budget.timeout_s, second.budget.max_turns) == (600, 9) and second.budget.left_s > 590
    assert s.run(first).deadline_at > first.created_at + 590
    second.stop()
    await ended(second)
    third = again(s, second, "go on", timeout_s=None, max_turns=1)
    assert (third.budget.timeout_s, third.budget.max_turns) == (None, 1) and s.run(first).deadline_at is None
    s.answer_all()
    await third


@LEFT
async def test_it_keeps_the_operations_arguments_but_never_clears_the_history_again(scene):
    s = scene()
    first = s.leg("remember the number 7", op="communicate", clear_messages=True)
    await s.working()
    s.answer_all()
    await first
    before = len(s.branch.messages)
    second = again(s, first, "which number?")
    await second
    assert second.op == "communicate" and "clear_messages" not in second.arguments
    assert len(s.branch.messages) == before + 2


@LEFT
async def test_a_failed_leg_says_how_to_go_on_and_that_works(scene):
    s = scene((ValueError("refused"), "two"))
    s.answer_all()
    leg = s.leg()
    with pytest.raises(LegFailedError, match=r"The history is safe: go on with leg\.resume\(…\)"):
        await leg
    result = await again(s, leg, "try again")
    assert result.value == "two" and s.run(leg).status is RunStatus.COMPLETED


async def test_a_steer_to_the_ended_leg_says_how_to_go_on_and_the_new_one_takes_it(scene):
    s = scene()
    s.answer_all()
    first = s.leg()
    await first
    with pytest.raises(SteerRefusedError, match=r"leg\.resume\(…\) takes it up again"):
        first.steer("more")
    s.gate.close()
    second = again(s, first, "part two")
    await s.working()
    receipt = second.steer("more")
    s.answer_all()
    await second
    assert receipt.fate is Fate.APPLIED


async def test_tables_show_a_resumed_run_once(scene):
    s = scene()
    s.answer_all()
    first = s.leg()
    await first
    await again(s, first, "part two")
    shown = lionnb.frames.legs(s.branch)
    assert list(shown["run_id"]) == [first.run_id]


# ---------------------------------------------------------------------- who may
async def test_a_live_leg_stands_in_the_way_as_for_start_leg(scene):
    s, other = scene(), scene()
    leg = s.leg(name="survey")
    await s.working()
    with pytest.raises(LegExistsError, match="this Branch already has a live leg"):
        again(s, leg, "more")
    s.answer_all()
    await leg
    blocks = other.leg(name="survey")
    await other.working()
    with pytest.raises(LegExistsError, match="the name 'survey'"):
        again(s, leg, "more")
    other.answer_all()
    await blocks
    assert len(s.requests) == 1


async def test_a_leg_that_came_in_between_ends_the_resumed_run_again(scene, monkeypatch):
    """Another thread starts a leg on the Branch after the look and before the new leg: the run is nobody's then."""
    s = scene()
    s.answer_all()
    leg = s.leg()
    await leg

    async def hook(operation, *args, **kwargs):
        got = await operation(*args, **kwargs)
        monkeypatch.setattr("lionnb.legs.registry._existing", lambda *_: (leg,))
        return got

    s.store.hooks["reopen"] = hook
    with pytest.raises(LegExistsError):
        again(s, leg, "more")
    monkeypatch.undo()
    run = s.run(leg)
    assert run.status is RunStatus.CANCELLED and "could not be made" in run.ended_note and run.leg is None
    assert [x for x in legs() if x.live] == []


@LEFT
async def test_a_store_that_answers_too_late_leaves_the_run_ended_and_swept(scene, monkeypatch):
    """Nobody waits for the answer any more: the run must not read as being worked on."""
    s = scene()
    first, _ = await stopped_with(s, "waits")
    gate = s.store.hold("reopen")
    monkeypatch.setattr("lionnb.legs.resumption.STORE_LIMIT_S", 0.01)
    with pytest.raises(StoreError, match="did not answer"):
        again(s, first)
    gate.open()
    monkeypatch.undo()
    s.store.hooks.clear()
    s.store.ask(lambda core: core.pending_count(first.session_id))
    s.answer_all()
    await again(s, first)
    assert [row.state.value for row in s.rows(first)][-1] == "applied"
    assert sum(row.state == "applied" for row in s.rows(first)) == 1


async def test_an_unknown_id_a_control_and_a_run_without_its_history_are_refused(scene):
    s = scene()
    s.answer_all()
    leg = s.leg()
    s.gate.close()
    await s.working(1)
    receipt = leg.steer("more")
    s.answer_all()
    await leg
    with pytest.raises(lionnb.errors.UnknownIdError):
        lionnb.resume("nothing", "go on", store=s.store)
    with pytest.raises(ResumeRefusedError, match="is a control") as caught:
        lionnb.resume(receipt.control_id, "go on", store=s.store)
    assert caught.value.reason == "kind"
    with pytest.raises(lionnb.errors.AmbiguousIdError):
        lionnb.resume(leg.run_id[:8], "go on", store=s.store)
    with pytest.raises(TypeError, match=r"leg\.resume"):
        lionnb.resume(leg, "go on")


def test_without_a_loop_it_says_so(tmp_path):
    with pytest.raises(lionnb.errors.NoRunningLoopError):
        lionnb.resume("20261130T000000-abcdef", "go on")


async def test_by_its_id_a_run_of_this_kernel_goes_on_on_its_own_branch(scene):
    s = scene()
    s.answer_all()
    leg = s.leg(name="survey")
    await leg
    again = lionnb.resume(leg.run_id[:17], "part two", store=s.store)
    assert again.branch is s.branch and again.name == "survey" and again.run_id == leg.run_id
    await again


# ---------------------------------------------------------------------- at the deadline
@LEFT
async def test_at_its_deadline_a_leg_goes_on_once_and_nothing_is_swept(scene):
    """The run never reads ended meanwhile; the pending steer is what it goes on with."""
    s = scene()
    leg = s.leg(timeout_s=600, resume_on_timeout=True)
    await s.working()
    receipt = leg.steer("shorter")
    seen = []
    leg.feed.listen(lambda e: seen.append(s.run(leg).status) if e.kind == "leg" else None)
    deadline(leg)
    await anew(s)
    assert "> shorter" in s.last(-1) and leg.budget.left_s > 590
    assert s.run(leg).leg == leg.token and s.run(leg).deadline_at > leg.created_at + 590
    deadline(leg)
    await ended(leg)
    assert [t.outcome.value for t in leg.turns] == ["timed_out", "timed_out"] and leg.status is RunStatus.TIMED_OUT
    assert receipt.fate is Fate.APPLIED and receipt.record.turn_outcome == "timed_out"
    assert set(seen[:-1]) == {RunStatus.RUNNING}


@LEFT
async def test_with_nothing_pending_it_is_asked_to_go_on_where_it_stopped(scene):
    s = scene()
    leg = s.leg(timeout_s=600, max_turns=1, resume_on_timeout=True)
    await s.working()
    deadline(leg)
    await anew(s)
    s.answer_all()
    result = await leg
    assert "Go on with the task where you stopped" in s.last(-1) and result.status is RunStatus.COMPLETED
    assert len(result.turns) == 2, "max_turns counts anew"


async def test_one_that_never_began_is_asked_what_it_was_to_be_asked(scene):
    """Its first turn waited for the Branch until the deadline."""
    s = scene()
    first = s.leg("the first task")
    await s.working()
    second = s.leg("the second task", on_existing="queue", timeout_s=600, resume_on_timeout=True)
    second._go.set_result(None)  # it need not wait for the leg, but for the Branch
    await phase(second, "in turn")
    deadline(second)
    s.answer_all()
    await first
    result = await second
    assert result.status is RunStatus.COMPLETED and "the second task" in s.last(-1)
    assert [t.outcome.value for t in result.turns] == ["cancelled while waiting", "completed"]


@LEFT
async def test_a_stop_at_the_deadline_stops(scene):
    s = scene()
    leg = s.leg(timeout_s=600, resume_on_timeout=True)
    await s.working()
    deadline(leg)
    leg.stop()
    await ended(leg)
    assert leg.status is RunStatus.CANCELLED and len(s.requests) == 1


@LEFT
async def test_one_whose_run_was_taken_meanwhile_does_not_go_on(scene):
    s = scene()
    leg = s.leg(timeout_s=600, resume_on_timeout=True)
    await s.working()
    s.store.ask(lambda core: core.mark_lost(leg.session_id, leg.token, "gone", "ben", 9.0))
    deadline(leg)
    await ended(leg)
    assert leg.status is RunStatus.LOST and len(s.requests) == 1


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ({"resume_on_timeout": True}, ValueError, "needs a timeout_s"),
        ({"resume_on_timeout": "yes", "timeout_s": 9}, TypeError, "True or False"),
    ],
)
async def test_what_cannot_go_on_is_refused(scene, how, error, said):
    with pytest.raises(error, match=said):
        scene().leg(**how)


# ---------------------------------------------------------------------- two processes
IN_ANOTHER = """
import asyncio, lionnb
from lionnb.testing import Gate, scripted_model

loop = asyncio.new_event_loop()
gate = Gate()

def branch(*replies):
    model = scripted_model(list(replies), gate=gate)
    return lionnb.Branch(chat_model=model, name="ada", system="You read papers.")

def begins(*texts, **how):
    global leg
    async def main():
        global leg
        leg = lionnb.start_leg(branch("one", "two"), "Survey X", name="survey", timeout_s=600, by="ana", **how)
        await gate.reached()
        for text in texts:
            leg.steer(text)
        await leg.store.run(lambda core: core.pending_count(leg.session_id))
    loop.run_until_complete(main())
    return leg.run_id

def resumes(run, *how):
    global leg
    async def main():
        global leg
        leg = lionnb.resume(run, *how, branch=branch("one", "two"), by="ben")
        await gate.reached()
    try:
        loop.run_until_complete(main())
    except lionnb.errors.ResumeRefusedError as exc:
        return [exc.reason, str(exc)]
    return [leg.token, leg.budget.timeout_s]

def ends():
    gate.open()
    return loop.run_until_complete(leg.result()).status.value

def goes_on(run):
    global leg
    async def main():
        global leg
        leg = lionnb.resume(run, "and then", chat_model=branch("three").chat_model, by="ben")
        await gate.reached()
    try:
        loop.run_until_complete(main())
    except lionnb.errors.ResumeRefusedError as exc:
        return str(exc)
    return [leg.branch.name, leg.branch.system is not None, len(leg.branch.messages), str(leg.branch.id)]

def rows(run):
    session = loop.run_until_complete(leg.store.run(lambda core: core.find(run, acts=False))).session
    found = loop.run_until_complete(leg.store.run(lambda core: core.list_controls(session.id)))
    return [[row.text, row.state.value, row.resent_from is not None] for row in found]
"""


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.postgres)])
def shared_url(request, tmp_path):
    """Each kind of database that several processes can use, empty."""
    if request.param == "file":
        yield str(tmp_path / "shared.sqlite")
        return
    with request.getfixturevalue("postgres").database() as url:
        yield url


@pytest.fixture
def kernels(shared_url):
    """Starts processes that share a store, and ends them with the test."""
    with contextlib.ExitStack() as stack:

        def start() -> Other:
            made = Other(LIONNB_DB=shared_url)
            stack.callback(made.close)
            made.do(IN_ANOTHER)
            return made

        yield start


def test_after_kill_9_a_fresh_process_takes_the_run_with_all_that_was_queued(kernels):
    """S6: no acknowledged steer is lost, and none is delivered twice; the resumed leg has as much time again."""
    first = kernels()
    run = first.do("begins('old', 'new')")
    first.kill()
    second = kernels()
    assert second.do(f"resumes({run!r})")[1] == 600
    assert second.do("ends()") == "completed"
    assert second.do(f"rows({run!r})") == [["old", "applied", False], ["new", "applied", False]]


def test_recorded_lost_first_it_sends_again_what_the_sweep_rejected(kernels):
    first = kernels()
    run = first.do("begins('old')")
    first.kill()
    second = kernels()
    second.do("loop.run_until_complete(lionnb.default_store().run(lambda core: core.reap(time.time(), 'ben')))")
    second.do(f"resumes({run!r})")
    assert second.do("ends()") == "completed"
    assert second.do(f"rows({run!r})") == [["old", "rejected", False], ["old", "applied", True]]


def test_of_two_processes_that_resume_a_run_one_gets_it_and_the_other_is_told_whose_it_is(kernels):
    first, second, third = kernels(), kernels(), kernels()
    run = first.do("begins('once')")
    first.kill()
    for other in (second, third):
        other.begin(f"resumes({run!r}, 'go on')")
    said = [second.answer(), third.answer()]
    (told,) = [answer for answer in said if answer[0] == "live"]
    winner, token = (third, said[1][0]) if told is said[0] else (second, said[0][0])
    assert token in told[1] and f"pid {winner.pid}" in told[1] and "steer that leg" in told[1]
    assert winner.do("ends()") == "completed" and winner.do(f"rows({run!r})") == [["once", "applied", False]]


def test_a_live_leg_elsewhere_keeps_its_run(kernels):
    first, second = kernels(), kernels()
    run = first.do("begins()")
    reason, sentence = second.do(f"resumes({run!r}, 'mine now')")
    assert reason == "live" and f"pid {first.pid}" in sentence
    assert first.do("ends()") == "completed"


def test_a_later_kernel_goes_on_with_the_history_that_was_kept(kernels):
    """Killed in its second turn, the run goes on after its first one; the model is given, never kept."""
    first = kernels()
    run = first.do("begins('more')")
    first.do("gate.open(); gate.close()")
    first.do("loop.run_until_complete(gate.left())")
    first.do("loop.run_until_complete(gate.reached())")
    first.do("loop.run_until_complete(leg.store.run(lambda core: core.get_snapshot(leg.session_id)))")
    branch = first.do("str(leg.branch.id)")
    first.kill()
    second = kernels()
    name, has_system, messages, same = second.do(f"goes_on({run!r})")
    assert (name, has_system, messages, same) == ("ada", True, 3 + 1, branch)
    assert second.do("ends()") == "completed"


async def test_what_is_kept_of_a_history_grows_with_it_and_no_faster(road):
    """lionagi's log repeats the whole history for each request; with it, twenty turns would keep it twenty times."""
    branch = lionnb.Branch(chat_model=road.model("x" * 1_000))
    sizes = []
    for _ in range(20):
        await branch.communicate("q")
        sizes.append(len(snapshot_of(branch)))
    assert sizes[-1] - sizes[-2] == pytest.approx(sizes[1] - sizes[0], rel=0.05)


def test_a_run_that_kept_no_history_says_what_to_give(kernels):
    first = kernels()
    run = first.do("begins(snapshot=False)")
    first.kill()
    said = kernels().do(f"goes_on({run!r})")
    assert "no history" in said and "branch=branch" in said
