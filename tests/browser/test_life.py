"""A view's life on the page: a reload, a restart, a second display; and what is pressed in it."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.view import ViewOnPage
from tests.cells import SETUP, START, Hold, steers

END = "gate.open()\nresult = await leg"
API = """
server = LoopbackServer(answers, gate=gate)
branch = lionnb.Branch(chat_model=server.model(), name="survey")
"""


def live_leg(notebook, *more: str, setup: str = SETUP) -> tuple:
    """A notebook with a leg in its first turn, and its view."""
    nb = notebook(setup, f"{START}\nleg", END, *more)
    nb.run_cell(0)
    nb.run_cell(1)
    view = ViewOnPage(nb, 1)
    view.wait_in_turn()
    return nb, view


def test_a_page_that_is_reloaded_shows_the_same_and_works(notebook) -> None:
    nb, view = live_leg(notebook)
    view.steer("before the reload")
    view.wait_chip("queued")
    turn = view.root.get_by_role("button", name="Cancel turn").inner_text()
    expect(view.transcript).to_contain_text("the first")
    nb.save()
    nb.reload()
    view.wait_in_turn()
    expect(view.transcript).to_contain_text("the first")
    expect(view.wait_chip("queued")).to_contain_text("before the reload")
    assert view.root.get_by_role("button", name="Cancel turn").inner_text() == turn
    view.steer("after the reload")
    expect(view.wait_chip("queued")).to_contain_text("after the reload")
    nb.run_cell(2)
    view.wait_status("completed")
    view.wait_chip("applied", nth=0)
    view.wait_chip("applied", nth=1)
    assert nb.errors == []


def restarts(nb) -> None:
    nb.restart_kernel()


def dies(nb) -> None:
    """JupyterLab sees that a kernel is dead, says so in a dialog, and starts another one."""
    nb.run_cell(3, wait=False)
    nb.page.get_by_role("dialog").get_by_role("button", name="Ok").click()
    nb.wait_ready()


@pytest.mark.parametrize("ends", [restarts, dies])
def test_a_kernel_that_is_gone_is_said_to_be_gone(notebook, lab, ends) -> None:
    """The old view stays on the page after a restart; it must not look alive, nor take a steer that nobody gets."""
    nb, view = live_leg(notebook, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    view.box.press_sequentially("half a thought")
    ends(nb)
    expect(view.root).to_contain_text("The kernel of this view is gone")
    view.wait_status("running when last heard")
    expect(view.send).to_be_disabled()
    expect(view.root.get_by_role("button", name="Cancel turn")).to_be_disabled()
    assert view.box.input_value() == "half a thought"
    nb.screenshot("kernel-gone", cell=1)
    nb.run_cell(0)
    nb.run_cell(1)
    view.wait_in_turn()
    expect(view.root).not_to_contain_text("is gone")
    said = f"to the new kernel after it {ends.__name__}"
    view.steer(said)
    view.wait_chip("queued")
    nb.run_cell(2)
    view.wait_chip("applied")
    assert len(steers(lab.database, said)) == 1


def test_two_displays_of_a_leg_are_one_view_and_one_click_is_one_steer(notebook, lab) -> None:
    nb, one = live_leg(notebook, "leg")
    nb.run_cell(3)
    two = ViewOnPage(nb, 3)
    two.wait_in_turn()
    two.steer("said once")
    for view in (one, two):
        expect(view.wait_chip("queued")).to_contain_text("said once")
        expect(view.steers).to_have_count(1)
        expect(view.sent).to_have_count(0)
    assert len(steers(lab.database, "said once")) == 1
    one.root.get_by_role("button", name="Withdraw: said once").click()
    for view in (one, two):
        view.wait_chip("not delivered")
    nb.run_cell(2)
    for view in (one, two):
        view.wait_status("completed")
    assert [row["state"] for row in steers(lab.database, "said once")] == ["withdrawn"]
    assert nb.errors == []


def test_a_withdrawn_steer_never_lands(notebook) -> None:
    nb, view = live_leg(notebook, "len(result.turns)")
    view.steer("a slip")
    view.wait_chip("queued")
    view.root.get_by_role("button", name="Withdraw: a slip").click()
    row = view.wait_chip("not delivered")
    expect(row).to_contain_text("withdrawn by")
    expect(row.get_by_role("button")).to_have_count(0)
    nb.run_cell(2)
    nb.run_cell(3)
    assert nb.text(3) == "1"
    expect(view.transcript).not_to_contain_text("Live correction")


def test_cancel_ends_the_turn_on_an_api_model_and_the_steer_lands_next(notebook) -> None:
    """lionagi polls a CANCEL only in streams; an API model's turn is ended through the driver."""
    nb, view = live_leg(notebook, "[turn.outcome.value for turn in result.turns]", setup=SETUP + API)
    view.steer("another way")
    view.wait_chip("queued")
    cancel = view.root.get_by_role("button", name="Cancel turn")
    first = cancel.inner_text()
    view.settle()
    cancel.click()
    expect(view.transcript).to_contain_text("cancelled")
    view.wait_chip("delivering")
    view.wait_in_turn()
    expect(cancel).not_to_have_text(first)
    nb.run_cell(2)
    view.wait_chip("applied")
    nb.run_cell(3)
    assert nb.text(3) == "['cancelled', 'completed']"
    assert nb.errors == []


def test_a_refused_steer_keeps_its_text_and_says_why(notebook, lab) -> None:
    nb, view = live_leg(notebook)
    long = "x" * 70_000
    view.box.fill(long)
    view.send.click()
    expect(view.sent.first).to_contain_text("the steer has 70,000 bytes and the limit is 65,536")
    assert view.box.input_value() == long
    assert steers(lab.database, long) == []
    nb.screenshot("refused", cell=1)
    view.box.fill("shorter, and too late")
    nb.run_cell(2)
    view.wait_status("completed")
    expect(view.send).to_be_disabled()
    view.box.press("Control+Enter")
    expect(view.root).to_contain_text("The leg has ended: nothing would read it. Your text stays here.")
    assert view.box.input_value() == "shorter, and too late"
    assert steers(lab.database, "shorter, and too late") == []


def test_stop_takes_two_presses_and_says_what_becomes_of_what_is_queued(notebook) -> None:
    nb, view = live_leg(notebook, "str((await leg).status)")
    view.steer("never")
    view.wait_chip("queued")
    stop = view.root.get_by_role("button", name="Stop leg")
    stop.click()
    expect(view.root).to_contain_text("Press again to stop it")
    view.root.get_by_role("button", name="Press again to stop").click()
    view.wait_status("cancelled")
    view.wait_chip("not delivered")
    nb.run_cell(3)
    assert nb.text(3) == "'cancelled'"


def test_whoever_types_while_the_leg_ends_goes_on_typing_in_the_box(notebook, tmp_path) -> None:
    """The end of a leg draws its view anew. The keys must not go to JupyterLab, where dd deletes a cell."""
    hold = Hold(tmp_path / "hold")
    nb, view = live_leg(
        notebook,
        f"import threading\nthreading.Thread(target=lambda: ({hold.blocks}, gate.open()), daemon=True).start()",
    )
    nb.run_cell(3)
    cells = nb.page.locator(".jp-Notebook .jp-Cell").count()
    view.box.press_sequentially("half a")
    hold.let_go()
    view.wait_status("completed")
    expect(view.box).to_be_focused()
    nb.page.keyboard.type("dd thought")
    assert view.box.input_value() == "half add thought"
    assert nb.page.locator(".jp-Notebook .jp-Cell").count() == cells
