"""What a kernel needs and no other process does: that the stop square is seen while a cell awaits and nothing moves.

asyncio sleeps through a signal: the handler runs, and the poll goes on (PEP 475) until something else wakes the loop.
ipykernel's handler only schedules the cancellation of the cell, so an ``await`` on a provider that hangs would not be
stopped before the next message or timer (measured on 6.31 and 7.4). A signal that also writes a byte into a socket that
the loop reads wakes it at once, and costs nothing until then.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import signal
import socket
import sys
import threading

__all__ = ("wake_on_signals",)

_sockets: list[socket.socket] = []  # kept: a closed one would be written to


def in_kernel() -> bool:
    """Whether this process is a Jupyter kernel. Imports nothing."""
    ipython = sys.modules.get("IPython")
    return getattr(ipython.get_ipython(), "kernel", None) is not None if ipython is not None else False


def wake_on_signals() -> None:
    """In a kernel, let every signal wake the main loop. Idempotent; in other processes and threads it does nothing.

    A wake-up descriptor that is set already (asyncio's own, once somebody adds a signal handler) stays: it wakes a
    loop too.
    """
    if _sockets or threading.current_thread() is not threading.main_thread() or not in_kernel():
        return
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    try:
        asyncio.get_running_loop().add_reader(ours, _drain, ours)
    except (RuntimeError, NotImplementedError):  # no loop runs here; or Windows' proactor, which has no readers
        ours.close()
        theirs.close()
        return
    _sockets.extend((ours, theirs))
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
    else:
        atexit.register(signal.set_wakeup_fd, -1)  # before the interpreter closes the sockets


def _drain(ours: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        ours.recv(4096)
