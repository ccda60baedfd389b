"""The reading front, on real legs and real stores."""

from __future__ import annotations

import pytest

import lionnb
from lionnb import frames
from lionnb.errors import UnknownIdError
from lionnb.records import SessionSpec
from lionnb.store.lease import identity
from lionnb.store.store import default_store


async def steered(road, *, name: str | None = None) -> lionnb.Leg:
    """A leg that has ended, with one steer applied."""
    gate = lionnb.testing.Gate()
    leg = lionnb.start_leg(lionnb.Branch(chat_model=road.model(["one", "two"], gate=gate)), "Survey X", name=name)
    await gate.reached()
    leg.steer("only sources after 2020")
    gate.open()
    await leg
    return leg


async def test_controls_of_a_leg_name_the_turn_that_carried_them(road):
    """One row, fate applied, and its turn is the leg's second."""
    leg = await steered(road)
    frame = frames.controls(leg)
    assert frame["fate"].tolist() == ["applied"] and frame["text"].tolist() == ["only sources after 2020"]
    assert frame["turn_id"].tolist() == [leg.turns[1].turn_id] and frame["in_history"].tolist() == [True]


async def test_a_run_id_and_a_store_give_the_same_rows(road):
    """Three ways to name one run."""
    leg = await steered(road)
    of_leg = frames.controls(leg)
    assert frames.controls(leg.run_id).equals(of_leg)
    assert frames.controls(default_store()).equals(of_leg)
    assert frames.legs(leg)["status"].tolist() == ["completed"]


async def test_turns_of_a_branch_of_a_leg_and_of_the_store_agree(road):
    """The log and the store tell the same of the leg's turns; the Branch's log has the foreground call too."""
    leg = await steered(road)
    await leg.branch.chat("and this is not the leg's")
    assert frames.turns(leg.branch)["operation"].tolist() == ["operate", "operate", "chat"]
    assert frames.turns(leg)["outcome"].tolist() == ["completed", "completed"]
    stored = frames.turns(leg.run_id)
    assert stored["turn_id"].tolist() == frames.turns(leg)["turn_id"].tolist()
    assert stored["steers"].tolist() == [0, 1] and stored["output_tokens"].notna().all()


async def test_without_legs_the_tables_are_empty_and_right():
    """A Branch without turns; a store without runs."""
    assert frames.turns(lionnb.Branch(chat_model=lionnb.testing.scripted_model(["x"]))).empty
    assert frames.controls(default_store()).empty and "fate" in frames.controls(default_store()).columns


def test_an_unknown_run_is_named():
    """Nothing is shown instead of an empty table that looks like an answer."""
    with pytest.raises(UnknownIdError, match="nothing here is called 'nobody'"):
        frames.controls("nobody")


def test_turns_of_something_else_are_refused():
    """A sentence, not an attribute error."""
    with pytest.raises(TypeError, match=r"frames\.turns\(\) takes"):
        frames.turns(42)


def registered(*runs: SessionSpec) -> None:
    """Runs in the default store, as other processes would have left them."""
    for spec in runs:
        default_store().submit(lambda core, spec=spec: core.start_session(spec, 0.0)).result(30)


def test_a_run_whose_process_is_gone_reads_lost_and_its_steers_have_their_fate():
    """What reading shows is computed: nothing is recorded by it."""
    made = {"branch_id": "b", "created_at": 0.0} | identity()
    dead = SessionSpec(id="s-1", run_id="20261130T101010-aaaaaa", leg="leg-1", **made)
    registered(dead, SessionSpec(id="s-2", run_id="20261130T101010-bbbbbb", leg="leg-2", **made))

    async def steers(core):
        await core.admit("s-1", text="claimed", by="ana", now=1.0)
        await core.claim_all("s-1", "leg-1", 2.0)
        await core.admit("s-1", text="waits", by="ana", now=3.0)
        await core.admit("s-2", text="waits", by="ana", now=3.0)
        gone = dead.model_copy(update={"pid_start": "1", "leg": "leg-1"})
        assert await core.resume_session(gone, dead_leg="leg-1", now=0.0)

    default_store().submit(steers).result(30)
    for _ in range(2):
        assert frames.legs(default_store())["status"].tolist() == ["lost", "running"]
        assert frames.legs(default_store())["leg"].tolist() == ["dead", "alive"]
        assert frames.controls(default_store())["fate"].tolist() == ["never_reported", "never_landed", "pending"]
    assert frames.controls(default_store())["chip"].tolist() == ["needs you", "not delivered", "queued"]
    assert frames.controls(default_store())["state"].tolist() == ["delivering", "pending", "pending"]


async def test_a_leg_says_which_process_runs_it(road):
    """Its row has this process, and the tables say that it is alive, and nothing once it has ended."""
    gate = lionnb.testing.Gate()
    leg = lionnb.start_leg(lionnb.Branch(chat_model=road.model(["one"], gate=gate)), "Survey X")
    await gate.reached()
    (row,) = await leg.store.run(lambda core: core.list_sessions())
    assert row.model_dump(include=set(identity())) == identity()
    assert frames.legs(leg)["leg"].tolist() == ["alive"]
    gate.open()
    await leg
    assert frames.legs(leg)["leg"].isna().all() and not leg.store._hearts
