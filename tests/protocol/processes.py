"""Starts the actors, each a process of its own, kills most of them, and says how each of them ended.

They come from a fork server that has everything imported: one costs a tenth of a second instead of three.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.protocol.actors import act

__all__ = ("Round",)

LIMIT_S = 60.0  # a process that lives longer hangs
KILLED = -signal.SIGKILL
ORPHANED = 255  # multiprocessing's word for a process whose fork server is gone: somebody else has killed that
POINTS = {"decider": 12, "taker": 60}  # how many points of its fuse an actor passes, more or less


def _forks() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.protocol.warm"])
    return context


class _Running:
    """One process. It is known by a descriptor: a number may be given to somebody else once it is dead."""

    def __init__(self, name: str, process: Any, kill_after_s: float | None) -> None:
        self.name, self._process, self._killer = name, process, None
        process.start()
        try:
            self._fd = os.pidfd_open(process.pid)
        except ProcessLookupError:  # dead already
            self._fd = -1
        if kill_after_s is not None:
            self._killer = threading.Timer(kill_after_s, self._kill)
            self._killer.start()

    def _kill(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def wait(self) -> int | None:
        """Until it is dead or done: its exit code; ``None`` when it hung."""
        self._process.join(LIMIT_S)
        code = self._process.exitcode
        if code is None:
            self._kill()
            self._process.join()
        if self._killer is not None:
            self._killer.cancel()
            self._killer.join()
        self._process.close()
        if self._fd >= 0:
            os.close(self._fd)
        return code


@dataclass
class Round:
    """Some processes and the folder of their books. ``exits`` says how each of them ended."""

    url: str
    folder: Path
    dice: random.Random
    exits: dict[str, int | None] = field(default_factory=dict)
    _running: list[_Running] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)

    def start(self, what: str, *how: Any, mortal: bool = True) -> None:
        """Start an actor; a mortal one is mostly killed: at one of its own points, or from outside at some moment."""
        name = f"{what}-{len(self.exits) + len(self._running)}"
        fate = self.dice.random() if mortal else 1.0
        fuse = self.dice.randint(1, POINTS.get(what, 120)) if fate < 0.45 else None
        kill_after_s = self.dice.uniform(0.0, 0.9) if 0.45 <= fate < 0.9 else None
        args = (what, self.url, self.folder, name, self.dice.getrandbits(32), fuse, *how)
        self._running.append(_Running(name, _forks().Process(target=act, args=args, name=name), kill_after_s))

    def wait(self) -> None:
        """Until all of them are dead or done."""
        for running in self._running:
            self.exits[running.name] = running.wait()
        self._running.clear()

    def killed(self) -> list[str]:
        """What those were that SIGKILL has ended."""
        return [name.partition("-")[0] for name, code in self.exits.items() if code == KILLED]

    @property
    def kills(self) -> int:
        return len(self.killed())

    def failures(self) -> Iterator[str]:
        """Processes that ended otherwise than by themselves or by SIGKILL, or that had an error to show."""
        for name, code in self.exits.items():
            stderr = self.folder / f"{name}.stderr"
            said = stderr.read_text() if stderr.exists() else ""
            if code not in (0, KILLED) or "Traceback" in said or "never retrieved" in said:
                how = {None: "hung", ORPHANED: "lost its fork server"}.get(code, f"ended with {code}")
                yield f"{name} {how}: {said[-3000:]}"
