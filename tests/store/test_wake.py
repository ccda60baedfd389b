"""What other processes change is told here: each state once, by a hint or without, and only while somebody watches."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import threading

import pytest
import sqlalchemy as sa

from lionnb.errors import StoreError
from lionnb.records import ControlState
from lionnb.store import Store, locate, wake
from lionnb.store import statements as sql
from lionnb.store.bell import PORTS, Bell
from lionnb.store.transact import Tx
from lionnb.testing import Resources
from tests.store.conftest import session_spec

S = ControlState
NEVER = 3_600.0


class Watched(Store):
    """A store whose watchers' news a test can wait for."""

    def __init__(self, where) -> None:
        super().__init__(where.address)
        self.news: queue.Queue = queue.Queue()

    def ask(self, work):
        return self.submit(work).result(60)

    def hears(self, sid):
        """Watch a run from a point before whatever follows."""
        stop = self.watch(sid, self.news.put)
        self.ask(settled)
        return stop

    def next(self):
        """The next thing that is told: text and state."""
        row = self.news.get(timeout=60)
        return row.text, row.state.value

    def silent(self) -> bool:
        """Whether nothing more is told, although this store has looked once more."""
        self.look()
        return self.news.empty()

    def look(self) -> None:
        self.submit(lambda core: self._wake._look()).result(60)


async def settled(core):
    return None


@pytest.fixture
def store(shared_location):
    made = Watched(shared_location)
    yield made
    made.close()


@pytest.fixture
def second(shared_location):
    """Another program's store, in this process: to the first it is as foreign as any."""
    made = Watched(shared_location)
    yield made
    made.close()


@pytest.fixture
def only_hints(monkeypatch):
    """Nothing is looked at but after a hint."""
    for ear in (wake.SqliteEar, wake.PostgresEar):
        monkeypatch.setattr(ear, "interval_s", NEVER)


@pytest.fixture
def no_hints(monkeypatch):
    """Hints are lost; looking now and then remains."""
    monkeypatch.setattr(Bell, "ring", lambda self: None)
    monkeypatch.setattr(wake.PostgresEar, "_on_notice", lambda self, *args: None)
    monkeypatch.setattr(wake.PostgresEar, "interval_s", 0.05)


def started(store, sid="s-1", leg="leg-1"):
    store.ask(lambda core: core.start_session(session_spec(id=sid, leg=leg), 1.0))


def sent(store, text="go on", sid="s-1"):
    return store.ask(lambda core: core.admit(sid, text=text, by="ben", now=2.0)).unwrap()


# --- from one process to another --------------------------------------------------------------------------------


def test_a_process_hears_what_another_one_does(store, other, shared_location):
    """A row's life, written elsewhere step by step, is told here step by step, and nothing twice."""
    process = other()
    process.runs(shared_location.address, ttl_s=None)
    store.hears("s-1")
    process.do("row = ask(lambda core: core.admit('s-1', text='one', by='ben', now=2.0)).unwrap()")
    assert store.next() == ("one", "pending")
    process.do("claim = ask(lambda core: core.claim_all('s-1', 'leg-1', 3.0))")
    assert store.next() == ("one", "delivering")
    process.do("ask(lambda core: core.give_back(claim.token, 4.0))")
    assert store.next() == ("one", "pending")
    process.do("claim = ask(lambda core: core.claim_all('s-1', 'leg-1', 5.0))")
    assert store.next() == ("one", "delivering")
    process.do("ask(lambda core: core.resolve(row.id, 'abandoned', 'ana', 6.0))")
    assert store.next() == ("one", "resolved")
    process.do(
        "ask(lambda core: core.report(claim.token, turn_id='t', turn_outcome='completed', in_history=True, now=7.0))"
    )
    late = store.news.get(timeout=60)
    assert late.state is S.RESOLVED and "applied in turn t" in late.late_report
    process.do("ask(lambda core: core.end('s-1', 'leg-1', 'completed', by=None, now=8.0))")
    assert store.silent()


def test_the_hint_is_enough(only_hints, store, second):
    started(store)
    store.hears("s-1")
    sent(second, "one")
    assert store.next() == ("one", "pending")


def test_a_lost_hint_costs_time_and_nothing_else(no_hints, store, second):
    started(store)
    store.hears("s-1")
    sent(second, "one")
    assert store.next() == ("one", "pending")


def test_each_hears_the_other(only_hints, store, second):
    started(store)
    store.hears("s-1")
    second.hears("s-1")
    sent(store, "one")
    assert second.next() == ("one", "pending") == store.next()
    sent(second, "two")
    assert store.next() == ("two", "pending") == second.next()
    assert store.silent() and second.silent()


# --- once, and in order -----------------------------------------------------------------------------------------


def test_what_this_store_wrote_is_not_told_again_when_the_file_has_changed(store):
    started(store)
    store.hears("s-1")
    for text in ("one", "two"):
        sent(store, text)
    assert [store.next(), store.next()] == [("one", "pending"), ("two", "pending")] and store.silent()
    claim = store.ask(lambda core: core.claim_all("s-1", "leg-1", 3.0))
    store.look()
    store.ask(lambda core: core.report(claim.token, turn_id="t", turn_outcome="completed", in_history=True, now=4.0))
    told = [store.next() for _ in range(4)]
    assert told == [(text, state) for state in ("delivering", "applied") for text in ("one", "two")] and store.silent()


def test_what_is_found_together_is_told_in_the_order_of_its_numbers(no_hints, only_hints, store, second):
    started(store)
    store.hears("s-1")
    rows = [sent(second, text) for text in ("one", "two", "three")]
    second.ask(lambda core: core.withdraw(rows[0].id, "ana", 3.0))
    store.look()
    assert [store.next() for _ in rows] == [("one", "withdrawn"), ("two", "pending"), ("three", "pending")]
    assert store.silent()


def test_a_row_that_two_watchers_mean_is_told_to_each_once(store, second):
    started(store)
    every = queue.Queue()
    store.hears("s-1")
    stop = store.watch(None, every.put)
    store.ask(settled)
    sent(second, "one")
    assert store.next() == ("one", "pending") and every.get(timeout=60).text == "one"
    stop()
    sent(second, "two")
    assert store.next() == ("two", "pending") and store.silent() and every.empty()


def test_a_run_is_followed_from_the_watch_on(store, second):
    """What was there is read; what changes later is told: nothing falls between, and nothing is told as new."""
    started(store)
    started(store, "s-2", "leg-2")
    closed, waits = sent(second, "closed"), sent(second, "waits")
    second.ask(lambda core: core.withdraw(closed.id, "ana", 3.0))
    store.hears("s-2")
    sent(second, "elsewhere", "s-2")
    assert store.next() == ("elsewhere", "pending")
    store.watch("s-1", store.news.put)
    read = store.ask(lambda core: core.list_controls("s-1"))  # without waiting for anything: it comes after the watch
    sent(second, "new")
    second.ask(lambda core: core.withdraw(waits.id, "ana", 4.0))
    told = {store.next() for _ in range(2)}
    assert {row.text for row in read} == {"closed", "waits"} and told == {("new", "pending"), ("waits", "withdrawn")}
    assert store.silent()


def test_a_watch_of_all_runs_hears_of_every_run_also_of_later_ones(store, second):
    started(store)
    sent(second, "before")
    store.hears(None)
    sent(second, "one")
    assert store.next() == ("one", "pending")
    started(second, "s-2", "leg-2")
    sent(second, "two", "s-2")
    assert store.next() == ("two", "pending") and store.silent()


def test_a_storm_from_two_sides_is_told_to_its_end(store, second):
    """Whatever is skipped on the way, the last state of every row is told, once, and no state after a newer one."""
    started(store)
    store.hears("s-1")
    for i in range(15):
        here, there = sent(store, f"here {i}"), sent(second, f"there {i}")
        store.ask(lambda core, cid=there.id: core.withdraw(cid, "ana", 3.0))
        second.ask(lambda core, cid=here.id: core.withdraw(cid, "ana", 3.0))
    told: dict[str, list[str]] = {}
    while len(told) < 30 or any(states[-1] != "withdrawn" for states in told.values()):
        text, state = store.next()
        told.setdefault(text, []).append(state)
    assert all(states in (["pending", "withdrawn"], ["withdrawn"]) for states in told.values()) and store.silent()


def test_a_late_report_is_told_however_long_after_the_resolution(store, second):
    """A resolved row is closed, and can change once more."""
    started(store)
    store.hears("s-1")
    row = sent(second, "one")
    claim = second.ask(lambda core: core.claim_all("s-1", "leg-1", 3.0))
    second.ask(lambda core: core.resolve(row.id, "abandoned", "ana", 4.0))
    while store.next() != ("one", "resolved"):
        pass
    assert store.silent() and store.silent()
    done = {"turn_id": "t", "turn_outcome": "completed", "in_history": True, "now": 5.0}
    second.ask(lambda core: core.report(claim.token, **done))
    assert store.news.get(timeout=60).late_report is not None and store.silent()


def test_nothing_is_read_while_nothing_changes(file_location, monkeypatch):
    """One look at the change counter costs microseconds; a query is made when that has moved."""
    monkeypatch.setattr(wake.SqliteEar, "interval_s", 0.001)
    store = Watched(file_location)
    started(store)
    store.hears("s-1")
    ear, hear, looks = store._wake._ear, store._core.hear, []
    version, asked, many = ear.version, [], threading.Event()

    async def counted():
        asked.append(await version())
        if asked.count(asked[-1]) > 20:
            many.set()
        return asked[-1]

    async def looking(look):
        looks.append(look)
        await hear(look)

    monkeypatch.setattr(ear, "version", counted)
    monkeypatch.setattr(store._core, "hear", looking)
    assert many.wait(60) and len(looks) <= 2
    store.close()


def test_rows_that_were_purged_are_forgotten(store, second):
    started(store)
    store.hears("s-1")
    sent(second, "one")
    assert store.next() == ("one", "pending")
    second.ask(lambda core: core.end("s-1", "leg-1", "completed", by=None, now=5.0))
    assert store.next() == ("one", "rejected")
    second.ask(lambda core: core.purge(10.0, 20.0))
    assert store.silent() and store.silent() and (not store._wake._known or store._wake._overlap)


def test_many_open_rows_are_asked_for_in_one_statement(store, second, monkeypatch):
    monkeypatch.setattr(wake, "_MANY", 2)
    started(store)
    store.hears("s-1")
    rows = [sent(second, f"m{i}") for i in range(5)]
    assert [store.next()[0] for _ in rows] == [row.text for row in rows]
    second.ask(lambda core: core.withdraw(rows[0].id, "ana", 3.0))
    assert store.next() == ("m0", "withdrawn") and store.silent()


def test_a_look_that_failed_is_made_up_for(no_hints, store, second, monkeypatch):
    started(store)
    store.hears("s-1")
    hear, failed = store._core.hear, threading.Event()

    async def failing(look):
        if not failed.is_set():
            failed.set()
            raise StoreError("not now")
        await hear(look)

    monkeypatch.setattr(store._core, "hear", failing)
    sent(second, "one")
    assert store.next() == ("one", "pending") and failed.is_set()


# --- nobody watches ---------------------------------------------------------------------------------------------


def test_while_nobody_watches_there_is_no_socket_no_task_and_no_connection(store, second):
    started(store)

    async def listening(core):
        return [t.get_name() for t in asyncio.all_tasks() if t.get_name() == "lionnb-wake"]

    before = Resources.now().sockets
    assert store.ask(listening) == []
    stops = [store.watch("s-1", store.news.put) for _ in range(2)]
    assert store.ask(listening) == ["lionnb-wake"] and len(Resources.now().sockets) > len(before)
    stops[0]()
    assert store.ask(listening) == ["lionnb-wake"]
    stops[1]()
    stops[1]()
    assert store.ask(listening) == [] and len(Resources.now().sockets) == len(before)
    assert store._wake._ear.__dict__.get("_probe") is None and store._wake._known == {}
    store.hears("s-1")  # and it can begin again
    sent(second, "one")
    assert store.next() == ("one", "pending")


def test_a_watch_before_the_first_use_listens_from_the_first_use_on(shared_location, second):
    store = Watched(shared_location)
    store.watch("s-1", store.news.put)
    assert store._thread is None
    started(store)
    sent(second, "one")
    assert store.next() == ("one", "pending")
    store.close()


def test_closing_ends_the_listening(shared_location):
    before = Resources.now()
    store = Watched(shared_location)
    store.hears(None)
    store.close()
    assert not Resources.now().sockets - before.sockets and not Resources.now().threads - before.threads
    store.watch("s-1", print)()  # of a closed store: harmless


def test_a_database_in_memory_has_nobody_to_listen_to():
    store = Store(":memory:")
    store.watch("s-1", print)
    store.submit(settled).result(60)
    assert store._wake is None
    store.close()


# --- the bell ---------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "c.db"
    path.touch()
    return str(path)


def test_the_bell_is_the_files_whatever_its_path_is_called(file, tmp_path):
    os.symlink(file, tmp_path / "link.db")
    os.symlink(tmp_path, tmp_path / "folder")
    (tmp_path / "other.db").touch()
    same = {tuple(Bell(str(p)).ports) for p in (file, tmp_path / "link.db", tmp_path / "folder" / "c.db")}
    assert len(same) == 1 and tuple(Bell(str(tmp_path / "other.db")).ports) not in same
    assert len(Bell(file).ports) == PORTS and Bell(file).ports[0] > 60_999 and Bell(file).ports[-1] <= 65_535


def test_every_listener_hears_it_but_its_own_process(file):
    bells = [Bell(file) for _ in range(3)]
    with_sockets = [(bell, bell.listen()) for bell in bells]
    for bell, listener in with_sockets:
        bell.own = listener.getsockname()[1]
    bells[0].ring()
    try:
        with pytest.raises(BlockingIOError):
            with_sockets[0][1].recv(9)
        assert [listener.recv(9) for _, listener in with_sockets[1:]] == [b"!", b"!"]
    finally:
        for _, listener in with_sockets:
            listener.close()


def test_ringing_where_nobody_listens_or_nothing_can_be_sent_is_silent(file, monkeypatch):
    Bell(file).ring()

    def none(*args):
        raise OSError(24, "too many open files")

    monkeypatch.setattr(socket, "socket", none)
    Bell(file).ring()


def test_without_a_free_port_what_changes_is_found_all_the_same(file_location, monkeypatch):
    monkeypatch.setattr(Bell, "listen", lambda self: None)
    store, second = Watched(file_location), Watched(file_location)
    started(store)
    store.hears("s-1")
    sent(second, "one")
    assert store.next() == ("one", "pending")
    store.close()
    second.close()


def test_a_bell_that_anybody_rings_with_anything_tells_nothing(file_location):
    store = Watched(file_location)
    started(store)
    store.hears("s-1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anybody:
        for told in (b"", b"\x00" * 9_000, b'{"state": "applied"}'):
            anybody.sendto(told, ("127.0.0.1", store._core.bell.own))
    assert store.silent()
    sent(store, "one")
    assert store.next() == ("one", "pending")
    store.close()


def test_a_file_that_cannot_be_read_at_this_moment_counts_as_changed(file_location, monkeypatch, need):
    """The look then waits its turn, without holding up the control thread."""
    store = Watched(file_location)
    started(store)
    store.hears("s-1")
    ear = store._wake._ear

    async def versions(core):
        first = [await ear.version() for _ in range(2)]
        ear._probe.close()
        return first, [await ear.version() for _ in range(2)]

    same, differ = store.submit(versions).result(60)
    assert same[0] == same[1] and differ[0] != differ[1]
    store.close()


# --- PostgreSQL -------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(pg_emptied_url):
    stores = [Watched(locate(pg_emptied_url)) for _ in range(2)]
    yield stores
    for store in stores:
        store.close()


def test_a_listener_whose_connection_was_cut_listens_again(pair, postgres, pg_emptied_url, monkeypatch):
    store, second = pair
    monkeypatch.setattr(wake.PostgresEar, "interval_s", 0.05)
    started(store)
    store.hears("s-1")
    lost = threading.Event()
    monkeypatch.setattr(store._wake._ear, "_on_loss", lost.set, raising=True)
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    ear, first = store._wake._ear, store._wake._ear._connection
    postgres.sql(pg_emptied_url, cut)
    sent(second, "one")
    assert store.next() == ("one", "pending")
    again = threading.Event()

    async def until_again(core):
        while ear._connection is first or ear._lost:
            await asyncio.sleep(0)
        again.set()

    store.submit(until_again).result(60)
    monkeypatch.setattr(wake.PostgresEar, "interval_s", NEVER)
    store.ask(settled)
    sent(second, "two")
    assert store.next() == ("two", "pending") and again.is_set()


def test_a_row_that_is_committed_behind_a_later_one_is_told(pair):
    """PostgreSQL gives numbers before it commits: the later number is seen first."""
    store, second = pair
    for sid in ("s-1", "s-2"):
        started(store, sid, f"leg-{sid}")
    store.hears(None)
    entered, go = threading.Event(), asyncio.Event()

    async def slow(core):
        async with core._engine.begin() as connection:
            tx, binds = Tx(connection), {"what": "message", "by": "ben", "idem": None, "origin": None, "now": 2.0}
            await tx.rows(sql.ADMIT, sid="s-1", cid="slow", body={"text": "slow"}, kinds=["agent"], **binds)
            await tx.rows(sql.WITHDRAW, cid="slow", who="ben", why=None, now=3.0)
            entered.set()
            await go.wait()

    done = second.submit(slow)
    assert entered.wait(60)
    sent(store, "fast", "s-2")
    assert store.next() == ("fast", "pending") and store.silent()
    second._thread.loop.call_soon_threadsafe(go.set)
    done.result(60)
    store.look()
    assert store.next() == ("slow", "withdrawn") and store.silent()


def test_an_operation_that_was_undone_announces_nothing(pair):
    """NOTIFY is part of the transaction."""
    store, second = pair
    started(store)
    store.hears("s-1")

    async def undone(core):
        async with core._engine.connect() as connection:
            await connection.execute(sa.select(sa.func.pg_notify(sql.CHANNEL, "x")))
            await connection.rollback()

    second.submit(undone).result(60)
    assert store.silent()
