"""The reading front, on real legs and real stores."""

from __future__ import annotations

import pytest

import lionnb
from lionnb import frames
from lionnb.errors import ResolveRefusedError, UnknownIdError
from lionnb.legs import steering
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


@pytest.mark.parametrize("make", [frames.controls, frames.turns, frames.legs])
def test_something_else_is_refused_instead_of_an_empty_table(make):
    """An empty table would look like an answer."""
    with pytest.raises(TypeError, match="a table is made of a Branch, a leg"):
        make(42)


async def test_controls_of_a_branch_are_those_of_its_legs(road):
    """The natural guess works: this kernel's legs on that Branch, and no other's."""
    leg = await steered(road)
    assert frames.controls(leg.branch).equals(frames.controls(leg))
    assert frames.controls(lionnb.Branch(chat_model=road.model(["x"]))).empty


async def test_a_person_withdraws_and_resolves_by_name_and_a_turn_cannot(road, monkeypatch):
    """The row says who; a call from inside a turn is refused and changes nothing."""
    monkeypatch.setattr(steering, "RECORDED_WITHIN_S", 0.0)  # as on a slow disk: the rows are still on their way
    gate, refused = lionnb.testing.Gate(), []
    branch = lionnb.Branch(chat_model=road.model(["one", "two"], gate=gate))

    def meddle(event):
        if event.kind == "text" and not refused:  # told inside the turn
            with pytest.raises(ResolveRefusedError, match="from inside a turn") as caught:
                lionnb.withdraw(receipts[0].control_id, by="a tool")
            refused.append(caught.value.reason)

    leg = lionnb.start_leg(branch, "Survey X")
    receipts = [leg.steer("first"), leg.steer("second")]
    branch.turns.listen(meddle)
    await gate.reached()
    assert lionnb.withdraw(receipts[1].control_id, by="Ada").closed_by == "Ada"
    with pytest.raises(ResolveRefusedError, match="not") as caught:
        lionnb.resolve(receipts[0].control_id, "applied", by="Ada")
    assert caught.value.reason == "not_claimed"
    gate.open()
    await leg
    assert frames.controls(leg)["fate"].tolist() == ["applied", "withdrawn"] and refused == ["turn"]


async def test_a_steer_is_withdrawn_in_the_next_line(road, monkeypatch):
    """On a slow disk its row is still on its way; the first use of the store is slow enough."""
    monkeypatch.setattr(steering, "RECORDED_WITHIN_S", 0.0)
    leg = lionnb.start_leg(lionnb.Branch(chat_model=road.model("one")), "Survey X")
    receipt = leg.steer("no, wait")
    assert lionnb.withdraw(receipt, by="Ada").closed_by == "Ada"
    assert len((await leg).turns) == 1


def registered(*runs: SessionSpec) -> None:
    """Runs in the default store, as other processes would have left them."""
    for spec in runs:
        default_store().submit(lambda core, spec=spec: core.start_session(spec, 0.0)).result(30)


def test_a_run_whose_process_is_gone_reads_lost_and_its_steers_have_their_fate():
    """b13: what reading shows is computed: nothing is recorded by it."""
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
