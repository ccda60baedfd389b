"""A cell that computes keeps the loop in which the legs live: said in the leg's view while it lasts, and afterwards."""

from __future__ import annotations

import pytest

from tests.cells import START

# What is measured here lasts for moments only.
QUICK = """
from lionnb.legs import lag, standstill
lag.SHOWS_S = lag.SAYS_S = 0.2
standstill.TICK_S, standstill.COUNTS_S = 0.05, 0.1
"""


@pytest.mark.parametrize("before", ["", "await asyncio.sleep(0)\n"], ids=["plain", "awaits"])
def test_the_view_says_it_while_a_cell_computes_and_the_record_afterwards(kernel, hold, before) -> None:
    kernel.run(f"{QUICK}{START}\nleg")
    kernel.run("await gate.reached()")
    view = kernel.view
    cell = kernel.begin(f"{before}{hold.blocks}")
    said = kernel.until(lambda: view.starved, "the word of the control thread")[-1]
    assert not cell.done and said["s"] >= 0.2 and said["by"] == "a cell"
    hold.let_go()
    kernel.wait(cell)
    kernel.until(lambda: view.of_kind("warning"), "the word in the transcript")
    assert view.of_kind("warning")[-1]["text"].startswith("starved ")
    assert view.of_kind("warning")[-1]["text"].endswith(" by a cell: the leg stood still meanwhile")
    kernel.run("gate.open()\nawait leg\nawait lionnb.settle()")
    starved = kernel.value(
        "[float(x) for f in (lionnb.frames.turns(leg), lionnb.frames.legs(leg)) for x in f.starved_s]"
    )
    assert starved[0] == starved[1] >= said["s"] - 0.1


def test_a_tool_that_blocks_is_not_said_to_be_a_cell(kernel, hold) -> None:
    """Also while a cell awaits the leg."""
    kernel.run(
        f"{QUICK}async def middle(branch, *args, **kwargs):\n    await gate.wait()\n    {hold.blocks}\n    return 1"
    )
    kernel.run(f"{START[:-1]}, middle=middle)\nleg")
    kernel.run("await gate.reached()")
    cell = kernel.begin("gate.open()\nawait leg")
    said = kernel.until(lambda: kernel.view.starved, "the word of the control thread")[-1]
    assert said["by"] == "a tool or provider of a leg"
    hold.let_go()
    kernel.wait(cell)
    assert cell.error is None


def test_a_timeout_in_such_a_window_says_so(kernel, hold) -> None:
    kernel.run(f"{QUICK}late = Reply(error=TimeoutError('no answer'))")
    kernel.run("branch = lionnb.Branch(chat_model=scripted_model([late], gate=gate))")
    kernel.run(f"{START}\nleg")
    kernel.run("await gate.reached()")
    view = kernel.view
    cell = kernel.begin(hold.blocks)
    kernel.until(lambda: view.starved, "the word of the control thread")
    hold.let_go()
    kernel.wait(cell)
    failed = kernel.wait(kernel.begin("gate.open()\nawait leg"))
    assert failed.error.startswith("LegFailedError: ")
    assert "(the loop was blocked for 0 s meanwhile by a cell). The history is safe" in failed.error
