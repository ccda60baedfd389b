"""What a user reads when the database cannot: one sentence, no SQL, no driver text, no path, no password."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import traceback
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from lionnb.errors import StoreError
from lionnb.store import Location, locate
from lionnb.store import engine as engine_module
from lionnb.store.core import StoreCore
from lionnb.store.faults import translate

FORBIDDEN = re.compile(
    r"sqlite3\.|sqlalchemy|asyncpg|SELECT|INSERT|UPDATE |PRAGMA|/tmp|secret|\[SQL|Background on", re.IGNORECASE
)


def plain(error: StoreError, opened: Path | str | None = None) -> str:
    """The error's sentence, after checking that neither it nor its traceback shows what it was made from.

    One about an opening names the file that it is about, and no other path.
    """
    shown = "".join(traceback.format_exception_only(error))
    said = str(error) if opened is None else str(error).removesuffix(f" (file: {opened})")
    assert (said != str(error)) is (opened is not None) and not FORBIDDEN.search(said), error
    assert error.__suppress_context__ and error.cause is not None and "direct cause" not in shown
    assert str(error)[-1] in ".)" and "\n" not in str(error)
    return str(error)


@contextmanager
def as_nobody(need):
    """Root may write everywhere, so for a while be somebody else."""
    if os.geteuid() != 0:
        yield
        return
    need(hasattr(os, "seteuid"), "needs an account that is not root")
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder(tmp_path):
    """A folder that everybody may enter, also a test that plays nobody."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder == Path("/tmp"):
            break
        folder.chmod(folder.stat().st_mode | 0o055)
    made = tmp_path / "open"
    made.mkdir()
    return made


async def test_a_lock_that_another_program_holds_is_named_and_nothing_is_written(file_location, opened, make_story):
    story = make_story(await opened(file_location, wait_s=0.05))
    sid = await story.running()
    other = sqlite3.connect(file_location.address, isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError) as caught:
            await story.pending(sid)
        assert "locked" in plain(caught.value)
        other.execute("ROLLBACK")
    finally:
        other.close()
    assert await story.core.list_controls() == []
    await story.pending(sid)  # and the store works again


async def test_a_locked_database_says_of_a_read_and_of_an_opening_what_was_not_done(file_location, opened):
    """Who only looks reads nothing about what was written."""
    core = await opened(file_location, wait_s=0.05)
    other = sqlite3.connect(file_location.address, isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError) as read:
            await core.list_controls()
        with pytest.raises(StoreError) as opening:
            await StoreCore.open(file_location, wait_s=0.05)
    finally:
        other.close()
    assert "locked by another program, so it could not be read." in plain(read.value)
    assert "so it could not be opened." in plain(opening.value, file_location.address)


@pytest.mark.postgres
async def test_a_lock_in_postgresql_is_named_and_nothing_is_written(pg_emptied_url, opened, make_story):
    story = make_story(await opened(locate(pg_emptied_url), wait_s=0.05))
    sid = await story.running()
    async with story.core._engine.connect() as other:
        await other.exec_driver_sql("SELECT 1 FROM sessions FOR UPDATE")
        with pytest.raises(StoreError) as caught:
            await story.pending(sid)
        assert "locked" in plain(caught.value)
    assert await story.core.list_controls() == []
    await story.pending(sid)


async def test_a_folder_that_cannot_be_written_is_named(open_folder, need):
    open_folder.chmod(0o555)
    with as_nobody(need), pytest.raises(StoreError) as caught:
        await StoreCore.open(locate(open_folder / "x.db"))
    assert "LIONNB_DB" in plain(caught.value, open_folder / "x.db")


async def test_a_file_that_cannot_be_written_can_be_read_and_says_read_only(open_folder, need, opened, make_story):
    where = locate(open_folder / "x.db")
    core = await StoreCore.open(where)
    control = await make_story(core).pending()
    await core.aclose()
    os.chmod(where.address, 0o444)
    open_folder.chmod(0o555)
    with as_nobody(need):
        story = make_story(await opened(where))
        assert await story.core.list_controls() == [control]
        with pytest.raises(StoreError) as caught:
            await story.running()
    assert "read-only" in plain(caught.value)


async def test_a_folder_in_the_place_of_the_file_is_named(tmp_path):
    """It came there after the place was looked at."""
    with pytest.raises(StoreError) as caught:
        await StoreCore.open(Location("file", str(tmp_path)))
    assert "not a database" in plain(caught.value, tmp_path)


async def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError) as caught:
        await StoreCore.open(locate(tmp_path / "file" / "x.db"))
    assert "cannot be opened" in plain(caught.value, tmp_path / "file" / "x.db")


async def test_a_full_disk_is_named_and_nothing_is_written(file_location, opened, make_story):
    story = make_story(await opened(file_location))
    sid = await story.running()
    async with story.core._engine.connect() as connection:
        pages = (await connection.exec_driver_sql("PRAGMA page_count")).scalar()
        await connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StoreError) as caught:
        for _ in range(50):
            await story.pending(sid, "x" * 8000)
    assert "full" in plain(caught.value)


async def test_a_file_that_was_deleted_while_open_is_named(file_location, opened, make_story):
    """SQLite would go on writing into a file that nobody can find any more."""
    story = make_story(await opened(file_location))
    sid = await story.running()
    os.unlink(file_location.address)
    with pytest.raises(StoreError) as caught:
        await story.pending(sid)
    assert "moved or deleted" in plain(caught.value)


async def test_a_damaged_file_is_named(file_location, make_story, opened):
    core = await StoreCore.open(file_location)
    await make_story(core).pending()
    await core.aclose()
    path = Path(file_location.address)
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\x5a" * (len(content) - 4096))
    with pytest.raises(StoreError) as caught:
        await (await opened(file_location)).list_controls()
    assert "damaged" in plain(caught.value, path)


async def test_tables_that_were_changed_by_hand_are_named(core, story):
    async with core._engine.begin() as connection:
        await connection.exec_driver_sql("ALTER TABLE session_controls RENAME TO elsewhere")
    try:
        with pytest.raises(StoreError) as caught:
            await story.pending()
        assert "changed by hand" in plain(caught.value)
    finally:
        async with core._engine.begin() as connection:
            await connection.exec_driver_sql("ALTER TABLE elsewhere RENAME TO session_controls")


async def test_a_missing_driver_names_the_extra_to_install(monkeypatch):
    real = engine_module.importlib.util.find_spec
    monkeypatch.setattr(
        engine_module.importlib.util, "find_spec", lambda name: None if name == "asyncpg" else real(name)
    )
    with pytest.raises(StoreError, match=re.escape("pip install 'lionnb[postgres]'")):
        await StoreCore.open(locate("postgresql://h/d"))


async def test_an_old_sqlite_library_is_named(monkeypatch, file_location):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 26, 0))
    with pytest.raises(StoreError, match=r"3\.35"):
        await StoreCore.open(file_location)


@pytest.mark.parametrize("url", ["postgresql://u:secret@127.0.0.1:1/d", "postgresql://u:secret@/d?host=/tmp/nowhere"])
async def test_a_server_that_is_not_there_is_named_without_its_password(url):
    with pytest.raises(StoreError) as caught:
        await StoreCore.open(locate(url), wait_s=2.0)
    assert "does not answer" in plain(caught.value)


async def test_a_url_that_cannot_be_read_is_named():
    with pytest.raises(StoreError) as caught:
        await StoreCore.open(locate("postgresql://u:secret@h:port/d"))
    assert "cannot be read" in plain(caught.value)


@pytest.mark.postgres
async def test_a_database_that_is_not_there_is_named(postgres):
    with pytest.raises(StoreError) as caught:
        await StoreCore.open(locate(postgres.url("nowhere")))
    assert "database in LIONNB_DB" in plain(caught.value)


@pytest.mark.postgres
async def test_a_server_that_restarts_is_named_and_then_found_again(postgres, pg_url, opened, make_story):
    story = make_story(await opened(locate(pg_url)))
    sid = await story.running()
    async with story.core._reader.connect() as connection:
        await asyncio.to_thread(postgres.restart)
        with pytest.raises(sa.exc.DBAPIError) as caught:
            await connection.exec_driver_sql("SELECT 1")
    assert "does not answer" in plain(_suppressed(translate(caught.value)))
    await story.pending(sid)


@pytest.mark.postgres
async def test_sslmode_means_to_asyncpg_what_it_means_to_libpq(pg_emptied_url, opened):
    await opened(locate(pg_emptied_url + "&sslmode=disable"))


def test_what_no_table_knows_is_still_one_sentence():
    assert "refused the operation" in plain(_suppressed(translate(sa.exc.InvalidRequestError("SELECT secret FROM x"))))


def _suppressed(error: StoreError) -> StoreError:
    try:
        raise error from None
    except StoreError as exc:
        return exc
