"""Other processes, told in a few words: they run lines that a test sends them, and say when they have.

Nothing here waits for time: a line's answer, a process's end and its states are events.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

_LOOP = """
import json, sys
names = {}
exec("import os, signal, threading, time", names)
for line in sys.stdin:
    try:
        try:
            answer = eval(json.loads(line), names)
        except SyntaxError:
            answer = exec(json.loads(line), names)
        print(json.dumps({"ok": answer}, default=str), flush=True)
    except BaseException as exc:
        print(json.dumps({"failed": f"{type(exc).__name__}: {exc}"}), flush=True)
"""

REGISTER = """
from lionnb.records import SessionSpec
from lionnb.store import Store
from lionnb.store.lease import identity

def run(url, sid="s-1", leg="leg-1", **fields):
    global store
    store = Store(url)
    made = {"id": sid, "run_id": "20261130T101010-abcdef", "branch_id": "b-1", "leg": leg, "created_at": time.time()}
    spec = SessionSpec(**made | identity() | fields)
    return ask(lambda core: core.start_session(spec, time.time())).model_dump(mode="json")

def ask(work):
    return store.submit(work).result(60)
"""


class Other:
    """A process of its own that does what it is told, line by line."""

    def __init__(self, *prefix: str, **env: str) -> None:
        self._inside = bool(prefix)
        environ = os.environ | env
        self._popen = subprocess.Popen(
            [*prefix, sys.executable, "-c", _LOOP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def begin(self, code: str) -> None:
        """Send *code*, and do not wait for it."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(json.dumps(code) + "\n")
        self._popen.stdin.flush()

    def answer(self) -> Any:
        """What the oldest unanswered line came to."""
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        assert line, f"the process has ended ({self._popen.poll()})"
        said = json.loads(line)
        assert "ok" in said, said["failed"]
        return said["ok"]

    def do(self, code: str) -> Any:
        """Run *code* there and give its value."""
        self.begin(code)
        return self.answer()

    def runs(self, url: Any, **fields: Any) -> dict[str, Any]:
        """Let it register a run that it owns; gives the row."""
        self.do(REGISTER)
        return self.do(f"run({str(url)!r}, **{fields!r})")

    def kill(self) -> None:
        """kill -9, and collect it: nothing is left of it, nor of what it was the prefix of."""
        children = psutil.Process(self.pid).children() if self._inside else []
        inside = [os.pidfd_open(child.pid) for child in children]
        self._popen.kill()
        self._popen.wait()
        for pidfd in inside:
            select.select([pidfd], [], [])
            os.close(pidfd)

    def make_zombie(self) -> None:
        """kill -9, and do not collect it."""
        self._popen.kill()
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """SIGSTOP for as long as the block lasts."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it, however it is."""
        self._popen.kill()
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
