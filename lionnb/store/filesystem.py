"""Can the locks of this folder be trusted? Looked at when a database file is opened, once a folder and process.

SQLite keeps a file whole by locks of the file system. On a local one they hold, and nothing is tried. On a network
file system they hold as far as its server and every mount of it see to that, which nobody can find out from one
machine, so a sentence says so. There, and on a file system that is not known to be local, two processes try a lock: in
a process of its own, because a mount whose server is gone hangs whoever touches it, and waiting for that is bounded.

``LIONNB_CHECK_LOCKS=0`` switches it off.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Literal

from lionnb.errors import StoreError

__all__ = ("LIMIT_S", "check_folder", "file_system_of", "try_lock")

log = logging.getLogger(__name__)

ENV: Final = "LIONNB_CHECK_LOCKS"
LIMIT_S: Final = 3.0
"""A trial that takes longer hangs: one takes about 30 ms."""

LOCAL: Final = frozenset(
    {"apfs", "bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfs", "jfs", "nilfs2", "ntfs", "ntfs3"}
    | {"overlay", "ramfs", "reiserfs", "tmpfs", "ufs", "vfat", "xfs", "zfs"}
)
NETWORK: Final = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph-fuse", "fuse.gcsfuse", "fuse.glusterfs", "fuse.rclone"}
    | {"fuse.s3fs", "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs3", "nfs4", "ocfs2"}
    | {"pvfs2", "smb3", "smbfs"}
)

# Two processes, of which the first one holds a record lock as SQLite would take it: the other must be refused.
# It says what it saw by its exit status, and leaves nothing in the folder.
_TRIAL: Final = """
import fcntl, os, sys
folder, name = sys.argv[1:]
while not os.path.isdir(folder):  # it is not made yet: it will be on the file system of what is there
    folder = os.path.dirname(folder)
path = os.path.join(folder, name)
try:
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
except OSError:
    os._exit(5)
try:
    try:
        fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os._exit(4)
    pid = os.fork()
    if pid == 0:
        other = os.open(path, os.O_RDWR)
        try:
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os._exit(0)
        os._exit(3)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
finally:
    os.unlink(path)
os._exit(status if status in (0, 3) else 5)
"""
_ANSWERS: Final[dict[int, Verdict]] = {0: "holds", 3: "does not hold", 4: "does not hold"}

Verdict = Literal["holds", "does not hold", "hangs", "unknown"]

HANGS: Final = (
    "the folder of the control database does not answer: a lock on its file system{kind} hangs. Nothing was opened. "
    "Set LIONNB_DB to a local disk, or to a postgresql:// URL."
)
NO_LOCKS: Final = (
    "file locks do not hold in the folder of the control database{kind}: two programs at once can damage it. Set "
    "LIONNB_DB to a local disk, or to a postgresql:// URL."
)
ELSEWHERE: Final = (
    "the control database lies on a network file system{kind}, whose locks cannot be trusted between machines: two at "
    "once can damage it. Set LIONNB_DB to a local disk, or to a postgresql:// URL."
)

_checked: set[str] = set()  # folders of this process; the sentence is said once


async def check_folder(folder: Path) -> None:
    """Say once, in one sentence, when the locks of *folder* cannot be trusted; wait for nothing for long.

    Raises:
        StoreError: Touching the folder hangs. It is asked again at the next opening.
    """
    if os.environ.get(ENV) == "0" or str(folder) in _checked:
        return
    kind = file_system_of(folder)
    said = f" ({kind})" if kind else ""
    if kind not in LOCAL:
        match await try_lock(folder):
            case "hangs":
                raise StoreError(HANGS.format(kind=said))
            case "does not hold":
                log.warning(NO_LOCKS.format(kind=said))
            case _ if kind in NETWORK:
                log.warning(ELSEWHERE.format(kind=said))
    _checked.add(str(folder))


# ---------------------------------------------------------------------- what it lies on


def file_system_of(folder: Path, mounts: str = "/proc/self/mounts") -> str | None:
    """The type of the file system that *folder* is on, in the kernel's word; ``None`` where that cannot be read.

    By the path's spelling first: touching a mount that hangs would hang. Only from there are links followed.
    """
    try:
        table = _mounts(Path(mounts).read_text("utf-8", "surrogateescape"))
    except OSError:
        return None
    kind = _type_of(os.path.abspath(folder), table)
    return kind if kind in NETWORK else _type_of(os.path.realpath(folder), table)


def _mounts(text: str) -> list[tuple[str, str]]:
    """Mount points and types, in the order in which they were mounted."""
    rows = (line.split(" ") for line in text.splitlines())
    return [(_plain(row[1]), _plain(row[2])) for row in rows if len(row) > 2]


def _plain(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)


def _type_of(path: str, table: list[tuple[str, str]]) -> str | None:
    found: tuple[int, str | None] = (-1, None)
    for point, kind in table:  # a later mount on the same point hides the earlier one
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= found[0]:
            found = (len(point), kind)
    return found[1]


# ---------------------------------------------------------------------- the trial


async def try_lock(folder: Path, *, limit_s: float = LIMIT_S) -> Verdict:
    """Whether a lock that one process holds in *folder* keeps another one out; it never waits longer than *limit_s*.

    Where that cannot be tried (no rights, no Python to start, Windows) the answer is *unknown*.
    """
    trial = _start_trial(folder)
    if trial is None:
        return "unknown"
    if (status := await _ended(trial, limit_s)) is not None:
        return _ANSWERS.get(status, "unknown")
    trial.kill()
    if await _ended(trial, 0.5) is None:
        trial.returncode = -9  # one that waits for a dead server cannot be killed, and must not be waited for
    return "hangs"


def _start_trial(folder: Path) -> subprocess.Popen[bytes] | None:
    python = sys.executable
    if sys.platform == "win32" or not python or getattr(sys, "frozen", False):
        return None
    name = f".lionnb-lock-{os.getpid()}-{time.monotonic_ns():x}"
    try:
        return subprocess.Popen(  # noqa: S603  # this Python, and a program of ours
            [python, "-I", "-S", "-E", "-c", _TRIAL, os.path.abspath(folder), name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt in the terminal is not for it
        )
    except OSError:
        return None


async def _ended(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    until = time.monotonic() + limit_s
    # A process's end is no event without a thread of its own, in which 3.11's child watchers would wait for it.
    while (status := process.poll()) is None and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return status
