"""The stop square, and the end of a kernel: what is left on record is true."""

from __future__ import annotations

import signal

import psutil
import pytest

import lionnb
from tests.cells import SETUP, START


@pytest.mark.parametrize("what", ["leg", "branch.communicate('hello')", "gate.wait()"])
def test_the_stop_square_ends_the_wait_and_not_the_leg(kernel, what) -> None:
    """Nothing else wakes the loop here: no view, no heartbeat, a provider that is silent."""
    kernel.run(START[:-1] + ", heartbeat_s=None)\nawait gate.reached()")
    cell = kernel.begin(f"print('waits')\nawait {what}")
    kernel.until(lambda: cell.printed, "the cell")
    kernel.interrupt()
    kernel.wait(cell)
    assert cell.error.startswith("CancelledError")
    assert kernel.value("leg.live") is True
    kernel.run("gate.open()\nresult = await leg")
    assert kernel.value("[str(result.status), len(result.turns)]") == ["completed", 1]


def test_the_stop_square_ends_a_computation_and_not_the_leg(kernel, hold) -> None:
    kernel.run(START)
    cell = kernel.begin(f"print('computes')\n{hold.blocks}")
    kernel.until(lambda: cell.printed, "the cell")
    kernel.interrupt()
    kernel.wait(cell)
    assert cell.error.startswith("KeyboardInterrupt")
    assert kernel.value("leg.live") is True
    kernel.run("gate.open()\nawait leg")


async def test_no_other_process_has_its_signals_touched() -> None:
    """Only in a kernel do signals wake the loop by our doing."""
    before = signal.set_wakeup_fd(-1)
    try:
        lionnb.Branch()
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.set_wakeup_fd(before)


@pytest.mark.parametrize("meanwhile", ["", "await leg"])
def test_a_kernel_that_is_shut_down_leaves_a_true_record(own_kernel, meanwhile) -> None:
    """No task is cancelled and no ``finally`` runs at a shutdown: the hook at exit ends the leg."""
    own_kernel.run(f"{START}\nleg")
    receipt = own_kernel.value("leg.steer('only sources after 2020').control_id")
    if meanwhile:
        cell = own_kernel.begin(f"print('waits')\n{meanwhile}")
        own_kernel.until(lambda: cell.printed, "the cell")
    own_kernel.shutdown()
    (session,) = own_kernel.sessions()
    (control,) = own_kernel.controls()
    assert (session["status"], session["leg"]) == ("cancelled", None)
    assert (control["id"], control["state"]) == (receipt, "rejected")
    assert session["ended_at"] == control["closed_at"]
    # a cell that is cut off in its await makes ipykernel complain of its own closed sockets
    assert meanwhile or "Traceback" not in own_kernel.log.read_text()


def test_a_restarted_kernel_leaves_a_true_record_and_works(own_kernel) -> None:
    own_kernel.run(START)
    own_kernel.run("receipt = leg.steer('only sources after 2020')")
    own_kernel.restart()
    assert [s["status"] for s in own_kernel.sessions()] == ["cancelled"]
    own_kernel.run(SETUP)
    own_kernel.run(f"{START}\ngate.open()\nawait leg")
    assert [s["status"] for s in own_kernel.sessions()] == ["cancelled", "completed"]


def test_a_killed_kernel_loses_no_acknowledged_steer(own_kernel) -> None:
    """SIGKILL: nothing runs any more. The row still says *running*, and its process is gone."""
    own_kernel.run(f"{START}\nleg")
    said = own_kernel.view.answer(own_kernel.view.steer("only sources after 2020"))
    pid = own_kernel.pid
    own_kernel.kill()
    (session,) = own_kernel.sessions()
    (control,) = own_kernel.controls()
    assert (session["status"], session["pid"]) == ("running", pid)
    assert not psutil.pid_exists(pid)
    assert (control["id"], control["state"]) == (said["control_id"], "pending")
