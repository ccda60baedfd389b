"""The view in JupyterLab with a real kernel: messages get through while a cell computes, a reload loses nothing, and a
kernel that is gone is said to be gone."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.slow]

MAKE = """
import asyncio, threading, time
from lionnb.records import FeedEvent
from lionnb.widgets import TurnView

heard, threads = threading.Event(), []

def on_intent(intent, reply):
    threads.append(threading.current_thread() is threading.main_thread())
    reply({"ok": True, "sentence": f"recorded {intent['text']!r}", "control_id": "c1"})
    heard.set()

made = 0

def tell(kind, turn="T1", **data):
    global made
    view.push(FeedEvent(made, time.time(), kind, turn, data))
    made += 1

view = TurnView(title="lab", can_steer=True, on_intent=on_intent)
tell("leg", None, run_id="20261130T140000-abc123", name="lab", status="running", sentence="works", queued=0)
tell("start", operation="operate", model="scripted", instruction="Count.", waited_s=0.0)
view
"""
COUNT = """
async def count():
    for i in range(10_000):
        tell("text", role="assistant", text=f"line {i}.", id=None)
        tell("signal", name="S")
        await asyncio.sleep(0.02)

counting = asyncio.create_task(count())
"""
BUSY = "print('busy'); print(heard.wait(30), threads)"  # a cell that blocks the main loop until the steer has arrived


def test_a_steer_is_answered_while_a_cell_keeps_the_main_loop_busy(notebook: Any) -> None:
    """V5, f01: where kernel and front end have subshells, at once; the cell below ends only if it came through."""
    nb = notebook(MAKE, BUSY)
    nb.run_cell(0)
    view = nb.output(0).locator(".lionnb-turn-view")
    expect(view.locator(".ln-title")).to_have_text("lab")
    nb.run_cell(1, wait=False)
    nb.wait_text(1, "busy")
    view.locator("textarea").fill("during the cell")
    view.locator("textarea").press("Control+Enter")
    expect(view.locator(".ln-out")).to_contain_text("recorded 'during the cell'")
    nb.wait_cell(1)
    assert nb.text(1) == "busy\nTrue [False]\n"
    assert nb.errors == [] and nb.foreign_requests == []


@pytest.mark.parametrize("times", [3])
def test_reloads_under_a_running_feed_lose_nothing_and_double_nothing(notebook: Any, times: int) -> None:
    """V1: after each reload every line from the first on is there, in order, once."""
    nb = notebook(MAKE, COUNT, "counting.cancel()\nprint(made)")
    nb.run_cell(0)
    nb.run_cell(1)
    view = nb.output(0).locator(".lionnb-turn-view")
    for _ in range(times):
        nb.save()
        nb.reload()
        now = view.locator(".ln-is-assistant .ln-text").last.inner_text()
        expect(view.locator(".ln-is-assistant .ln-text").last).not_to_have_text(now)
    nb.run_cell(2)
    last = (int(nb.text(2)) - 2) // 2 - 1
    expect(view.locator(".ln-is-assistant").last).to_contain_text(f"line {last}.")
    lines = view.locator(".ln-is-assistant .ln-text").all_text_contents()
    kept = [int(text.removeprefix("line ").removesuffix(".")) for text in lines]
    assert kept == list(range(kept[0], kept[0] + len(kept))) and len(kept) > 20
    assert nb.errors == []


def test_after_a_restart_the_old_view_says_that_its_kernel_is_gone(notebook: Any) -> None:
    nb = notebook(MAKE)
    nb.run_cell(0)
    view = nb.output(0).locator(".lionnb-turn-view")
    expect(view.locator(".ln-title")).to_have_text("lab")
    expect(view.locator(".ln-top .ln-chip")).to_have_text("▶running")  # what it was told has arrived
    expect(view.locator(".ln-pulse")).to_be_hidden()
    nb.restart_kernel()
    expect(view.locator(".ln-pulse")).to_contain_text("The kernel of this view is gone", timeout=20_000)
    expect(view.locator(".ln-top .ln-chip")).to_contain_text("running when last heard")


def test_keys_typed_into_the_view_are_not_labs_commands(notebook: Any) -> None:
    """In Lab's command mode Enter opens the cell, A adds one and D D deletes it: not while the view has the focus."""
    nb = notebook(MAKE, "1 + 1")
    nb.run_cell(0)
    view = nb.output(0).locator(".lionnb-turn-view")
    view.locator("textarea").click()
    for key in ("a", "b", "d", "d", "Enter", "Shift+Enter"):
        nb.page.keyboard.press(key)
    expect(view.locator("textarea")).to_have_value("abdd\n\n")
    view.get_by_role("button", name="Stop leg").focus()
    for key in ("a", "d", "d", "Enter"):
        nb.page.keyboard.press(key)
    expect(view.get_by_role("button", name="Press again to stop")).to_be_visible()
    assert nb.page.evaluate("window.jupyterapp.shell.currentWidget.content.widgets.length") == 2
    assert nb.page.evaluate("window.jupyterapp.shell.currentWidget.content.mode") == "command"


def test_the_saved_notebook_reads_without_a_kernel(notebook: Any, lab: Any, theme: str) -> None:
    nb = notebook(MAKE, theme=theme)
    nb.run_cell(0)
    expect(nb.output(0).locator(".lionnb-turn-view .ln-title")).to_have_text("lab")
    nb.screenshot(f"view-in-lab-{theme}")
    bundle = nb.outputs(0)[0]["data"]
    assert {"text/html", "text/plain", "application/vnd.jupyter.widget-view+json"} <= bundle.keys()
    assert "20261130T140000-abc123" in "".join(bundle["text/html"])
    assert "Count." in "".join(bundle["text/plain"])
