"""Every turn that ends is one row of the default store, and no turn ever waits for it."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import pickle
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import lionnb
from lionnb import recorder
from lionnb.errors import AmbiguousIdError, UnknownIdError
from lionnb.recorder import Recorder
from lionnb.records import TurnRecord
from lionnb.testing import Gate, scripted_model
from lionnb.turns.log import TurnRow


def rows(**where: str) -> list[TurnRecord]:
    """What the default store has, once all that was kept is written."""
    recorder.flush()
    return lionnb.default_store().submit(lambda core: core.list_turns(**where)).result()


def ended(session_id: str | None = None) -> TurnRow:
    row = TurnRow("chat", "branch-1", None, "task", "q")
    row.turn_id, row.session_id, row.ended_at = f"turn-{id(row)}", session_id, 2.0
    return row


@pytest.fixture
def fresh(monkeypatch) -> Recorder:
    """A recorder of the test's own."""
    made = Recorder()
    monkeypatch.setattr(recorder, "_recorder", made)
    return made


# --- what is written ----------------------------------------------------------------------------------------------------


async def test_every_turn_that_ended_is_the_row_that_the_log_has(road):
    branch = lionnb.Branch(chat_model=road.model(["one", "two"]), name="notes")
    await branch.chat("q")
    await branch.communicate("q")
    assert rows() == branch.turns.records()
    assert [r.outcome for r in rows()] == ["completed", "completed"]


async def test_failed_and_cancelled_turns_and_waits_have_their_rows(road):
    gate = Gate()
    branch = lionnb.Branch(chat_model=road.model("x", gate=gate))
    first, second = (asyncio.create_task(branch.chat("q")) for _ in range(2))
    await gate.reached()
    second.cancel()
    await asyncio.wait([second])
    first.cancel()
    await asyncio.wait([first])
    broken = lionnb.Branch(chat_model=road.model([ValueError("boom")]))
    with pytest.raises(Exception, match=r"boom|500"):
        await broken.chat("q")
    assert [r.outcome for r in rows()] == ["cancelled", "cancelled while waiting", "failed"]
    assert rows()[1].turn_id is None


async def test_a_turn_of_a_leg_is_written_once_and_by_the_leg(road):
    branch = lionnb.Branch(chat_model=road.model("x"))
    await lionnb.start_leg(branch, "work")
    await branch.chat("and this by hand")
    assert [(r.operation, r.session_id is None) for r in rows()] == [("operate", False), ("chat", True)]


async def test_an_open_turn_has_no_row_yet():
    gate = Gate()
    branch = lionnb.Branch(chat_model=scripted_model("x", gate=gate))
    task = asyncio.create_task(branch.chat("q"))
    await gate.reached()
    assert rows() == []
    gate.open()
    await task
    assert len(rows()) == 1


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        lambda b: b.clone(),
        lambda b: lionnb.Branch.from_dict(b.to_dict()),
        lambda b: pickle.loads(pickle.dumps(b.turn_state)),
    ],
    ids=["copy", "deepcopy", "clone", "from_dict", "pickled state"],
)
async def test_a_copy_keeps_its_turns_too(copied):
    made = copied(lionnb.Branch())
    state = getattr(made, "turn_state", made)
    assert state.log.keep is not None


async def test_a_wrapped_branch_keeps_its_turns_too():
    from lionagi import Branch as Stock

    branch = lionnb.wrap(Stock(chat_model=scripted_model("x")))
    await branch.chat("q")
    assert [r.branch_id for r in rows()] == [str(branch.id)]


async def test_a_branch_without_turns_opens_no_store(world):
    lionnb.Branch(chat_model=scripted_model("x"))
    assert not (world / "controls.db").exists()


def test_a_process_writes_its_rows_before_it_ends(world):
    code = """
    import asyncio, lionnb
    from lionnb.testing import scripted_model
    asyncio.run(lionnb.Branch(chat_model=scripted_model("x")).chat("q"))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True)
    assert [r.outcome for r in rows()] == ["completed"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_writes_its_own_rows(world):
    code = """
    import asyncio, os, warnings, lionnb
    from lionnb import recorder
    from lionnb.testing import scripted_model
    one = lambda: asyncio.run(lionnb.Branch(chat_model=scripted_model("x")).chat("q"))
    one()
    recorder.flush()
    warnings.simplefilter("ignore")
    if (child := os.fork()):
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    one()
    recorder.flush()
    os._exit(0)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True)
    assert len(rows()) == 2


# --- a store that does not do its part --------------------------------------------------------------------------------


async def test_a_turn_does_not_wait_for_a_locked_database(world):
    branch = lionnb.Branch(chat_model=scripted_model("x"))
    await branch.chat("makes the file")
    assert len(rows()) == 1
    other = sqlite3.connect(world / "controls.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    await branch.chat("while somebody holds it")
    assert recorder._recorder.waiting == 1
    other.execute("ROLLBACK")
    other.close()
    assert len(rows()) == 2


async def test_what_no_store_takes_is_said_once_and_written_when_one_does(fresh, world, monkeypatch, caplog):
    branch = lionnb.Branch(chat_model=scripted_model("x"))
    (world / "file").write_text("not a folder")
    monkeypatch.setenv("LIONNB_DB", str(world / "file" / "controls.db"))
    with caplog.at_level(logging.WARNING, "lionnb.recorder"):
        for _ in range(3):
            await branch.chat("q")
            recorder.flush()
    assert len(caplog.records) == 1 and "could not be recorded" in caplog.text
    assert fresh.waiting == 3
    monkeypatch.setenv("LIONNB_DB", str(world / "controls.db"))
    await branch.chat("q")
    assert len(rows()) == 4 and fresh.waiting == 0


async def test_a_name_that_is_no_database_stops_no_turn(fresh, monkeypatch, caplog):
    monkeypatch.setenv("LIONNB_DB", "mysql://nowhere/x")
    branch = lionnb.Branch(chat_model=scripted_model("x"))
    assert await branch.chat("q") == "x"
    assert "could not be recorded" in caplog.text


async def test_a_store_in_memory_gets_none(fresh, monkeypatch):
    monkeypatch.setenv("LIONNB_DB", ":memory:")
    await lionnb.Branch(chat_model=scripted_model("x")).chat("q")
    assert fresh.waiting == 0 and rows() == []


def test_rows_that_wait_are_bounded_and_counted(fresh, world, monkeypatch, caplog):
    monkeypatch.setattr(recorder, "MOST", 2)
    (world / "file").write_text("not a folder")
    monkeypatch.setenv("LIONNB_DB", str(world / "file" / "controls.db"))
    for _ in range(2):
        fresh.keep(ended())
        fresh.flush(30)
    fresh.keep(ended())
    assert fresh.waiting == 2 and fresh._dropped == 1


def test_a_store_that_is_closed_under_the_writer_loses_nothing(fresh, monkeypatch):
    """The writer ends without its answer; the next turn's attempt writes both."""
    monkeypatch.setattr(recorder, "GATHER_S", 3600.0)
    fresh.keep(ended())
    lionnb.default_store().close(0.0)
    monkeypatch.setattr(recorder, "GATHER_S", 0.0)
    fresh.flush(30)
    assert fresh.waiting == 1
    fresh.keep(ended())
    assert len(rows()) == 2 and fresh.waiting == 0


def test_the_end_of_a_process_tries_once_more(fresh, world, monkeypatch):
    (world / "file").write_text("not a folder")
    monkeypatch.setenv("LIONNB_DB", str(world / "file" / "controls.db"))
    fresh.keep(ended())
    fresh.flush(30)
    monkeypatch.setenv("LIONNB_DB", str(world / "controls.db"))
    fresh.close(30)
    fresh.keep(ended())
    assert len(rows()) == 1 and fresh.waiting == 0


# --- read again -----------------------------------------------------------------------------------------------------------


async def test_the_table_of_a_branch_that_is_gone(fresh):
    branch = lionnb.Branch(chat_model=scripted_model("x"))
    await branch.chat("q")
    await lionnb.start_leg(branch, "work")
    plain = lionnb.Branch(chat_model=scripted_model("x"))
    await plain.chat("q")
    for given, of in ((str(branch.id), branch), (str(plain.id), plain), (str(plain.id)[:12], plain)):
        assert list(lionnb.frames.turns(given)["turn_id"]) == [t.turn_id for t in of.turns.records()]
    assert len(lionnb.frames.turns(lionnb.default_store())) == 3


def test_an_id_of_nothing_and_of_several_is_refused_by_name(fresh):
    for branch in ("abc-1", "abc-2"):
        row = ended()
        row.branch_id = branch
        fresh.keep(row)
    with pytest.raises(AmbiguousIdError, match=r"abc-1.*abc-2"):
        lionnb.frames.turns("abc")
    assert len(lionnb.frames.turns("abc-1")) == 1
    for nothing in ("xyz", " ", "\x00", "a" * 300):
        with pytest.raises(UnknownIdError):
            lionnb.frames.turns(nothing)


def test_rows_that_ended_long_ago_are_purged(fresh, world: Path):
    fresh.keep(ended())
    assert len(rows()) == 1
    purged = lionnb.default_store().submit(lambda core: core.purge(3.0, 4.0)).result()
    assert purged.turns == 1 and rows() == []
