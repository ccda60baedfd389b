"""`lionnb.Branch` as an object: wrapped in place, copied, cloned, stored and read by stock lionagi."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from uuid import UUID

import pytest
from lionagi import Branch as StockBranch
from lionagi import Session as StockSession
from lionagi.session.control import LoopDirective
from lionagi.session.signal import MessageAdded, RunEnd, RunStart

import lionnb
from lionnb.errors import AdoptionError
from lionnb.testing import Gate, scripted_model


def stock(replies="fine", **kw):
    return StockBranch(chat_model=scripted_model(replies), **kw)


# --- wrap --------------------------------------------------------------------------------------------------------------


async def test_wrap_makes_a_branch_turn_aware_in_place():
    """Same object, same id, same Session, same closures."""
    session = StockSession()
    branch = session.default_branch
    branch.chat_model = scripted_model("fine")
    id_, seen = branch.id, []
    session.observe(RunStart, handler=lambda e, _: seen.append(e.turn_id))
    session.observe(MessageAdded, handler=lambda e, _: seen.append(type(e.data).__name__))
    assert lionnb.wrap(branch) is branch is session.default_branch
    assert isinstance(branch, lionnb.Branch) and type(branch) is lionnb.Branch and branch.id == id_
    await branch.communicate("q")
    assert seen[0] is not None and seen[1:] == ["Instruction", "AssistantResponse"]
    assert [r.outcome.value for r in branch.turns.records()] == ["completed"]


async def test_wrap_twice_is_harmless():
    branch = lionnb.wrap(stock())
    state = branch.turn_state
    assert lionnb.wrap(branch).turn_state is state
    assert sum(getattr(h, "__name__", "") == "_schedule_emit" for h in branch.on_message_added) == 1
    await branch.communicate("q")
    assert len([e for e in branch.turns.events() if e.kind == "text"]) == 2


async def test_a_branch_with_a_past_keeps_it():
    branch = stock(["one", "two"], system="be brief")
    await branch.communicate("first")
    lionnb.wrap(branch)
    await branch.communicate("second")
    assert [type(m).__name__ for m in branch.messages] == [
        "System",
        "Instruction",
        "AssistantResponse",
        "Instruction",
        "AssistantResponse",
    ]


async def test_a_directive_that_a_stock_branch_had_queued_is_dropped():
    """A control is never kept for a later turn."""
    branch = stock()
    branch.control(LoopDirective.CANCEL)
    lionnb.wrap(branch)
    assert [m.response async for m in branch.run("q") if hasattr(m, "response")] == ["fine"]


async def test_an_unknown_subclass_gets_a_turn_aware_one_and_keeps_its_overrides():
    class Mine(StockBranch):
        extra: str = "kept"

        async def communicate(self, *args, **kw):
            return "mine: " + await super().communicate(*args, **kw)

    branch = Mine(chat_model=scripted_model("fine"))
    lionnb.wrap(branch)
    assert isinstance(branch, Mine) and isinstance(branch, lionnb.Branch) and branch.extra == "kept"
    assert await branch.communicate("q") == "mine: fine"
    assert [r.operation for r in branch.turns.records()] == ["communicate"]
    assert type(lionnb.wrap(Mine(chat_model=scripted_model("x")))) is type(branch)  # one class, however many objects
    assert type(branch).class_name(full=True) == Mine.class_name(full=True)


@pytest.mark.parametrize("name", ["run", "ReActStream", "control", "poll_control"])
def test_a_subclass_that_overrides_what_the_driver_must_own_is_refused_with_the_reason(name):
    cls = type("Mine", (StockBranch,), {name: lambda self, *a, **k: None, "__module__": __name__})
    branch = cls(chat_model=scripted_model("x"))
    with pytest.raises(AdoptionError, match=f"Mine overrides {name}.*Derive the class from lionnb.Branch"):
        lionnb.wrap(branch)
    assert type(branch) is cls


@pytest.mark.parametrize("where", ["in the provider", "in an observer", "in another thread"])
async def test_a_call_in_flight_is_refused_and_the_branch_is_unchanged(where):
    session, gate = StockSession(), Gate()
    branch = StockBranch(chat_model=scripted_model("fine", gate=None if where == "in an observer" else gate))
    session.include_branches(branch)

    async def hold(*_):
        await gate.wait()

    if where == "in an observer":
        session.observe(MessageAdded, handler=hold)
    if where == "in another thread":
        call = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(branch.communicate("q"))))
    else:
        call = asyncio.create_task(branch.communicate("q"))
    await gate.reached()
    with pytest.raises(AdoptionError, match="in flight"):
        lionnb.wrap(branch)
    assert type(branch) is StockBranch
    gate.open()
    assert await call == "fine"
    assert isinstance(lionnb.wrap(branch), lionnb.Branch)


async def test_a_stock_stream_that_is_suspended_or_not_yet_awaited_is_a_call_in_flight():
    branch = stock()
    stream = branch.run("q")
    await anext(stream)
    with pytest.raises(AdoptionError, match="in flight"):
        lionnb.wrap(branch)
    assert isinstance(lionnb.wrap(stock()), lionnb.Branch)  # another Branch is not
    await stream.aclose()
    later = branch.communicate("q")
    with pytest.raises(AdoptionError, match="in flight"):
        lionnb.wrap(branch)
    later.close()
    assert isinstance(lionnb.wrap(branch), lionnb.Branch)


@pytest.mark.parametrize("what", [None, object(), "branch", StockSession])
def test_what_is_no_branch_is_refused(what):
    with pytest.raises(AdoptionError, match="takes a lionagi Branch"):
        lionnb.wrap(what)


# --- copies carry no turn state ------------------------------------------------------------------------------------------


async def in_a_turn(branch, look):
    """Call *look* in the middle of a turn of *branch*."""

    async def middle(*_, **__):
        return look()

    return await branch.operate(instruction="q", middle=middle, skip_validation=True)


def assert_fresh(made, branch):
    assert made is not branch and isinstance(made, lionnb.Branch)
    assert made.turn_state is not branch.turn_state
    assert made.current_turn is None and made.turns.records() == []
    assert made._last_context_report.state is made.turn_state


@pytest.mark.parametrize(
    "how", [copy.copy, lambda b: b.model_copy(), lambda b: b.clone()], ids=["copy", "model_copy", "clone"]
)
async def test_a_copy_made_in_the_middle_of_a_turn_has_a_state_of_its_own(how):
    branch = lionnb.Branch(chat_model=scripted_model("x"))
    made = await in_a_turn(branch, lambda: how(branch))
    assert_fresh(made, branch)
    assert branch.turns.records() != []


def test_the_state_itself_copies_and_pickles_as_a_fresh_one():
    branch = lionnb.Branch(chat_model=scripted_model("x"))
    state = branch.turn_state
    state.report = "a report"
    for made in (copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        assert made is not state and made.report is None and made.lock is not state.lock


async def test_a_clone_has_the_messages_and_works_beside_its_original():
    gate = Gate()
    branch = lionnb.Branch(chat_model=scripted_model(["one", "two", "three"], gate=gate))
    gate.open()
    await branch.communicate("first")
    gate.close()
    other = branch.clone()
    assert [m.response for m in other.messages if hasattr(m, "response")] == ["one"]
    calls = [asyncio.create_task(b.communicate("q")) for b in (branch, other)]
    await gate.reached(2)  # both at once: distinct Branches are independent
    gate.open()
    await asyncio.gather(*calls)


async def test_an_asynchronous_clone_is_turn_aware_too():
    branch = lionnb.Branch(chat_model=scripted_model("x"))
    assert_fresh(await branch.aclone(), branch)


# --- stored ----------------------------------------------------------------------------------------------------------------


def flat(value):
    return json.dumps(value, default=str)


async def test_a_snapshot_made_in_the_middle_of_a_turn_has_nothing_of_it_and_is_readable_by_stock_lionagi():
    branch = lionnb.Branch(chat_model=scripted_model("x"), name="A", system="be brief")
    data = await in_a_turn(branch, branch.to_dict)
    assert "lionnb.turns" not in flat(data) and "_turns" not in flat(data)
    assert data["metadata"]["lion_class"] == stock().to_dict()["metadata"]["lion_class"]
    again = StockBranch.from_dict(data, chat_model=scripted_model("read by stock"))
    assert type(again) is StockBranch and again.id == branch.id and again.name == "A"
    assert await again.communicate("q") == "read by stock"


async def test_a_stock_snapshot_is_readable_as_a_turn_aware_branch():
    data = stock(name="S").to_dict()
    branch = lionnb.Branch.from_dict(data, chat_model=scripted_model("fine"))
    assert type(branch) is lionnb.Branch and branch.name == "S"
    assert await branch.communicate("q") == "fine"
    assert len(branch.turns.records()) == 1
    twice = lionnb.Branch.from_dict(branch.to_dict(), chat_model=scripted_model("fine"))
    assert [str(m.id) for m in twice.messages] == [str(m.id) for m in branch.messages]


async def test_a_snapshot_of_an_adopted_subclass_names_the_subclass():
    class Mine(StockBranch):
        pass

    branch = lionnb.wrap(Mine(chat_model=scripted_model("x")))
    assert branch.to_dict()["metadata"]["lion_class"] == Mine.class_name(full=True)


# --- the rest ----------------------------------------------------------------------------------------------------------------


async def test_the_specifications_names_are_readable():
    gate = Gate()
    branch = lionnb.Branch(chat_model=scripted_model("x", gate=gate))
    assert branch._active_turn_context is None and not branch._turn_lock.locked()
    call = asyncio.create_task(branch.chat("q"))
    await gate.reached()
    context = branch._active_turn_context
    assert branch._turn_lock.locked() and context.owner_task is call and context.phase == "active"
    assert context.model is branch.mdls.chat and context.provider_blocks == ()
    gate.open()
    await call
    assert context.phase == "closed" and branch._active_turn_context is None


async def test_usage_in_run_end_is_cumulative_as_lionagi_defines_it():
    session = lionnb.Session(default_branch=lionnb.Branch(chat_model=scripted_model("one two")))
    seen = []
    session.observe(RunEnd, handler=lambda e, _: seen.append((e.output_tokens, e.duration_ms > 0)))
    for _ in range(2):
        await session.default_branch.communicate("q")
    assert seen == [(2, True), (4, True)]
    assert [r.usage.output_tokens for r in session.default_branch.turns.records()] == [2, 2]


async def test_drain_signals_outside_of_a_turn_waits_for_what_belongs_to_none():
    branch, gate, done = lionnb.Branch(chat_model=scripted_model("x")), Gate(), []
    session = lionnb.Session(default_branch=branch)

    async def slow(*_):
        await gate.wait()
        done.append(1)

    session.observe(MessageAdded, handler=slow)
    branch.msgs.add_message(instruction="by hand", sender="user", recipient=branch.id)
    draining = asyncio.create_task(branch.drain_signals())
    await gate.reached()
    assert not draining.done()
    gate.open()
    await draining
    assert done == [1, 1] or done == [1]


def test_a_message_added_without_a_loop_emits_nothing_and_is_in_the_log():
    session = lionnb.Session(default_branch=lionnb.Branch(chat_model=scripted_model("x")))
    branch = session.default_branch
    branch.msgs.add_message(instruction="by hand", sender="user", recipient=branch.id)
    assert [e.data["text"] for e in branch.turns.events()] == ["by hand"]


async def test_the_run_stream_takes_the_arguments_of_lionagis_own(tmp_path):
    branch = lionnb.Branch(chat_model=scripted_model("x"), name="A")
    stream = branch.run(
        "q", guidance="g", context={"c": 1}, stream_persist=True, persist_dir=str(tmp_path), snapshot_dir=str(tmp_path)
    )
    messages = [m async for m in stream]
    assert messages[0].content.guidance == "g" and messages[0].content.prompt_context == [{"c": 1}]
    assert (tmp_path / f"{branch.id}.json").exists()  # written before the turn's terminal


# --- what a person hands in ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelt", [str, lambda turn_id: UUID(turn_id)], ids=["as shown", "as in signals"])
async def test_a_control_takes_the_turn_id_as_it_is_shown(spelt):
    gate = Gate()
    branch = lionnb.Branch(chat_model=scripted_model("x", gate=gate))
    task = asyncio.create_task(branch.chat("q"))
    await gate.reached()
    turn_id = spelt(branch.current_turn.turn_id)
    for nothing in ("", "nope", 7, str(UUID(int=0)), UUID(int=0)):
        assert branch.control("cancel", turn_id=nothing) is False
    assert branch.control("cancel", turn_id=turn_id) is True
    assert branch.poll_control(turn_id="nope") is None
    assert branch.poll_control(turn_id=turn_id).directive is LoopDirective.CANCEL
    gate.open()
    await task


async def test_after_turn_takes_a_function_of_either_kind_and_refuses_a_call(caplog):
    branch, done = lionnb.Branch(chat_model=scripted_model("x")), []

    async def later() -> None:
        done.append("coroutine")

    lionnb.after_turn(branch, later)
    lionnb.after_turn(branch, lambda: done.append("plain"))
    with pytest.raises(TypeError, match="pass f, not f"):
        lionnb.after_turn(branch, later())
    for nothing in (None, "x"):
        with pytest.raises(TypeError, match=r"takes a lionnb\.Branch"):
            lionnb.after_turn(nothing, later)
        with pytest.raises(TypeError, match=r"takes a lionnb\.Branch"):
            lionnb.mend(nothing)
    while branch.turn_state.detached:
        await asyncio.sleep(0)
    assert sorted(done) == ["coroutine", "plain"] and not caplog.records
