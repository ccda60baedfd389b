"""The store as threads, loops and processes meet it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading

import pytest

from lionnb.errors import StoreError, StoreVersionError
from lionnb.records import SessionSpec
from lionnb.store import Store, default_store
from lionnb.store import store as store_module


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "control.sqlite")
    yield made
    made.close()


def start(sid="s-1"):
    spec = SessionSpec(id=sid, run_id="20261130T101010-abcdef", branch_id="b-1", leg="leg-1", created_at=1.0)
    return lambda core: core.start_session(spec, 1.0)


def send(text="go on", sid="s-1"):
    return lambda core: core.admit(sid, text=text, by="ana", now=2.0)


@pytest.fixture(autouse=True)
def _debug(monkeypatch):
    """Here the control thread is the subject: its loop says so when somebody calls it from another thread."""
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")


def python(code: str, **how):
    """Run *code* as a user would: asyncio's debug mode would report the first import as a slow step."""
    env = os.environ | {"PYTHONASYNCIODEBUG": ""}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=env, timeout=60, **how
    )


# --- threads and loops ------------------------------------------------------------------------------------------


def test_work_can_be_submitted_from_any_thread(store):
    store.submit(start()).result(10)
    found = []
    threads = [threading.Thread(target=lambda: found.append(store.submit(send()).result(10))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.submit(lambda core: core.list_controls()).result(10)) == 8 == len(found)


async def test_all_work_runs_on_one_thread_that_is_not_the_callers(store):
    async def where(core):
        return threading.current_thread()

    threads = {await store.run(where) for _ in range(3)} | {store.submit(where).result(10)}
    assert len(threads) == 1 and threading.current_thread() not in threads and threads.pop().daemon


async def test_a_caller_that_is_cancelled_leaves_work_that_reaches_its_end(store):
    await store.run(start())
    entered, go, ended = threading.Event(), threading.Event(), threading.Event()

    async def slowly(core):
        entered.set()
        await asyncio.to_thread(go.wait)
        await send()(core)
        ended.set()

    caller = asyncio.create_task(store.run(slowly))
    await asyncio.to_thread(entered.wait)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    go.set()
    await asyncio.to_thread(ended.wait)
    assert len(await store.run(lambda core: core.list_controls())) == 1


async def test_an_operation_that_is_cancelled_in_its_transaction_reaches_its_end(core, story):
    """Every loop step of an admission: cancelled there, it is written, and nothing is left open."""
    sid, step = await story.running(), 0
    while True:
        sent = asyncio.create_task(core.admit(sid, text=f"m{step}", by="ana", now=2.0))
        for _ in range(step):
            await asyncio.sleep(0)
        if sent.done():
            break
        sent.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sent
        step += 1
    texts = [row.text for row in await core.list_controls(sid)]
    # cancelled before its first step a coroutine does not begin; after that it always ends
    assert texts[-1] == f"m{step}" and set(texts) >= {f"m{i}" for i in range(1, step)}


def test_the_future_of_work_carries_its_error(store):
    async def broken(core):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        store.submit(broken).result(10)


async def test_a_steer_is_recorded_while_the_main_loop_is_blocked(store):
    await store.run(start())
    recorded = threading.Event()
    store.watch("s-1", lambda record: recorded.set())
    store.submit(send())
    assert recorded.wait(10)  # blocks this loop, as a cell that computes does


def test_watchers_are_called_on_the_control_thread_until_they_stop(store):
    store.submit(start()).result(10)
    heard = []
    unwatch = store.watch("s-1", lambda record: heard.append((record.text, threading.current_thread().name)))
    store.submit(send("one")).result(10)
    unwatch()
    store.submit(send("two")).result(10)
    assert heard == [("one", "lionnb-control")]


def test_a_watcher_may_send_without_waiting_for_itself(store):
    store.submit(start()).result(10)
    echoed = threading.Event()

    def echo(record):
        store.submit(send("echo")) if record.text == "call" else echoed.set()

    store.watch("s-1", echo)
    store.submit(send("call")).result(10)
    assert echoed.wait(10)


# --- open and close ---------------------------------------------------------------------------------------------


def test_a_store_costs_nothing_until_it_is_used(tmp_path):
    before = threading.active_count()
    store = Store(tmp_path / "x" / "control.sqlite")
    store.watch("s-1", print)
    assert threading.active_count() == before and not (tmp_path / "x").exists()
    store.close()
    assert store.closed and not (tmp_path / "x").exists()


def test_importing_the_store_loads_no_database_library():
    done = python("import sys, lionnb.store; print(sorted({'sqlalchemy', 'aiosqlite', 'asyncpg'} & set(sys.modules)))")
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_close_lets_finish_what_was_submitted(store):
    store.submit(start()).result(10)
    futures = [store.submit(send(f"m{i}")) for i in range(20)]
    store.close()
    assert all(future.result(0).control is not None for future in futures)


def test_a_closed_store_refuses_with_a_sentence_and_closes_again(store):
    store.submit(start()).result(10)
    store.close()
    store.close()
    assert store.closed and "closed" in repr(store)
    with pytest.raises(StoreError, match="is closed"):
        store.submit(start())


def test_closing_ends_every_thread_also_when_the_work_does_not(tmp_path):
    """g21."""
    before = threading.active_count()
    store = Store(tmp_path / "control.sqlite")
    entered = threading.Event()

    async def never(core):
        entered.set()
        await asyncio.Event().wait()

    future = store.submit(never)
    assert entered.wait(10)
    store.close(timeout_s=0.05)
    assert future.cancelled() and threading.active_count() == before


def test_the_control_thread_cannot_close_what_it_runs_on(store):
    async def close(core):
        store.close()

    with pytest.raises(StoreError, match="control thread"):
        store.submit(close).result(10)
    assert not store.closed


def test_an_opening_that_failed_is_tried_again(tmp_path):
    path = tmp_path / "control.sqlite"
    path.write_text("not a database" * 99)
    store = Store(path)
    with pytest.raises(StoreVersionError):
        store.submit(start()).result(10)
    path.unlink()
    assert store.submit(start()).result(10).id == "s-1"
    store.close()


def test_a_process_that_forgets_to_close_ends_at_once_and_loses_nothing(tmp_path):
    code = f"""
    from lionnb.records import SessionSpec
    from lionnb.store import Store
    spec = SessionSpec(id="s-1", run_id="r", branch_id="b", leg="l", created_at=1.0)
    Store({str(tmp_path / "c.db")!r}).submit(lambda core: core.start_session(spec, 1.0)).result(30)
    """
    done = python(code)
    assert (done.returncode, done.stderr) == (0, "")
    store = Store(tmp_path / "c.db")
    assert store.submit(lambda core: core.get_session("s-1")).result(10) is not None
    store.close()


# --- fork -------------------------------------------------------------------------------------------------------

FORKED = """
import os
from lionnb.errors import StoreError
from lionnb.records import SessionSpec
from lionnb.store import Store, default_store
spec = SessionSpec(id="s-1", run_id="r", branch_id="b", leg="l", created_at=1.0)
work = lambda core: core.start_session(spec, 1.0)
used, unused = default_store(), Store(":memory:")
used.submit(work).result(30)
pid = os.fork()
if pid == 0:
    for store in (used, unused):
        try:
            store.submit(work)
        except StoreError as exc:
            assert "forked" in str(exc) and store.closed
        else:
            os._exit(3)
        store.close()
    fresh = default_store()
    assert fresh is not used
    assert fresh.submit(work).result(30).id == "s-1"
    fresh.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert used.submit(work).result(30).id == "s-1"
used.close()
print("both")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_refuses_the_parents_store_and_can_open_its_own():
    """g09."""
    done = python(FORKED)
    assert (done.stdout.strip(), done.stderr) == ("both", "")


# --- the default store ------------------------------------------------------------------------------------------


def test_the_default_store_is_one_a_database_whatever_the_thread(tmp_path, monkeypatch):
    stores, gate = [], threading.Barrier(8)

    def ask():
        gate.wait()
        stores.append(default_store())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, stores))) == 1 and default_store(os.environ["LIONNB_DB"]) is stores[0]
    monkeypatch.setenv("LIONNB_DB", str(tmp_path / "other.db"))
    assert default_store() is not stores[0]


def test_a_closed_default_store_is_replaced():
    first = default_store()
    first.close()
    assert default_store() is not first and not default_store().closed


@pytest.fixture(autouse=True)
def _forget_default_stores():
    yield
    for store in store_module._stores.values():
        store.close()
    store_module._stores.clear()
