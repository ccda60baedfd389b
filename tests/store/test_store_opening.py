"""Opening a database: what is made, what is refused and left alone, in which mode it runs."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3
import stat
from pathlib import Path

import pytest
import sqlalchemy as sa

from lionnb.errors import StoreError, StoreVersionError
from lionnb.records import TurnOutcome, TurnRecord
from lionnb.store import Location, locate, schema
from lionnb.store import location as location_module
from lionnb.store.core import StoreCore


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def _opens(where: Location) -> None:
    await (await StoreCore.open(where)).aclose()


# --- where ------------------------------------------------------------------------------------------------------


def test_the_argument_comes_first_then_the_environment_then_the_users_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LIONNB_DB", str(tmp_path / "env.db"))
    assert locate(tmp_path / "arg.db") == Location("file", str(tmp_path / "arg.db"))
    assert locate() == locate("") == Location("file", str(tmp_path / "env.db"))
    monkeypatch.setenv("LIONNB_DB", "")
    assert locate().address.endswith("lionnb/control.sqlite") and locate().address.startswith(
        os.environ["XDG_DATA_HOME"]
    )


@pytest.mark.parametrize(
    ("given", "kind", "address"),
    [
        (":memory:", "memory", ":memory:"),
        ("sqlite:///:memory:", "memory", ":memory:"),
        ("sqlite:////var/x.db", "file", "/var/x.db"),
        ("postgres://u:p@h/d", "postgresql", "postgresql+asyncpg://u:p@h/d"),
        ("postgresql://u:p@h:1/d?sslmode=require", "postgresql", "postgresql+asyncpg://u:p@h:1/d?sslmode=require"),
        ("postgresql+asyncpg://h/d", "postgresql", "postgresql+asyncpg://h/d"),
        ("/tmp/with space%20?x=1#y.db", "file", "/tmp/with space%20?x=1#y.db"),
    ],
)
def test_a_location_is_read_from_a_path_or_a_url(given, kind, address):
    assert locate(given) == Location(kind, address)


def test_a_path_is_absolute_and_knows_the_home_folder(monkeypatch, tmp_path):
    assert locate("x.db").address == str(Path.cwd() / "x.db")
    assert locate("~/x.db").address == str(Path(os.environ["HOME"]) / "x.db")


@pytest.mark.parametrize("given", ["mysql://h/d", "http://h/x.db", "a\x00b"], ids=ascii)
def test_another_kind_of_database_is_refused(given):
    with pytest.raises(StoreError, match="LIONNB_DB"):
        locate(given)


def test_a_place_where_no_file_can_be_is_refused_where_it_is_named(tmp_path, monkeypatch):
    """One missing folder is made by the first write; a path of which more is missing is taken for a mistake."""
    for given in (tmp_path, tmp_path / "a" / "b" / "x.db"):
        monkeypatch.setenv("LIONNB_DB", str(given))
        for where in (given, None):
            with pytest.raises(StoreError, match="folder") as caught:
                locate(where)
            assert str(given) in str(caught.value) and "LIONNB_DB" in str(caught.value)
    before = os.listdir(tmp_path)
    assert locate(tmp_path / "a" / "x.db").address == str(tmp_path / "a" / "x.db") and os.listdir(tmp_path) == before


def test_the_users_own_folder_is_made_however_much_of_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("LIONNB_DB", "")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "a" / "b" / "c"))
    assert locate().address == str(tmp_path / "a" / "b" / "c" / "lionnb" / "control.sqlite")


def test_a_place_on_a_network_is_named_without_touching_it(tmp_path, monkeypatch):
    """A mount whose server is gone hangs whoever looks at it, and a kernel would stand still."""
    monkeypatch.setattr(location_module, "file_system_of", lambda path: "nfs4")
    assert locate(tmp_path) == Location("file", str(tmp_path))


def test_a_location_does_not_show_a_password():
    assert "secret" not in repr(locate("postgresql://u:secret@h/d"))


# --- made -------------------------------------------------------------------------------------------------------


async def test_the_file_and_its_folders_are_the_owners_alone(file_location):
    umask = os.umask(0)
    try:
        await _opens(file_location)
    finally:
        os.umask(umask)
    path = Path(file_location.address)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    for beside in path.parent.iterdir():
        assert stat.S_IMODE(beside.stat().st_mode) == 0o600


async def test_an_existing_files_rights_are_its_owners_affair(file_location):
    path = Path(file_location.address)
    path.parent.mkdir()
    path.touch(mode=0o640)
    path.chmod(0o640)
    await _opens(file_location)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    "name", ["with space.db", "q?x=1.db", "p%20.db", "#.db", "ümlaut.db", "file:x.db", ":memory: .db"]
)
async def test_a_path_is_a_path_whatever_its_characters(tmp_path, name):
    await _opens(locate(tmp_path / name))
    assert os.listdir(tmp_path / ".") and (tmp_path / name).stat().st_size > 0


async def test_sqlite_runs_in_the_modes_we_rely_on(core, location):
    if location.kind == "postgresql":
        return
    async with core._engine.connect() as connection:
        found = {
            name: (await connection.exec_driver_sql(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    journal = "memory" if location.kind == "memory" else "truncate"
    assert found == {"journal_mode": journal, "synchronous": 2, "foreign_keys": 1, "busy_timeout": 10_000}


async def test_opening_again_finds_what_was_written(shared_location, opened, make_story):
    control = await make_story(await opened(shared_location)).pending()
    assert await (await opened(shared_location)).list_controls() == [control]


async def test_many_openings_at_once_make_the_tables_once(file_location, pg_url):
    for where in (file_location, locate(pg_url)):
        await asyncio.gather(*(_opens(where) for _ in range(6)))
        core = await StoreCore.open(where)
        async with core._engine.connect() as connection:
            assert (await connection.execute(sa.select(schema.meta))).all() == [(1, schema.SCHEMA_VERSION)]
        await core.aclose()


async def test_a_database_in_memory_keeps_its_rows_between_operations(opened, make_story):
    story = make_story(await opened(locate(":memory:")))
    control = await story.pending()
    assert await asyncio.gather(*(story.row(control) for _ in range(5))) == [control] * 5


# --- versions ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty_location(request):
    if request.param == "file":
        return request.getfixturevalue("file_location")
    return locate(request.getfixturevalue("pg_url"))


async def _execute(where: Location, *statements: str) -> None:
    """Write into a database behind lionnb's back."""
    if where.kind == "file":
        Path(where.address).parent.mkdir(exist_ok=True)
        with sqlite3.connect(where.address) as connection:
            for statement in statements:
                connection.execute(statement)
        connection.close()
        return
    import asyncpg

    connection = await asyncpg.connect(where.address.replace("+asyncpg", ""))
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


async def test_a_newer_database_is_refused_and_unchanged(empty_location):
    await _opens(empty_location)
    await _execute(empty_location, f"UPDATE lionnb_meta SET version = {schema.SCHEMA_VERSION + 1}")
    before = empty_location.kind == "file" and _digest(Path(empty_location.address))
    with pytest.raises(StoreVersionError, match="newer lionnb"):
        await _opens(empty_location)
    assert before == (empty_location.kind == "file" and _digest(Path(empty_location.address)))


async def test_an_older_database_is_migrated_step_by_step_and_keeps_its_rows(empty_location, monkeypatch, make_story):
    core = await StoreCore.open(empty_location)
    control = await make_story(core).pending()
    await core.aclose()
    ran = []

    def migration(n):
        def run(connection):
            ran.append(n)
            connection.execute(sa.text(f"ALTER TABLE signals ADD COLUMN extra_{n} TEXT"))

        return run

    now = schema.SCHEMA_VERSION
    monkeypatch.setattr(schema, "MIGRATIONS", {now: migration(1), now + 1: migration(2)})
    monkeypatch.setattr(schema, "SCHEMA_VERSION", now + 2)
    core = await StoreCore.open(empty_location)
    assert ran == [1, 2] and await core.list_controls() == [control]
    await core.aclose()
    await _opens(empty_location)
    assert ran == [1, 2]


async def test_a_migration_that_fails_changes_nothing(empty_location, monkeypatch):
    await _opens(empty_location)

    def half(connection):
        connection.execute(sa.text("ALTER TABLE signals ADD COLUMN half TEXT"))
        connection.execute(sa.text("ALTER TABLE no_such_table ADD COLUMN x TEXT"))

    now = schema.SCHEMA_VERSION
    with monkeypatch.context() as newer:
        newer.setattr(schema, "MIGRATIONS", {now: half})
        newer.setattr(schema, "SCHEMA_VERSION", now + 1)
        with pytest.raises(StoreError):
            await _opens(empty_location)
    core = await StoreCore.open(empty_location)
    async with core._engine.connect() as connection:
        columns = await connection.run_sync(lambda x: [c["name"] for c in sa.inspect(x).get_columns("signals")])
        assert "half" not in columns and await connection.scalar(sa.select(schema.meta.c.version)) == now
    await core.aclose()


async def test_a_database_of_version_1_gets_the_column_for_starved_turns(empty_location):
    """What was recorded before anybody measured reads as unknown; and it is migrated once."""
    await _opens(empty_location)
    turn = TurnRecord(
        turn_id="t", branch_id="b", session_id="s", operation="chat", queued_at=1.0, outcome=TurnOutcome.COMPLETED
    )
    core = await StoreCore.open(empty_location)
    await core.put_turn(turn, 2.0)
    await core.aclose()
    await _execute(empty_location, "ALTER TABLE turns DROP COLUMN starved_s")
    await _execute(empty_location, "UPDATE lionnb_meta SET version = 1")
    core = await StoreCore.open(empty_location)
    assert await core.list_turns() == [turn]
    assert await core.starved(["s", "unknown"]) == {"s": None}
    await core.put_turn(turn.model_copy(update={"turn_id": "u", "starved_s": 2.5, "ended_at": 3.0}), 4.0)
    assert await core.starved(["s"]) == {"s": 2.5}
    await core.aclose()
    await _opens(empty_location)


async def test_there_is_a_migration_from_every_older_version():
    assert set(schema.MIGRATIONS) == set(range(1, schema.SCHEMA_VERSION))


# --- not ours ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["bookmarks", "sessions"])
async def test_another_programs_database_is_refused_and_unchanged(empty_location, table):
    await _execute(empty_location, f"CREATE TABLE {table} (id TEXT)")
    before = empty_location.kind == "file" and _digest(Path(empty_location.address))
    with pytest.raises(StoreVersionError, match="another program"):
        await _opens(empty_location)
    assert before == (empty_location.kind == "file" and _digest(Path(empty_location.address)))


async def test_another_programs_wal_database_keeps_its_mode(file_location):
    await _execute(file_location, "PRAGMA journal_mode=wal", "CREATE TABLE bookmarks (id TEXT)")
    before = _digest(Path(file_location.address))
    with pytest.raises(StoreVersionError):
        await _opens(file_location)
    assert before == _digest(Path(file_location.address))


@pytest.mark.parametrize(
    "content", [b"# a notebook, not a database\n" * 99, b"\x00" * 4096, b"SQLite format 3\x00junk" * 99]
)
async def test_a_file_that_is_no_database_is_refused_and_unchanged(file_location, content):
    path = Path(file_location.address)
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StoreVersionError, match="not a database"):
        await _opens(file_location)
    assert path.read_bytes() == content


# --- WAL --------------------------------------------------------------------------------------------------------


async def test_a_file_found_in_wal_mode_is_switched_back_when_nobody_else_has_it(file_location, opened):
    await _opens(file_location)
    await _execute(file_location, "PRAGMA journal_mode=wal")
    core = await opened(file_location)
    async with core._engine.connect() as connection:
        assert (await connection.exec_driver_sql("PRAGMA journal_mode")).scalar() == "truncate"


async def test_a_file_that_another_program_holds_in_wal_mode_is_refused(file_location):
    await _opens(file_location)
    other = sqlite3.connect(file_location.address, isolation_level=None)
    try:
        other.execute("PRAGMA journal_mode=wal")
        other.execute("UPDATE lionnb_meta SET version = version")
        with pytest.raises(StoreError, match="WAL mode"):
            await _opens(file_location)
    finally:
        other.close()
    await _opens(file_location)
