"""Is the leg of a run alive? Asked of its process where that can be seen, of its heartbeat where it cannot.

A leg says which process runs it: the host (this boot of this kernel, this pid namespace), the pid, and the clock tick
at which that process began, which tells it from a later one of the same number. On the leg's own host the process is
asked, and the answer is conclusive: no such process, another one, or a zombie is *dead*, and can never become false
again; otherwise it is *alive*, however long its heart has been still (a stopped process, or one that computes in C,
beats no more and is not dead). From elsewhere only the heartbeat is seen: within its lease the leg is *fresh*, later
*silent*, which is no finding. Nothing is ever recorded on a timer, and a silent leg is ended by a named person only.

Between containers of one machine the record lock that a leg holds (`store.leglock`) adds evidence: free *and* silent
is dead. Held, it proves nothing.

Not seen: a virtual machine that was cloned while it ran shares its boot with its clone.

Source: ADR-0108, "claimed row".
"""

from __future__ import annotations

import functools
import os
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from lionnb.fates import ago
from lionnb.records import ControlRecord, ControlState, RunStatus, SessionRecord, Verdict

__all__ = (
    "TTL_S",
    "RunView",
    "busy",
    "claim_is_dead",
    "host_id",
    "identity",
    "kernel_of",
    "leg_of",
    "new_token",
    "process_of",
    "run_view",
    "verdict",
)

TTL_S: Final = 90.0
"""A lease lapses after so many seconds without a heartbeat; the heart beats three times in each."""

_LINUX: Final = "linux:"


def identity(ttl_s: float = TTL_S) -> dict[str, Any]:
    """The fields of a `SessionSpec` that say which process runs the leg: this one. No wall clock is in them."""
    return {"host": host_id(), "pid": os.getpid(), "pid_start": _own_start(), "ttl_s": ttl_s}


def verdict(session: SessionRecord, now: float, *, lock_is_free: Callable[[], bool] | None = None) -> Verdict:
    """What is known of the leg that owns *session*; only *dead* is conclusive. Meaningless for a run that has ended.

    Args:
        session: A run that reads running.
        now: The present, by this machine's clock.
        lock_is_free: Whether the leg's record lock was held once and is not any more; asked only about a leg of this
            machine that cannot be seen, and only when its lease has lapsed.
    """
    alive = _is_alive(session)
    if alive is not None:
        return Verdict.ALIVE if alive else Verdict.DEAD
    if not _lapsed(session, now):
        return Verdict.FRESH
    here = kernel_of(host_id())
    if lock_is_free is not None and here is not None and kernel_of(session.host) == here and lock_is_free():
        return Verdict.DEAD
    return Verdict.SILENT


def _lapsed(session: SessionRecord, now: float) -> bool:
    # A run that states no lease has none that could lapse.
    return session.ttl_s is not None and now - _beat_at(session) > session.ttl_s


def _beat_at(session: SessionRecord) -> float:
    return session.created_at if session.heartbeat_at is None else session.heartbeat_at


# ---------------------------------------------------------------------- the process


def host_id() -> str:
    """Names the space in which a pid means something. Two that differ may still be one machine (see `kernel_of`)."""
    return _host_id(os.getpid())


@functools.lru_cache(maxsize=4)
def _host_id(_pid: int) -> str:  # by pid: a child may have been forked into another namespace
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        spaces = [os.readlink("/proc/self/ns/pid")]
    except OSError:
        return _host_elsewhere()
    if os.path.lexists("/proc/self/ns/time"):  # it shifts the ticks at which processes are said to have begun
        spaces.append(os.readlink("/proc/self/ns/time"))
    return f"{_LINUX}{boot}:{'+'.join(spaces)}"


def _host_elsewhere() -> str:
    """Without Linux's /proc: node name, and the minute of the boot. One host may have two names, never the reverse."""
    import platform

    import psutil

    return f"{sys.platform}:{platform.node()}:{int(psutil.boot_time() // 60)}"


def kernel_of(host: str | None) -> str | None:
    """The running kernel that a host id belongs to; ``None`` when it does not say."""
    if host is None or not host.startswith(_LINUX):
        return None
    return host[len(_LINUX) :].partition(":")[0]


def _is_alive(session: SessionRecord) -> bool | None:
    """Whether the leg's process lives; ``None`` where that cannot be seen from here."""
    host, pid, start = session.host, session.pid, session.pid_start
    if host is None or pid is None or start is None or not 0 < pid < 2**31 or host != host_id():
        return None
    return _alive_on_linux(pid, start) if host.startswith(_LINUX) else _alive_elsewhere(pid, start)


def _own_start() -> str | None:
    if not host_id().startswith(_LINUX):
        return _start_elsewhere(os.getpid())
    stat = _stat("self")  # not by the pid: a /proc of another namespace numbers processes differently
    return None if stat is None else stat[1]


def _alive_on_linux(pid: int, start: str) -> bool | None:
    if not _exists(pid):
        return False
    if not _proc_is_ours():
        return None
    stat = _stat(str(pid))
    if stat is None:  # gone in this moment, or hidden from this account (`hidepid`)
        return None if _exists(pid) else False
    state, mark, threads = stat
    # A leader that has ended while its other threads run on reads as a zombie, too.
    return mark == start and not (state in "ZXx" and threads <= 1)


def _exists(pid: int) -> bool:
    """Whether there is such a process, a zombie included: asked of the kernel itself, which hides none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _proc_is_ours() -> bool:
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def _stat(name: str) -> tuple[str, str, int] | None:
    """State, start in clock ticks since the boot, and number of threads; ``None`` when it cannot be read."""
    try:
        with open(f"/proc/{name}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name before may hold anything, ")" included
    except OSError:
        return None
    return fields[0].decode(), fields[19].decode(), int(fields[17])


def _start_elsewhere(pid: int) -> str | None:
    import psutil

    try:
        return repr(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def _alive_elsewhere(pid: int, start: str) -> bool | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return repr(process.create_time()) == start and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return None


# ---------------------------------------------------------------------- in words


def process_of(session: SessionRecord) -> str:
    """Which process runs it, or ran it, for a person; the row has its whole identity."""
    here = host_id()
    if session.host is None or session.pid is None:
        return "not on record"
    if session.host == here:
        return f"pid {session.pid} on this machine"
    kernel = kernel_of(session.host)
    if kernel is not None and kernel == kernel_of(here):
        return f"pid {session.pid} of another container on this machine"
    return f"pid {session.pid} on another host, or on this one before it was last started"


@dataclass(frozen=True, slots=True)
class RunView:
    """What is told of a run now.

    ``status`` is the stored one, but *lost* for a running run whose leg is dead; ``word`` is that, or *silent*.
    ``verdict`` is ``None`` for a run that has ended.
    """

    status: RunStatus
    word: str
    sentence: str
    verdict: Verdict | None

    @property
    def leg_dead(self) -> bool:
        """Whether the leg that owns the run is proven dead."""
        return self.verdict is Verdict.DEAD


def run_view(session: SessionRecord, now: float, found: Verdict | None = None) -> RunView:
    """What is true of *session* now, in words. Reads only: a lost run is recorded by admission, takeover and reap.

    Args:
        session: The row.
        now: The present.
        found: The verdict, where more evidence than the row's own was heard.
    """
    status = session.status
    if session.terminal:
        note = f": {session.ended_note}" if session.ended_note else ""
        return RunView(status, status.value, f"{status.value}{note}", None)
    found = verdict(session, now) if found is None else found
    match found:
        case Verdict.DEAD:
            return RunView(RunStatus.LOST, "lost", "lost (its process is gone)", found)
        case Verdict.SILENT:
            since = datetime.fromtimestamp(_beat_at(session), UTC)
            where = "its process cannot be seen from here"
            return RunView(status, "silent", f"silent since {since:%Y-%m-%d %H:%M:%S} UTC; {where}", found)
    late = busy(session, found, now)
    return RunView(status, status.value, status.value if late is None else f"running; {late}", found)


def busy(session: SessionRecord, found: Verdict, now: float) -> str | None:
    """In a sentence, how long a leg that is alive has not renewed its lease; ``None`` while it has not lapsed."""
    if found is not Verdict.ALIVE or not _lapsed(session, now):
        return None
    still = ago(now - _beat_at(session))
    return f"its process is alive but has been busy, or suspended, for {still}"


def claim_is_dead(control: ControlRecord, session: SessionRecord, found: Verdict | None) -> bool:
    """Whether the leg that must act on *control* is gone, as `fate_of` asks: proven dead, or replaced.

    A claim whose leg is not the run's any more is held by nobody from whom a report is to be expected. If one comes
    after all, the row says so, and its fate with it.
    """
    if found is Verdict.DEAD:
        return True
    held = control.state is ControlState.DELIVERING and control.claim is not None
    return held and leg_of(str(control.claim)) != session.leg


def new_token(leg: str) -> str:
    """A claim for *leg* that was never used before."""
    return f"{leg}:{uuid.uuid4().hex[:12]}"


def leg_of(token: str) -> str:
    """The leg that holds a claim, to show it. Never to compare for a write: a guard compares the whole token."""
    return token.rpartition(":")[0]
