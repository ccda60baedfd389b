"""The terminal matrix on a real command-line endpoint: lionagi's provider code, and a child process behind it.

The child is a small program in the place of the vendor's; everything between it and the Branch is the real thing.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from lionagi import iModel
from lionagi.providers.anthropic import claude_code
from lionagi.session.control import LoopBreak, LoopDirective
from lionagi.session.signal import RunEnd, RunFailed
from turnkit import Watched, drain, outcome_of

from lionnb.legs import start_leg

PROGRAM = """\
#!/bin/sh
here=$(dirname "$0")
echo $$ >> "$here/pids"
mode=$(cat "$here/mode")
printf '{"type":"system","session_id":"s1"}\\n'
printf '{"type":"assistant","message":{"content":[{"type":"text","text":"words"}]}}\\n'
[ "$mode" = fails ] && { echo boom >&2; exit 3; }
[ "$mode" = waits ] && read -r _ < "$here/gate"
[ "$mode" = tool ] && {
  printf '{"type":"assistant","message":{"content":[{"type":"tool_use","id":"t1","name":"Read","input":{}}]}}\\n'
  read -r _ < "$here/gate"
  printf '{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1","content":"a page"}]}}\\n'
  read -r _ < "$here/gate"
}
printf '{"type":"result","result":"words","is_error":false,"usage":{"input_tokens":3,"output_tokens":1}}\\n'
"""


class Program:
    """The program's folder: how it behaves, and who is alive."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.may_linger = False  # the provider's own cleanup was cancelled: the child may still be dying at RunFailed
        (folder / "claude").write_text(PROGRAM)
        (folder / "claude").chmod(0o755)
        os.mkfifo(folder / "gate")
        self._gate = os.open(folder / "gate", os.O_RDWR)  # held, so that neither side waits for the other to open it
        self.behaves("ends")

    def behaves(self, mode: str) -> None:
        """``ends``, ``fails`` after its first text, ``waits`` there, or uses a ``tool`` and waits round its result."""
        (self.folder / "mode").write_text(mode)

    def open_gate(self) -> None:
        """Let one that waits go on."""
        os.write(self._gate, b"go\n")

    def close(self) -> None:
        os.close(self._gate)

    @property
    def calls(self) -> int:
        """How many were started."""
        return len(self._pids())

    def _pids(self) -> list[int]:
        pids = self.folder / "pids"
        return [int(pid) for pid in pids.read_text().split()] if pids.exists() else []

    def alive(self) -> list[int]:
        """Those that live, zombies not counted."""
        found = []
        for pid in self._pids():
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
            except FileNotFoundError:
                continue
            if state != "Z":
                found.append(pid)
        return found


@pytest.fixture
def program(tmp_path, monkeypatch) -> Iterator[Program]:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(claude_code, "CLAUDE_CLI", None)  # found once in a process, and kept
    made = Program(folder)
    yield made
    made.close()


@pytest.fixture
def watched(program, observed) -> Iterator[Watched]:
    """Whoever sees a terminal signal sees no child any more."""
    made, alive = Watched(iModel(provider="claude_code", model="sonnet"), observed=observed), list[int]()
    if observed:
        for signal in (RunEnd, RunFailed):
            made.observe(signal, lambda *_: alive.extend(program.alive()))
    yield made
    assert alive == [] or program.may_linger


async def first_text(branch) -> None:
    """Until the child has said something: it is in the middle of its work."""
    came = asyncio.Event()
    stop = branch.turns.listen(lambda e: came.set() if "words" in str(e.data.get("text")) else None, chunks=True)
    async with asyncio.timeout(60):
        await came.wait()
    stop()


@pytest.mark.parametrize("call", ["run", "operate", "communicate"])
async def test_it_ends(program, watched, call):
    if call == "run":
        await drain(watched.branch.run("q"))
    else:
        await getattr(watched.branch, call)(instruction="q")
    watched.check("RunEnd")
    assert watched.outcomes == ["completed"] and program.calls == 1 and program.alive() == []


@pytest.mark.parametrize("call", ["run", "operate"])
async def test_its_failure_is_run_failed(program, watched, call):
    program.behaves("fails")
    exc = await outcome_of(drain(watched.branch.run("q")) if call == "run" else watched.branch.operate(instruction="q"))
    assert isinstance(exc, Exception)
    watched.check("RunFailed")
    assert watched.outcomes == ["failed"] and program.alive() == []


@pytest.mark.filterwarnings("ignore:turn .* left a question without an answer:UserWarning")
@pytest.mark.parametrize("call", ["run", "operate"])
@pytest.mark.parametrize("times", [1, 2])
async def test_cancelled_in_its_middle_it_is_gone_and_the_branch_is_free(program, watched, call, times):
    program.behaves("waits")
    program.may_linger = times > 1
    b = watched.branch
    task = asyncio.create_task(drain(b.run("q")) if call == "run" else b.operate(instruction="q"))
    await first_text(b)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    assert isinstance(await outcome_of(task), asyncio.CancelledError)
    watched.check("RunFailed")
    assert watched.outcomes == ["cancelled"] and program.alive() == []
    program.behaves("ends")
    await b.communicate("again")
    watched.check("RunFailed", "RunEnd")


async def test_cancelled_while_waiting_it_was_never_started(program, watched):
    program.behaves("waits")
    b = watched.branch
    first = asyncio.create_task(drain(b.run("first")))
    await first_text(b)
    second = asyncio.create_task(b.communicate("second"))
    while not b.turn_queue:
        await asyncio.sleep(0)
    second.cancel()
    assert isinstance(await outcome_of(second), asyncio.CancelledError)
    program.open_gate()
    await first
    watched.check("RunEnd")
    assert watched.outcomes == ["completed", "cancelled while waiting"] and program.calls == 1


# --- a stream that has handed out items, while the child waits ------------------------------------------------------


async def in_its_middle(stream) -> list[str]:
    """Take what the child has said before it waits: its instruction, its text, and the call of its tool."""
    return [type(await anext(stream)).__name__ for _ in range(3)]


MIDDLE = ["Instruction", "AssistantResponse", "ActionRequest"]
left_open = pytest.mark.filterwarnings("ignore:turn .* left a (question|tool call) without:UserWarning")


async def test_a_stream_that_is_never_iterated_starts_no_child(program, watched):
    stream = watched.branch.run("q")
    await stream.aclose()
    del stream
    assert watched.kinds == [] and watched.outcomes == [] and program.calls == 0


@left_open
async def test_a_stream_that_is_closed_in_its_middle_is_run_end_and_its_child_is_gone(program, watched):
    program.behaves("tool")
    stream = watched.branch.run("q")
    assert await in_its_middle(stream) == MIDDLE and len(program.alive()) == 1
    await stream.aclose()
    watched.check("RunEnd")
    assert program.alive() == [] and program.calls == 1


@left_open
@pytest.mark.filterwarnings("ignore:turn .* was dropped:UserWarning")
async def test_a_stream_that_is_dropped_in_its_middle_is_closed_before_the_next_turn(program, watched):
    program.behaves("tool")

    async def looks_at_the_first_item() -> None:
        async for _ in watched.branch.run("q"):
            break

    async def goes_to_its_middle() -> None:
        await in_its_middle(watched.branch.run("q"))

    for walk_away in (looks_at_the_first_item, goes_to_its_middle):
        await walk_away()
        gc.collect()
        program.behaves("ends")
        await watched.branch.communicate("again")
        assert program.alive() == []
        program.behaves("tool")
    watched.check("RunEnd", "RunEnd", "RunEnd", "RunEnd")
    assert watched.outcomes == ["abandoned", "completed"] * 2 and program.calls == 3


@left_open
async def test_cancel_ends_the_stream_at_its_next_poll_without_an_error(program, watched):
    program.behaves("tool")
    stream = watched.branch.run("q")
    await in_its_middle(stream)
    assert watched.branch.control(LoopDirective.CANCEL)
    program.open_gate()
    assert [type(item).__name__ async for item in stream] == []
    watched.check("RunEnd")
    assert program.alive() == []


@left_open
async def test_break_is_run_failed_with_the_original_exception(program, watched):
    program.behaves("tool")
    stream = watched.branch.run("q")
    await in_its_middle(stream)
    assert watched.branch.control(LoopDirective.BREAK)
    program.open_gate()
    assert isinstance(await outcome_of(drain(stream)), LoopBreak)
    watched.check("RunFailed")
    assert program.alive() == []


@left_open
@pytest.mark.parametrize(
    ("directive", "signal"), [(LoopDirective.CANCEL, "RunEnd"), (LoopDirective.BREAK, "RunFailed")]
)
async def test_a_coroutine_that_a_directive_stops_in_the_child_is_as_its_row_says(program, watched, directive, signal):
    program.behaves("tool")
    b = watched.branch
    task = asyncio.create_task(b.operate(instruction="q"))
    await first_text(b)
    assert b.control(directive)
    program.open_gate()
    raised = await outcome_of(task)
    assert isinstance(raised, LoopBreak) is (signal == "RunFailed")
    watched.check(signal)
    assert program.alive() == []
    program.behaves("ends")
    await b.communicate("again")


async def test_a_leg_on_it_is_steered(program):
    program.behaves("waits")
    branch = Watched(iModel(provider="claude_code", model="sonnet"), observed=True).branch
    leg = start_leg(branch, "survey", op="run")
    await first_text(branch)
    receipt = leg.steer("only after 2020")
    program.behaves("ends")
    program.open_gate()
    result = await leg
    assert [t.outcome.value for t in result.turns] == ["completed", "completed"] and program.calls == 2
    assert receipt.fate.value == "applied" and program.alive() == []
