"""The end of the process: a leg that is live ends as cancelled, and what was pending says that it did not land."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest

from lionnb.legs.shutdown import unfinished
from lionnb.records import RunStatus
from lionnb.store import Store

# A leg at work on a provider that never answers, with a steer queued.
PRELUDE = """
import asyncio, os, sys, threading
import lionnb
from lionnb.testing import Gate, LoopbackServer, scripted_model

gate = Gate()
server = LoopbackServer(["never"], gate=gate)

def model():
    return scripted_model(["never"], gate=gate) if ROAD == "cli" else server.model()

async def start(n=1, **how):
    legs = [lionnb.start_leg(lionnb.Branch(chat_model=model()), "Survey X", by="ana", **how) for _ in range(n)]
    await gate.reached(n)
    for leg in legs:
        leg.steer("pending")
    return legs
"""


def run_to_its_end(code: str, tmp_path, *, road: str = "cli", code_expected: int = 0) -> str:
    """Run *code* in a process of its own; give what it complained about."""
    script = f"ROAD = {road!r}\n{PRELUDE}\n{textwrap.dedent(code)}"
    environ = os.environ | {"LIONNB_DB": str(tmp_path / "end.sqlite")}
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", script],
        env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == code_expected, done.stderr
    return "\n".join(line for line in done.stderr.splitlines() if "INFO:httpx" not in line)


def record(tmp_path) -> tuple[list[str], list[str]]:
    """What the database says when the process has gone: the runs' status, the steers' state."""
    store = Store(tmp_path / "end.sqlite")
    runs = store.submit(lambda core: core.list_sessions()).result(30)
    rows = store.submit(lambda core: core.list_controls()).result(30)
    store.close()
    return [run.status.value for run in runs], [row.state.value for row in rows]


@pytest.mark.parametrize("road", ["cli", pytest.param("api", marks=pytest.mark.slow)])
def test_asyncio_run_ends_in_the_middle_of_a_leg(tmp_path, road):
    """g11."""
    said = run_to_its_end("asyncio.run(start())", tmp_path, road=road)
    assert record(tmp_path) == (["cancelled"], ["rejected"])
    assert said.count("was cancelled together with its task") == 1 and "await lionnb.settle()" in said


@pytest.mark.slow
def test_asyncio_run_ends_before_a_legs_first_step(tmp_path):
    said = run_to_its_end(
        """
        async def main():
            leg = lionnb.start_leg(lionnb.Branch(chat_model=model()), "Survey X")
            leg.steer("pending")
        asyncio.run(main())
        """,
        tmp_path,
    )
    assert record(tmp_path) == (["cancelled"], ["rejected"]) and "was cancelled together with its task" in said


@pytest.mark.parametrize("road", ["cli", pytest.param("api", marks=pytest.mark.slow)])
def test_the_interpreter_exits_with_a_loop_that_is_stopped_and_not_closed(tmp_path, road):
    """As a kernel does: nothing is cancelled and no `finally` runs, but atexit does."""
    said = run_to_its_end(
        """
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        legs = loop.run_until_complete(start())
        loop.call_soon(loop.stop)  # and one more request to stop is pending
        """,
        tmp_path,
        road=road,
    )
    assert record(tmp_path) == (["cancelled"], ["rejected"]) and "Traceback" not in said
    (line,) = [line for line in said.splitlines() if line.startswith("lionnb: ")]
    assert "was still running when the process ended and was recorded cancelled" in line
    assert line.endswith("; put `await lionnb.settle()` at the end.")


def test_many_legs_that_were_cut_off_are_said_in_one_line():
    """Names are a user's text: shown as Python shows them, on one line. What is not known to be written is not claimed."""

    def leg(n, name=None, *, recorded=True, status=RunStatus.CANCELLED):
        return SimpleNamespace(run_id=f"run-{n}", name=name, recorded=recorded, status=status)

    legs = [leg(1, "a\nb"), leg(2), leg(3), leg(4)]
    assert unfinished(legs, "kernel") == (
        "lionnb: 4 legs: 'a\\nb' (run-1), run-2, run-3 and 1 more were still running when the kernel ended and were "
        "recorded cancelled; put `await lionnb.settle()` in the last cell."
    )
    lost = unfinished([leg(1, recorded=False)], "process")
    assert "leg run-1 was still running when the process ended and may not be recorded as ended;" in lost


@pytest.mark.slow
def test_sys_exit_in_the_middle(tmp_path):
    run_to_its_end(
        """
        async def main():
            await start()
            sys.exit(3)
        asyncio.run(main())
        """,
        tmp_path,
        code_expected=3,
    )
    assert record(tmp_path) == (["cancelled"], ["rejected"])


@pytest.mark.slow
def test_legs_on_the_loop_of_another_thread(tmp_path):
    """A daemon thread still runs when atexit does."""
    said = run_to_its_end(
        """
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        legs = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
        """,
        tmp_path,
    )
    assert record(tmp_path) == (["cancelled"], ["rejected"]) and "Traceback" not in said


@pytest.mark.slow
def test_many_legs_end_together(tmp_path):
    """A kernel gives 2.5 seconds to all of them, not to each."""
    run_to_its_end(
        """
        loop = asyncio.new_event_loop()
        legs = loop.run_until_complete(start(12))
        """,
        tmp_path,
    )
    assert record(tmp_path) == (["cancelled"] * 12, ["rejected"] * 12)


@pytest.mark.slow
def test_a_turn_that_swallows_the_first_cancellation(tmp_path):
    run_to_its_end(
        """
        async def stubborn(branch, *args, **kwargs):
            try:
                gate.waiting
                await gate.wait()
            except asyncio.CancelledError:
                await asyncio.Event().wait()
        loop = asyncio.new_event_loop()
        legs = loop.run_until_complete(start(middle=stubborn))
        """,
        tmp_path,
    )
    assert record(tmp_path) == (["cancelled"], ["rejected"])


@pytest.mark.slow
def test_a_loop_that_was_closed_under_its_leg(tmp_path):
    """Nothing of the leg can run: lost, and recorded as that."""
    said = run_to_its_end(
        """
        loop = asyncio.new_event_loop()
        legs = loop.run_until_complete(start())
        loop.close()
        """,
        tmp_path,
    )
    assert record(tmp_path) == (["lost"], ["rejected"])
    assert "leg 20" in said


@pytest.mark.slow
def test_a_leg_that_had_ended_leaves_its_record_as_it_was(tmp_path):
    said = run_to_its_end(
        """
        async def main():
            (leg,) = await start()
            gate.open()
            await leg
        asyncio.run(main())
        """,
        tmp_path,
    )
    assert record(tmp_path) == (["completed"], ["applied"]) and said == ""


@pytest.mark.slow
def test_a_process_that_is_killed_loses_no_acknowledged_steer(tmp_path):
    """S6, b13: nothing runs any more; the row is there, and the reader knows that the process is not."""
    run_to_its_end(
        """
        async def main():
            await start()
            os._exit(9)
        asyncio.run(main())
        """,
        tmp_path,
        code_expected=9,
    )
    assert record(tmp_path) == ([RunStatus.RUNNING.value], ["pending"])


@pytest.mark.slow
def test_a_leg_that_nobody_awaits_and_that_fails_is_said_on_stderr(tmp_path):
    said = run_to_its_end(
        """
        async def main():
            (leg,) = await start(middle=fail)
            await asyncio.wait((leg.task,))
        async def fail(*args, **kwargs):
            await gate.wait()
            raise ValueError("no such model")
        async def soon():
            await gate.reached()
            gate.open()
        async def both():
            asyncio.ensure_future(soon())
            await main()
        asyncio.run(both())
        """,
        tmp_path,
    )
    assert "failed in turn" in said and "no such model" in said and "never retrieved" not in said


@pytest.mark.slow
def test_a_forked_child_has_no_legs_and_its_exit_touches_none(tmp_path):
    """Their loop is the parent's: to run its copy would use the parent's selector."""
    said = run_to_its_end(
        """
        loop = asyncio.new_event_loop()
        (leg,) = loop.run_until_complete(start())
        pid = os.fork()
        if pid == 0:
            assert lionnb.legs() == () and leg.live
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert leg.live
        gate.open()
        loop.run_until_complete(leg.result())
        loop.close()
        """,
        tmp_path,
    )
    assert record(tmp_path) == (["completed"], ["applied"]) and "Traceback" not in said
