"""A notebook that nobody watches, run by nbclient: with `settle` in its last cell, and without."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.cells import SETUP, START, rows
from tests.kernel.front import LIMIT_S

SCRIPT = f"{START}\nreceipt = leg.steer_after(turn=1, text='only sources after 2020')"


@contextlib.asynccontextmanager
async def running(world: Path, log: Path, *cells: str) -> AsyncIterator[NotebookClient]:
    """Run a notebook of these cells as a script does; what its kernel writes to its own stderr goes into *log*."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    env = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    resources = {"metadata": {"path": str(world)}}
    client = NotebookClient(notebook, timeout=LIMIT_S, kernel_name="python3", resources=resources)
    with log.open("wb") as err:
        async with client.async_setup_kernel(env=env, stderr=err):
            for i, cell in enumerate(notebook.cells):
                await client.async_execute_cell(cell, i)
            yield client


def printed(cell: Any) -> str:
    return "".join(o["text"] for o in cell.outputs if o["output_type"] == "stream")


async def test_a_scripted_run_is_steered_and_settles_in_its_last_cell(world) -> None:
    """The end of the leg is in the notebook, in the cell that showed it first; and nothing is said at the kernel's end."""
    last = "settled = await lionnb.settle(timeout_s=60)\nprint(settled == (leg,), len(leg.turns), receipt.fate)"
    async with running(world, world / "kernel.log", SETUP, f"gate.open()\n{SCRIPT}\nleg", last) as client:
        shown, end = client.nb.cells[1], client.nb.cells[2]
        assert printed(end) == "True 2 applied\n"
        (view,) = [o["data"]["text/plain"] for o in shown.outputs if o["output_type"] == "display_data"]
        assert "completed" in view and "✓ applied" in view
    assert "lionnb:" not in (world / "kernel.log").read_text()
    assert [row["status"] for row in rows(world / "controls.db", "sessions")] == ["completed"]


async def test_a_kernel_that_ends_with_a_live_leg_says_so(world) -> None:
    """On the kernel's own stderr, which a script's user sees: in a notebook nobody would read it any more."""
    async with running(world, world / "kernel.log", SETUP, f"{SCRIPT}\nawait gate.reached()"):
        pass
    (run,) = rows(world / "controls.db", "sessions")
    said = [line for line in (world / "kernel.log").read_text().splitlines() if line.startswith("lionnb:")]
    assert said == [
        f"lionnb: leg 'survey' ({run['run_id']}) was still running when the kernel ended and was recorded cancelled; put "
        "`await lionnb.settle()` in the last cell."
    ]
    assert run["status"] == "cancelled"
    assert rows(world / "controls.db", "session_controls") == []


async def test_settle_in_time_or_the_cell_fails_and_names_the_leg(world) -> None:
    cell = "try:\n    await lionnb.settle(0.1)\nexcept TimeoutError as exc:\n    print(exc)\ngate.open()"
    async with running(world, world / "kernel.log", SETUP, SCRIPT, cell, "await lionnb.settle()\nNone") as client:
        assert "1 leg has not settled: 'survey' (" in printed(client.nb.cells[2])
