"""What a person presses in a view, whatever the kernel is doing, and what the view is told."""

from __future__ import annotations

import ipykernel
import pytest

from tests.cells import START, Hold
from tests.kernel.front import Front

SUBSHELLS = ipykernel.version_info[0] >= 7
BUSY = {"idle": "", "awaiting": "print('busy')\n{0.awaits}", "blocked": "print('busy')\n{0.blocks}"}


def handled_meanwhile(busy: str, route: str) -> bool:
    """Whether this kernel gives a widget's message to lionnb while it is busy so (facts measured per version)."""
    if busy == "idle" or route == "subshell":
        return True
    return busy == "awaiting" and ipykernel.version_info[:2] >= (7, 4)


def hold_busy(kernel: Front, busy: str, hold: Hold):
    """Make the kernel busy; returns what lets it go and waits for the cell's end."""
    if busy == "idle":
        return lambda: None
    cell = kernel.begin(BUSY[busy].format(hold))
    kernel.until(lambda: cell.printed, "the busy cell")

    def let_go() -> None:
        hold.let_go()
        kernel.wait(cell)

    return let_go


@pytest.mark.parametrize("route", ["subshell", "main"] if SUBSHELLS else ["main"])
@pytest.mark.parametrize("busy", BUSY)
def test_a_steer_is_recorded_at_once_where_the_kernel_can_and_lands_anyway(kernel, hold, busy, route) -> None:
    """The record is read from outside, while the cell still keeps the kernel busy."""
    kernel.run(f"{START}\nleg")
    view = kernel.view
    kernel.until(lambda: view.of_kind("start"), "the turn")
    shell = kernel.subshell() if route == "subshell" else None
    let_go = hold_busy(kernel, busy, hold)
    n = view.steer("only sources after 2020", subshell=shell)
    if not handled_meanwhile(busy, route):
        let_go()
    said = view.answer(n)
    assert said["ok"] is True
    assert said["sentence"].startswith("queued: lands at the end of the current turn")
    (row,) = kernel.controls()
    assert (row["id"], row["state"]) == (said["control_id"], "pending")
    if handled_meanwhile(busy, route):
        let_go()
    kernel.run("gate.open()\nawait leg")
    assert view.chips("only sources after 2020") == ["queued", "delivering", "applied"]
    assert [row["state"] for row in kernel.controls()] == ["applied"]


@pytest.mark.parametrize("busy", ["idle", "awaiting"])
def test_a_turn_is_cancelled_from_the_view_and_what_is_queued_lands_next(kernel, hold, busy) -> None:
    kernel.run(f"{START}\nleg")
    view = kernel.view
    (start,) = kernel.until(lambda: [e for e in view.events if e["kind"] == "start"], "the turn")
    view.answer(view.steer("another way"))
    shell = kernel.subshell() if SUBSHELLS else None
    let_go = hold_busy(kernel, busy, hold)
    n = view.press("cancel_turn", turn_id=start["turn"], subshell=shell)
    if busy == "awaiting" and shell is None:
        let_go()
    assert view.answer(n)["ok"] is True
    kernel.until(lambda: len(view.of_kind("start")) == 2, "the continuation")
    if not (busy == "awaiting" and shell is None):
        let_go()
    kernel.run("gate.open()\nawait leg")
    assert [e["outcome"] for e in view.of_kind("end")] == ["cancelled", "completed"]
    assert view.chips("another way")[-1] == "applied"
    again = view.answer(view.press("cancel_turn", turn_id=start["turn"]))
    assert again["ok"] is False
    assert "over already" in again["sentence"]


def test_a_withdrawn_steer_is_not_delivered(kernel) -> None:
    kernel.run(f"{START}\nleg")
    view = kernel.view
    control = view.answer(view.steer("a mistake"))["control_id"]
    assert view.answer(view.press("withdraw", control_id=control))["ok"] is True
    kernel.run("gate.open()\nresult = await leg")
    assert kernel.value("len(result.turns)") == 1
    assert view.chips("a mistake") == ["queued", "not delivered"]
    late = view.answer(view.press("withdraw", control_id=control))
    assert late["ok"] is False


def test_a_steer_after_the_end_is_refused_with_a_sentence_and_leaves_no_row(kernel) -> None:
    kernel.run(f"{START}\nleg")
    view = kernel.view
    kernel.run("gate.open()\nawait leg")
    said = view.answer(view.steer("too late"))
    assert said["ok"] is False
    assert "has ended" in said["sentence"]
    assert kernel.controls() == []


def test_the_same_press_sent_twice_is_one_steer(kernel) -> None:
    """A page that hears nothing offers to send again: the key makes it the same steer."""
    kernel.run(f"{START}\nleg")
    view = kernel.view
    first = view.answer(view.press("steer", text="once", key="k1"))
    second = view.answer(view.press("steer", text="once", key="k1"))
    assert first["ok"] and second["ok"]
    assert first["control_id"] == second["control_id"]
    assert len(kernel.controls()) == 1
    kernel.run("gate.open()\nawait leg")


def test_what_is_no_press_of_a_person_is_refused_and_shown(kernel) -> None:
    kernel.run(f"{START}\nleg")
    view = kernel.view
    assert view.answer(view.press("eval", text="1"))["ok"] is False
    assert view.answer(view.press("steer", text=["a"], key="k"))["ok"] is False
    assert view.answer(view.press("steer", text=" \n", key="k"))["ok"] is False
    assert kernel.controls() == []
    kernel.run("gate.open()\nawait leg")


def test_a_branch_view_cannot_steer(kernel) -> None:
    kernel.run("branch")
    said = kernel.view.answer(kernel.view.steer("hello"))
    assert said["ok"] is False


def test_displaying_a_leg_twice_shows_one_view(kernel) -> None:
    cell = kernel.run(f"{START}\nleg")
    again = kernel.run("leg")
    ids = [
        c.outputs[0]["content"]["data"]["application/vnd.jupyter.widget-view+json"]["model_id"] for c in (cell, again)
    ]
    assert ids[0] == ids[1] == kernel.view.comm_id
    assert len(kernel.views) == 1
    kernel.run("gate.open()\nawait leg")


@pytest.mark.parametrize("busy", ["idle", "blocked"])
def test_a_page_that_comes_back_is_given_the_state_as_it_is(kernel, hold, busy) -> None:
    """A reload asks for the state. Where there are subshells it is answered while a cell computes."""
    kernel.run(f"{START}\nleg")
    view = kernel.view
    kernel.until(lambda: view.of_kind("start"), "the turn")
    view.answer(view.steer("before the reload"))
    kernel.until(lambda: view.chips("before the reload"), "the steer")
    shell = kernel.subshell() if SUBSHELLS else None
    let_go = hold_busy(kernel, busy, hold)
    view.snapshot = None
    view.ask_for_state(subshell=shell)
    if shell is None:
        let_go()
    kernel.until(lambda: view.snapshot, "the state")
    if shell is not None:
        let_go()
    assert [s["text"] for s in view.snapshot["steers"]["items"]] == ["before the reload"]
    assert view.snapshot["turn"]["phase"] == "active"
    kernel.run("gate.open()\nawait leg")


def test_a_page_that_missed_something_gets_it(kernel) -> None:
    kernel.run(f"{START}\nleg")
    view = kernel.view
    kernel.until(lambda: view.of_kind("start"), "the turn")
    known, view.events = view.events, []
    view.resync(0)
    kernel.until(lambda: len(view.events) >= len(known), "the missing part")
    assert [e["kind"] for e in view.events[: len(known)]] == [e["kind"] for e in known]
    kernel.run("gate.open()\nawait leg")
