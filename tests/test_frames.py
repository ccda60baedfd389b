"""The reading front, on real legs and real stores."""

from __future__ import annotations

import pytest

import lionnb
from lionnb import frames
from lionnb.errors import UnknownIdError
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
