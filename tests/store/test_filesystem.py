"""Where the locks of a file system cannot be trusted one sentence says so, and nothing waits for a mount that hangs."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import pytest

from lionnb.errors import StoreError
from lionnb.store import filesystem, locate
from lionnb.store.core import StoreCore
from lionnb.store.filesystem import LOCAL, NETWORK, check_folder, file_system_of, try_lock


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch, need):
    need(sys.platform != "win32", "Windows has no record locks of this kind")
    monkeypatch.setattr(filesystem, "_checked", set())


@pytest.fixture
def on(monkeypatch):
    """Lets every folder lie on a file system of this type."""
    return lambda kind: monkeypatch.setattr(filesystem, "file_system_of", lambda folder: kind)


@pytest.fixture
def trial(monkeypatch):
    """Changes the program of the second process."""
    return lambda before, after: monkeypatch.setattr(filesystem, "_TRIAL", filesystem._TRIAL.replace(before, after))


def said(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == filesystem.__name__]


# --- the trial --------------------------------------------------------------------------------------------------


async def test_two_processes_exclude_each_other_where_locks_hold_and_leave_nothing(tmp_path):
    assert await try_lock(tmp_path) == "holds" and {p.name for p in tmp_path.iterdir()} == {"home", "here"}


async def test_a_folder_that_is_not_made_yet_is_tried_where_it_will_be(tmp_path):
    assert await try_lock(tmp_path / "a" / "b") == "holds" and not (tmp_path / "a").exists()


async def test_a_lock_that_both_get_does_not_hold(tmp_path, trial):
    """As where a mount says that it locks and does nothing."""
    trial("fcntl.lockf(other", "(lambda *ignored: None)(other")
    assert await try_lock(tmp_path) == "does not hold"


async def test_a_file_system_that_refuses_locks_does_not_hold(tmp_path, trial):
    trial("fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)", "raise OSError(37)")
    assert await try_lock(tmp_path) == "does not hold"


async def test_a_mount_that_hangs_is_not_waited_for(tmp_path, trial):
    """The process that touched it is ended, and its end is not awaited either."""
    trial("import fcntl", "import signal; signal.pause(); import fcntl")
    assert await try_lock(tmp_path, limit_s=0.05) == "hangs"


async def test_where_nothing_can_be_tried_nothing_is_said(tmp_path, monkeypatch, trial):
    for python in ("", "/nowhere/python"):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", python)
            assert await try_lock(tmp_path) == "unknown"
    trial("os.O_CREAT", "os.O_RDWR")  # as without the right to make a file there
    assert await try_lock(tmp_path) == "unknown"


# --- what it lies on --------------------------------------------------------------------------------------------

MOUNTS = """\
proc /proc proc rw 0 0
/dev/vda / ext4 rw 0 0
server:/mnt /mnt nfs4 rw 0 0
/dev/vdb /mnt/local xfs rw 0 0
tmpfs /mnt/with\\040space tmpfs rw 0 0
server:/a /over nfs rw 0 0
/dev/vdc /over ext4 rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/mntly", "ext4"),
        ("/mnt", "nfs4"),
        ("/mnt/ana/.local/share/lionnb", "nfs4"),
        ("/mnt/local/x", "xfs"),
        ("/mnt/localx", "nfs4"),
        ("/mnt/with space/x", "tmpfs"),
        ("/mnt/local/../ana", "nfs4"),
        ("/over/x", "ext4"),
    ],
)
def test_the_innermost_and_newest_mount_says_the_type(tmp_path, folder, kind):
    (tmp_path / "mounts").write_text(MOUNTS)
    assert file_system_of(Path(folder), str(tmp_path / "mounts")) == kind


def test_a_link_onto_a_network_is_followed(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far")
    (tmp_path / "mounts").write_text(f"/dev/vda / ext4 rw 0 0\nserver:/a {tmp_path}/far nfs rw 0 0\n")
    assert file_system_of(tmp_path / "link", str(tmp_path / "mounts")) == "nfs"


def test_a_path_on_a_network_is_known_without_touching_it(tmp_path, monkeypatch):
    """Following links would hang where the server is gone."""
    (tmp_path / "mounts").write_text(MOUNTS)
    monkeypatch.setattr(os.path, "realpath", lambda path: pytest.fail("touched"))
    assert file_system_of(Path("/mnt/ana"), str(tmp_path / "mounts")) == "nfs4"


def test_without_a_table_of_mounts_the_type_is_unknown(tmp_path):
    assert file_system_of(tmp_path, str(tmp_path / "none")) is None and not LOCAL & NETWORK


# --- what is said -----------------------------------------------------------------------------------------------


async def test_on_a_local_file_system_nothing_is_tried_and_nothing_is_said(tmp_path, on, monkeypatch, caplog):
    on("ext4")
    monkeypatch.setattr(filesystem, "try_lock", lambda folder: pytest.fail("tried"))
    await check_folder(tmp_path)
    assert said(caplog) == []


@pytest.mark.parametrize("kind", [None, "fuse.unheard-of"])
async def test_on_one_that_is_not_known_locks_that_hold_are_enough(tmp_path, on, caplog, kind):
    on(kind)
    await check_folder(tmp_path)
    assert said(caplog) == []


async def test_a_network_file_system_is_named_once_with_the_ways_out(tmp_path, on, caplog):
    """g05."""
    on("nfs4")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await check_folder(tmp_path)
    (sentence,) = said(caplog)
    assert "(nfs4)" in sentence and "LIONNB_DB" in sentence and "postgresql://" in sentence
    assert str(tmp_path) not in sentence


async def test_locks_that_do_not_hold_are_told_whatever_the_file_system(tmp_path, on, trial, caplog):
    on("fuse.unheard-of")
    trial("fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)", "raise OSError(37)")
    await check_folder(tmp_path)
    (sentence,) = said(caplog)
    assert "do not hold" in sentence and "LIONNB_DB" in sentence


async def test_opening_on_a_mount_that_hangs_is_refused_and_can_be_tried_again(tmp_path, on, trial, monkeypatch):
    on("nfs4")
    where = locate(tmp_path / "new" / "c.db")
    real = filesystem._TRIAL
    monkeypatch.setattr(filesystem.try_lock, "__kwdefaults__", {"limit_s": 0.05})
    trial("import fcntl", "import signal; signal.pause(); import fcntl")
    with pytest.raises(StoreError, match=r"hangs.*LIONNB_DB"):
        await StoreCore.open(where)
    assert not (tmp_path / "new").exists()
    monkeypatch.setattr(filesystem, "_TRIAL", real)
    monkeypatch.setattr(filesystem.try_lock, "__kwdefaults__", {"limit_s": 60.0})
    await (await StoreCore.open(where)).aclose()


async def test_it_can_be_switched_off(tmp_path, on, monkeypatch, caplog):
    on("nfs4")
    monkeypatch.setenv("LIONNB_CHECK_LOCKS", "0")
    monkeypatch.setattr(filesystem, "try_lock", lambda folder: pytest.fail("tried"))
    await check_folder(tmp_path)
    assert said(caplog) == []


async def test_only_a_file_has_a_file_system(monkeypatch):
    monkeypatch.setattr("lionnb.store.core.check_folder", lambda folder: pytest.fail("checked"))
    await (await StoreCore.open(locate(":memory:"))).aclose()
