"""The main scene: a person tells a running leg something, and sees what becomes of it."""

from __future__ import annotations

from pathlib import Path

import nbformat
from playwright.sync_api import expect

from tests.browser.view import ViewOnPage

QUICKSTART = Path(__file__).parents[2] / "notebooks" / "01_quickstart.ipynb"
STEER = "only sources after 2020"
# The notebook gives a person fifteen seconds; this one may sit at a slow machine.
PATIENT = {r"after_s=15": "after_s=600"}


def cells_with(*words: str) -> list[int]:
    cells = nbformat.read(QUICKSTART, as_version=4).cells
    return [next(i for i, c in enumerate(cells) if c.cell_type == "code" and word in c.source) for word in words]


LEG, PERSON, RESULT, TABLE, CLAIM = cells_with(
    "start_leg(", "await person", "await leg", "frames.controls(", 'assert set(controls["fate"])'
)


def test_a_steer_that_is_sent_during_the_turn_lands(notebook) -> None:
    """Run All, and then a person types."""
    nb = notebook(QUICKSTART, replace=PATIENT)
    nb.run_all(wait=False)
    view = ViewOnPage(nb, LEG)
    view.wait_in_turn()
    view.watch()
    view.steer(STEER)
    view.wait_chip("applied")
    view.wait_status("completed")
    nb.wait_done()
    # Forward only. What changes twice within a batch is shown once, and here the turn ends as soon as the person has
    # spoken; that it reads queued for as long as a turn goes on is seen below.
    chips = ["queued", "delivering", "applied"]
    assert view.seen == [chip for chip in chips if chip in view.seen] and view.seen[-1] == "applied"
    assert nb.text(CLAIM).startswith("the steer was applied in turn ")
    assert nb.text(RESULT).startswith("completed - 2 turns")
    row = nb.output(TABLE).get_by_role("row").nth(1)
    for word in (STEER, "applied", "completed"):
        expect(row).to_contain_text(word)
    expect(view.transcript).to_contain_text("Four of them are newer than 2020")
    assert nb.errors == []
    assert nb.foreign_requests == []


def test_cell_by_cell_the_steer_waits_as_queued_until_the_turn_ends(notebook) -> None:
    """In both themes, switched while it waits; what is seen here is in tests/out."""
    nb = notebook(QUICKSTART, replace=PATIENT)
    for i in range(LEG + 1):
        if nb.is_code(i):
            nb.run_cell(i)
    view = ViewOnPage(nb, LEG)
    view.wait_in_turn()
    expect(view.transcript).to_contain_text("the most")
    view.steer(STEER)
    queued = view.wait_chip("queued")
    expect(queued).to_contain_text(STEER)
    expect(queued).to_contain_text("lands at the end of the current turn")
    expect(view.sent).to_have_count(0)
    assert view.box.input_value() == ""
    for theme in ("dark", "light"):
        nb.set_theme(theme)
        nb.screenshot("scene-queued", cell=LEG)
    nb.run_cell(PERSON)
    nb.run_cell(RESULT)
    view.wait_chip("applied")
    view.wait_status("completed")
    nb.run_cell(TABLE)
    nb.run_cell(CLAIM)
    assert nb.text(CLAIM).startswith("the steer was applied in turn ")
    expect(view.send).to_be_disabled()
    for theme in ("dark", "light"):
        nb.set_theme(theme)
        nb.screenshot("scene-applied", cell=LEG)
        nb.picture("scene-notebook")
    assert nb.errors == []
    assert nb.foreign_requests == []
