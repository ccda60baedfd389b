"""A steer that is sent while a cell keeps the kernel busy.

JupyterLab sends a widget's messages to a subshell, so this front end can have it recorded at once, whatever the cell
does. Where there are no subshells, tests/kernel tells.
"""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.view import ViewOnPage
from tests.cells import SETUP, START, Hold, steers


@pytest.fixture
def hold(tmp_path) -> Hold:
    return Hold(tmp_path / "hold")


def busy_notebook(notebook, cell: str) -> tuple:
    """A live leg, and a cell that keeps the kernel busy until it is let go."""
    nb = notebook(
        f"{SETUP}\nfrom lionnb.legs import lag\nlag.SAYS_S = 1",
        f"{START}\nleg",
        f"print('busy', flush=True)\n{cell}",
        "gate.open()\nresult = await leg",
    )
    nb.run_cell(0)
    nb.run_cell(1)
    view = ViewOnPage(nb, 1)
    view.wait_in_turn()
    nb.run_cell(2, wait=False)
    nb.wait_text(2, "busy")
    return nb, view


def is_busy(nb) -> bool:
    return nb.page.evaluate("() => !window.lionnbTest.ended(2)")


def test_while_a_cell_awaits_the_steer_is_recorded_and_shown(notebook, lab, hold) -> None:
    nb, view = busy_notebook(notebook, hold.awaits)
    view.steer("while it awaits")
    expect(view.wait_chip("queued")).to_contain_text("while it awaits")
    assert [row["state"] for row in steers(lab.database, "while it awaits")] == ["pending"]
    assert is_busy(nb)
    hold.let_go()
    nb.wait_cell(2)
    nb.run_cell(3)
    view.wait_chip("applied")
    assert nb.errors == []


def test_while_a_cell_computes_the_steer_is_recorded_and_acknowledged(notebook, lab, hold, theme) -> None:
    """The main loop stands still: the answer comes from the thread that took the message, and the page shows it."""
    text = f"while it computes, in {theme}"  # the notebooks share one database
    nb, view = busy_notebook(notebook, hold.blocks)
    view.steer(text)
    sent = view.sent.first
    expect(sent).to_contain_text("lands at the end of the current turn")
    expect(sent.locator(".ln-chip")).to_contain_text("queued")
    expect(sent).to_contain_text(text)
    assert [row["state"] for row in steers(lab.database, text)] == ["pending"]
    assert is_busy(nb)
    # the control thread says that the loop stands still
    expect(view.root).to_contain_text(
        re.compile(r"Starved \d+ s by a cell: the leg stands still until the loop is free")
    )
    nb.set_theme(theme)
    nb.screenshot("busy-computing", cell=1)
    # and still shows what it sent
    expect(sent).to_contain_text(text)
    assert is_busy(nb)
    hold.let_go()
    nb.wait_cell(2)
    view.wait_chip("queued")
    expect(view.root.locator(".ln-pulse")).to_be_hidden()
    expect(view.root).to_contain_text(re.compile(r"starved \d+ s by a cell: the leg stood still meanwhile"))
    nb.screenshot("busy-computed", cell=1)
    expect(view.sent).to_have_count(0)
    nb.run_cell(3)
    expect(view.wait_chip("applied")).to_contain_text(text)
    expect(view.steers).to_have_count(1)
    assert [row["state"] for row in steers(lab.database, text)] == ["applied"]
    assert nb.errors == []
