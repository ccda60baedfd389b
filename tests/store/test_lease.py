"""Leases: a leg that is gone is called dead, a slow one never is, and nothing is recorded by reading or by a timer."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
import threading
import time

import pytest
import sqlalchemy as sa

from lionnb.errors import ResolveRefusedError, StoreError
from lionnb.records import ControlState, RunStatus, SessionRecord, SessionSpec, Verdict
from lionnb.store import Store, lease, locate
from lionnb.store import statements as sql
from lionnb.store.lease import claim_is_dead, host_id, identity, kernel_of, process_of, run_view, verdict
from lionnb.store.leglock import LegLocks
from lionnb.store.schema import sessions
from tests.store.test_store_race import holding, until_blocked

S = ControlState
LATE = 10_000.0  # long after any heartbeat of these tests, which is at 0
OTHER_HOST = "linux:another-boot:pid:[1]"


@pytest.fixture(autouse=True)
def _linux_or_nothing(need):
    need(sys.platform == "linux", "these tests ask Linux about processes")


@pytest.fixture
def unshared(need):
    """A command that runs what follows in a pid namespace of its own, with or without a /proc that fits it."""
    program = shutil.which("unshare")
    need(program and os.geteuid() == 0, "a pid namespace needs util-linux's unshare, and root")
    return lambda *how: (program, "--pid", "--fork", "--kill-child", *how)


def session(**fields) -> SessionRecord:
    """A running run of this process, whose heart has been still since 0."""
    made = {"id": "s-1", "run_id": "r", "branch_id": "b", "leg": "leg-1", "created_at": 0.0, "status": "running"}
    return SessionRecord(**made | {"heartbeat_at": 0.0} | identity() | fields)


def of(process, **fields) -> SessionRecord:
    """As `session`, of another process."""
    return session(**process.do("__import__('lionnb.store.lease').store.lease.identity()") | fields)


# --- who runs a leg ---------------------------------------------------------------------------------------------


def test_a_process_says_the_same_of_itself_at_any_time():
    """No wall clock is in it: a clock that is set makes no process another one."""
    with open("/proc/self/stat") as file:
        ticks = file.read().rpartition(")")[2].split()[19]
    assert identity() == identity() == {"host": host_id(), "pid": os.getpid(), "pid_start": ticks, "ttl_s": 90.0}


def test_two_processes_differ_and_share_the_host(other):
    theirs = of(other())
    assert theirs.host == host_id() and (theirs.pid, theirs.pid_start) != (os.getpid(), identity()["pid_start"])


# --- the leg's own host -----------------------------------------------------------------------------------------


def test_a_leg_whose_process_is_there_is_alive_however_still_its_heart():
    assert verdict(session(), LATE) is Verdict.ALIVE


def test_a_stopped_process_is_alive(other):
    process = other()
    seen = of(process)
    with process.stopped():
        assert verdict(seen, LATE) is Verdict.ALIVE


def test_a_process_that_computes_and_lets_nobody_else_run_is_alive(other):
    """`sum` over a range holds the interpreter: no thread of that process can beat."""
    process = other()
    seen = of(process)
    process.begin("print('{\"ok\": 0}', flush=True); sum(range(10**12))")
    process.answer()
    assert verdict(seen, LATE) is Verdict.ALIVE


def test_a_killed_process_is_dead_at_once_and_for_ever(other):
    process = other()
    seen = of(process)
    process.kill()
    assert verdict(seen, 0.0) is Verdict.DEAD is verdict(seen, LATE)


def test_a_zombie_is_dead(other):
    process = other()
    seen = of(process)
    process.make_zombie()
    assert verdict(seen, 0.0) is Verdict.DEAD


def test_a_pid_that_was_given_to_another_process_is_dead():
    assert verdict(session(pid_start="1"), 0.0) is Verdict.DEAD


def test_a_child_that_outlives_the_leg_does_not_keep_it_alive(other):
    process = other()
    seen = of(process)
    child = process.do("os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '60')")
    try:
        process.kill()
        assert verdict(seen, 0.0) is Verdict.DEAD
    finally:
        os.kill(child, 9)


def test_a_process_whose_first_thread_has_ended_is_alive_while_another_runs(other, need):
    """Its leader reads as a zombie, and yet it works."""
    number = {"x86_64": 60, "aarch64": 93}.get(platform.machine())
    need(number, "the number of exit(2) on this machine is not known here")
    process = other()
    seen = of(process)
    process.do("import ctypes; threading.Thread(target=time.sleep, args=(600,)).start()")
    process.begin(f"ctypes.CDLL(None).syscall({number}, 0)")
    while lease._stat(str(process.pid))[0] != "Z":
        os.sched_yield()
    assert lease._stat(str(process.pid))[2] > 1 and verdict(seen, LATE) is Verdict.ALIVE


def test_a_process_that_this_account_may_not_look_at_is_not_called_dead(monkeypatch):
    """`hidepid` hides a process from /proc; the kernel, asked by number, does not."""
    monkeypatch.setattr(lease, "_stat", lambda name: None)
    assert verdict(session(pid_start="1"), 0.0) is Verdict.FRESH


@pytest.mark.parametrize("pid", [0, -1, -(2**40), 2**40])
def test_a_number_that_is_no_pid_is_never_asked_about(pid, monkeypatch):
    """0 and below name groups of processes."""
    monkeypatch.setattr(os, "kill", lambda *args: pytest.fail("asked the kernel"))
    assert verdict(session(pid=pid), LATE) is Verdict.SILENT


# --- elsewhere --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "ttl", "expected"),
    [
        (89.0, 90.0, Verdict.FRESH),
        (90.0, 90.0, Verdict.FRESH),
        (90.1, 90.0, Verdict.SILENT),
        (-3600.0, 90.0, Verdict.FRESH),  # that host's clock is ahead: its heart beats
        (1e9, None, Verdict.FRESH),  # a run that states no lease has none that could lapse
    ],
)
def test_from_another_host_only_the_heartbeat_is_seen(age, ttl, expected):
    seen = session(host=OTHER_HOST, ttl_s=ttl, pid=2**31 - 1)
    assert verdict(seen, age) is expected


def test_a_run_that_does_not_say_who_runs_it_is_judged_by_its_heart():
    for missing in ("host", "pid", "pid_start"):
        assert verdict(session(**{missing: None}), LATE) is Verdict.SILENT


def test_another_pid_namespace_is_another_host_on_the_same_kernel(other, unshared):
    """By its number alone a live leg in a container would be called dead."""
    seen = of(other(*unshared("--mount-proc")))
    assert seen.host != host_id() and kernel_of(seen.host) == kernel_of(host_id())
    assert verdict(seen, 0.0) is Verdict.FRESH and verdict(seen, LATE) is Verdict.SILENT


def test_a_proc_that_belongs_to_another_namespace_proves_nothing_but_absence(other, unshared):
    """Where /proc was not mounted anew, its numbers are another namespace's; the kernel is still asked rightly."""
    process = other(*unshared())
    process.do("from lionnb.store.lease import identity, verdict; from lionnb.records import SessionRecord")
    made = "dict(id='s', run_id='r', branch_id='b', leg='l', created_at=0.0, status='running')"
    process.do(
        "r, w = os.pipe(); pid = os.fork()\n"
        "if pid == 0:\n"
        "    os.write(w, __import__('json').dumps(identity()).encode()); time.sleep(600)\n"
        f"leg = SessionRecord(**{made} | __import__('json').loads(os.read(r, 9999)))"
    )
    assert process.do("verdict(leg, 0.0)") == "fresh"
    assert process.do("(os.kill(pid, 9), os.waitpid(pid, 0), verdict(leg, 0.0))[2]") == "dead"


# --- where there is no /proc ------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(monkeypatch):
    """As on macOS and Windows: psutil is asked."""
    assert lease._host_elsewhere() == lease._host_elsewhere()
    monkeypatch.setattr(lease, "_host_id", lambda pid: "darwin:node:1")


def test_without_proc_a_process_is_known_by_its_pid_and_its_start(elsewhere, other):
    process = other()
    mine, theirs = session(), session(pid=process.pid, pid_start=lease._start_elsewhere(process.pid))
    assert mine.pid_start is not None and verdict(mine, LATE) is Verdict.ALIVE is verdict(theirs, LATE)
    assert verdict(session(pid_start="1.0"), 0.0) is Verdict.DEAD
    process.make_zombie()
    assert verdict(theirs, 0.0) is Verdict.DEAD
    process.kill()
    assert verdict(theirs, 0.0) is Verdict.DEAD
    assert kernel_of(mine.host) is None


# --- the record lock --------------------------------------------------------------------------------------------

HOLD = "from lionnb.store.leglock import LegLocks; locks = LegLocks({!r}); held = locks.try_hold('leg-1')"


@pytest.fixture
def db(tmp_path):
    return str(tmp_path / "c.db")


def test_a_lock_is_held_for_the_life_of_its_process_whatever_ends_it(other, db):
    process, locks = other(), LegLocks(db)
    assert not locks.is_free("leg-1")  # no file is no evidence
    process.do(HOLD.format(db))
    assert not locks.is_free("leg-1")
    process.make_zombie()
    assert locks.is_free("leg-1")


def test_a_lock_that_is_released_leaves_nothing(other, db):
    process = other()
    process.do(HOLD.format(db))
    process.do("locks.release('leg-1', held)")
    assert not LegLocks(db).is_free("leg-1") and not os.path.exists(f"{db}-legs")


def test_asking_about_its_own_lock_does_not_drop_it(other, db):
    """A POSIX lock goes with the first descriptor of the file that its process closes."""
    process = other()
    process.do(HOLD.format(db))
    assert process.do("(locks.is_free('leg-1'), locks.tidy([]), locks.try_hold('leg-1'))") == [False, None, None]
    assert not LegLocks(db).is_free("leg-1")


def test_a_lock_that_cannot_be_taken_leaves_no_file_that_would_say_free(db, monkeypatch):
    def refused(*args):
        raise OSError(37, "no locks available")

    monkeypatch.setattr("lionnb.store.leglock.fcntl.lockf", refused)
    locks = LegLocks(db)
    assert locks.try_hold("leg-1") is None and os.listdir(f"{db}-legs") == []


def test_a_leg_names_no_path(db):
    locks = LegLocks(db)
    held = locks.try_hold("../../evil\x00\ud800")
    assert held is not None and len(os.listdir(f"{db}-legs")) == 1
    locks.release("../../evil\x00\ud800", held)


def test_tidying_removes_what_is_free_and_what_nobody_will_ask_about(other, db):
    live, gone, running = other(), other(), other()
    for process, leg in ((live, "leg-1"), (gone, "leg-2"), (running, "leg-3")):
        process.do(HOLD.format(db).replace("leg-1", leg))
    gone.kill()
    running.kill()
    locks = LegLocks(db)
    locks.tidy(["leg-3"])
    assert len(os.listdir(f"{db}-legs")) == 2 and locks.is_free("leg-3") and not locks.is_free("leg-2")


@pytest.mark.parametrize(
    ("now", "free", "expected"),
    [
        (LATE, True, Verdict.DEAD),
        (LATE, False, Verdict.SILENT),  # held: never evidence for alive by itself
        (0.0, True, Verdict.FRESH),  # one finding alone ends nothing
    ],
)
def test_between_containers_of_one_machine_a_free_lock_and_silence_are_death(now, free, expected):
    seen = session(host=f"linux:{kernel_of(host_id())}:pid:[1]")
    assert verdict(seen, now, lock_is_free=lambda: free) is expected


def test_the_lock_of_a_leg_of_another_machine_is_not_asked():
    seen = session(host=OTHER_HOST)
    assert verdict(seen, LATE, lock_is_free=lambda: pytest.fail("asked")) is Verdict.SILENT


async def test_a_leg_killed_in_a_container_is_dead_by_its_lock(other, unshared, tmp_path, opened, file_location):
    """The pid says nothing here; the lock says it all, once the lease has lapsed."""
    process = other(*unshared("--mount-proc"))
    row = process.runs(file_location.address)
    process.do("stop = store.keep_alive('s-1', 'leg-1')")
    process.do("ask(lambda core: core.get_session('s-1'))")  # the control thread has come round: the lock is held
    core = await opened(file_location)
    (found,) = await core.list_sessions()
    late = row["heartbeat_at"] + 91
    assert core.judge(found, late) is Verdict.SILENT
    process.kill()
    assert core.judge(found, row["heartbeat_at"]) is Verdict.FRESH and core.judge(found, late) is Verdict.DEAD
    assert [done.session.status for done in await core.reap(late, "ana")] == [RunStatus.LOST]
    assert not os.path.exists(f"{file_location.address}-legs")


# --- in words ---------------------------------------------------------------------------------------------------


def test_a_process_is_told_by_where_it_is():
    assert process_of(session(pid=7)) == "pid 7 on this machine"
    inside = session(pid=7, host=f"linux:{kernel_of(host_id())}:pid:[1]")
    assert process_of(inside) == "pid 7 of another container on this machine"
    assert process_of(session(pid=7, host=OTHER_HOST)).startswith("pid 7 on another host")
    assert process_of(session(host=None)) == "not on record"


def test_a_run_is_told_as_what_is_true_of_it_now():
    assert run_view(session(), 1.0).word == "running"
    late = run_view(session(), 300.0)
    assert late.sentence == "running; its process is alive but has been busy, or suspended, for 5 min"
    dead = run_view(session(pid_start="1"), 1.0)
    assert (dead.word, dead.status, dead.sentence) == ("lost", RunStatus.LOST, "lost (its process is gone)")
    silent = run_view(session(host=OTHER_HOST), LATE)
    assert silent.word == "silent" and silent.sentence.startswith("silent since 1970-01-01 00:00:00 UTC")
    ended = run_view(session(status="failed", leg=None, ended_note="why"), LATE)
    assert (ended.word, ended.sentence, ended.verdict, ended.leg_dead) == ("failed", "failed: why", None, False)


async def test_a_claim_is_dead_with_its_leg_or_when_another_leg_has_the_run(core, story):
    sid = await story.running("leg-1")
    (row,) = (await story.claimed(sid, leg="leg-1")).rows
    run = await core.get_session(sid)
    assert not claim_is_dead(row, run, Verdict.FRESH) and claim_is_dead(row, run, Verdict.DEAD)
    await core.end(sid, "leg-1", "lost", by="ana", now=story.now)
    taken = await core.resume_session(run.model_copy(update={"leg": "leg-2"}), now=story.now)
    assert taken is not None and claim_is_dead(row, taken, Verdict.ALIVE)


# --- at the door ------------------------------------------------------------------------------------------------

GONE = {"pid_start": "1"}  # this pid, and a process that began at another tick


def mine(**fields):
    """The lease of a run of this process."""
    return identity() | fields


async def killed(core, sid):
    """The run, as kill -9 would have left it: it reads running, and its process is gone."""
    async with core._engine.begin() as connection:
        await connection.execute(sa.update(sessions).where(sessions.c.id == sid).values(**GONE))


async def test_a_live_leg_whose_lease_lapsed_is_steered_and_said_to_be_busy(core, story):
    sid = await story.running(**mine())
    await core.heartbeat(sid, "leg-1", 1_000.0)
    got = await core.admit(sid, text="go on", by="ana", now=1_300.0)
    assert got.control is not None and got.note == "its process is alive but has been busy, or suspended, for 5 min"
    assert (await core.admit(sid, text="again", by="ana", now=1_090.0)).note is None


async def test_a_dead_leg_takes_nothing_and_is_recorded_lost_with_its_sweep(core, story):
    """What was pending is rejected in the same transaction; what was claimed stays a question to a person."""
    sid = await story.running(**mine())
    (claimed,) = (await story.claimed(sid)).rows
    pending = await story.pending(sid)
    await killed(core, sid)
    refused = await core.admit(sid, text="x", by="ben", now=story.now)
    assert refused.control is None and refused.refusal[0] == "dead" and "is gone" in refused.refusal[1]
    run = await core.get_session(sid)
    assert (run.status, run.ended_by, run.leg) == (RunStatus.LOST, "ben", None) and "is gone" in run.ended_note
    assert (await story.row(claimed)).state is S.DELIVERING and (await story.row(pending)).state is S.REJECTED
    assert (await core.admit(sid, text="x", by="ben", now=story.now)).refusal[0] == "ended"


async def test_a_key_that_was_used_finds_its_row_whatever_became_of_the_leg(core, story):
    sid = await story.running(host=OTHER_HOST, pid=1, pid_start="1", ttl_s=90.0)
    first = (await core.admit(sid, text="go on", by="ana", key="k", now=story.now)).control
    again = await core.admit(sid, text="go on", by="ana", key="k", now=story.now + LATE)
    assert again.duplicate and again.control == first


async def test_a_silent_leg_takes_nothing_unless_the_sender_says_anyway(core, story):
    sid = await story.running(host=OTHER_HOST, pid=1, pid_start="1", ttl_s=90.0)
    late = story.now + LATE
    refused = await core.admit(sid, text="go on", by="ana", now=late)
    assert refused.control is None and refused.refusal[0] == "silent" and "anyway" in refused.refusal[1]
    assert (await core.get_session(sid)).status is RunStatus.RUNNING and await core.list_controls() == []
    taken = await core.admit(sid, text="go on", by="ana", anyway=True, now=late)
    assert taken.control is not None and taken.note.startswith("its leg is silent since")


async def test_anyway_does_not_open_the_door_of_the_dead(core, story):
    sid = await story.running(**mine(**GONE))
    assert (await core.admit(sid, text="x", by="ana", anyway=True, now=story.now)).refusal[0] == "dead"


async def test_stale_evidence_ends_nothing_once_another_leg_has_the_run(core, story):
    sid = await story.running(**mine(**GONE))
    stale = await core.get_session(sid)
    await core.resume_session(stale.model_copy(update=mine() | {"leg": "leg-2"}), dead_leg="leg-1", now=story.now)
    assert not (await core._reap_one(stale, "ana", story.now)).ended
    assert (await core.admit(sid, text="x", by="ana", now=story.now)).control is not None


@pytest.mark.postgres
async def test_a_takeover_that_is_under_way_when_the_dead_leg_is_found_gets_the_steer(
    pg_emptied_url, opened, make_story
):
    """The evidence is about the leg before: its run is not ended, and admission finds who has it now."""
    first, second = await opened(locate(pg_emptied_url)), await opened(locate(pg_emptied_url))
    story = make_story(first)
    sid = await story.running(**mine(**GONE))
    who_is_alive = identity()
    taking = {"sid": sid, "dead_leg": "leg-1", "new_leg": "leg-2", "until": None, "budget_s": None, "now": story.now}
    taking["on_branch"] = "b"
    process = {"on_host": who_is_alive["host"], "in_pid": who_is_alive["pid"], "lease_s": 90.0}
    async with holding(first) as tx:
        assert await tx.rows(sql.RESUME, **taking, **process, in_pid_start=who_is_alive["pid_start"])
        steer = asyncio.create_task(second.admit(sid, text="go on", by="ana", now=story.now))
        await until_blocked(first, steer)
    assert (await steer).control is not None
    assert (await first.get_session(sid)).leg == "leg-2"


# --- reap -------------------------------------------------------------------------------------------------------


async def test_looking_writes_nothing_and_reaping_records_the_dead_alone(core, story):
    dead, alive = await story.running(**mine(**GONE)), await story.running("leg-2", **mine())
    silent = await story.running("leg-3", host=OTHER_HOST, pid=1, pid_start="1", ttl_s=90.0)
    pending = await story.pending(alive)
    before, late = await core.list_sessions(), story.now + LATE
    words = [view.word for view in await core.views(before, late)]
    assert words == ["lost", "running", "silent"] and await core.list_sessions() == before
    (done,) = await core.reap(late, "ana")
    assert (done.session.id, done.session.ended_by) == (dead, "ana") and await core.reap(late, "ana") == []
    states = {s.id: s.status.value for s in await core.list_sessions()}
    assert states == {dead: "lost", alive: "running", silent: "running"}
    assert (await story.row(pending)).state is S.PENDING


async def test_a_silent_leg_is_ended_by_a_named_person_only(core, story):
    sid = await story.running(host=OTHER_HOST, pid=1, pid_start="1", ttl_s=90.0)
    pending = (await core.admit(sid, text="x", by="ana", now=story.now)).control
    late = story.now + LATE
    for by, now, reason in (("  ", late, "by"), ("ana", story.now, "alive")):
        with pytest.raises(ResolveRefusedError) as refused:
            await core.declare_lost(sid, by, now)
        assert refused.value.reason == reason
    with pytest.raises(ResolveRefusedError):
        await core.declare_lost("nobody", "ana", late)
    assert (await core.declare_lost(sid, "ana", late)).ended and not (await core.declare_lost(sid, "ana", late)).ended
    run = await core.get_session(sid)
    assert (run.status, run.ended_by) == (RunStatus.LOST, "ana") and (await story.row(pending)).state is S.REJECTED
    assert not await core.claim_all(sid, "leg-1", late)  # if ana was wrong, that leg delivers nothing any more


async def test_a_live_leg_is_not_declared_lost(core, story):
    sid = await story.running(**mine())
    with pytest.raises(ResolveRefusedError, match="its process is alive"):
        await core.declare_lost(sid, "ana", story.now + LATE)


# --- the heart --------------------------------------------------------------------------------------------------


class Hearts(Store):
    """A store that says when a heart has beaten, and can be told to fail."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.beaten, self.failing, self.failed = threading.Event(), False, threading.Event()

    async def _opened(self):
        core = await super()._opened()
        if self.failing:
            self.failed.set()
            raise StoreError("not now")
        if "heartbeat" not in vars(core):
            heartbeat = core.heartbeat

            async def told(*args):
                done = await heartbeat(*args)
                self.beaten.set()
                return done

            core.heartbeat = told
        return core

    def ask(self, work):
        return self.submit(work).result(30)


@pytest.fixture
def store(tmp_path):
    made = Hearts(tmp_path / "c.db")
    yield made
    made.close()


def started(store):
    spec = SessionSpec(id="s-1", run_id="r", branch_id="b", leg="leg-1", created_at=0.0, **identity())
    return store.submit(lambda core: core.start_session(spec, 0.0)).result(30)


def beats(store) -> bool:
    store.beaten.clear()
    return store.beaten.wait(30)


def test_a_heart_beats_while_the_main_loop_is_blocked(store):
    """This thread waits all the time, as a cell that computes does."""
    started(store)
    stop = store.keep_alive("s-1", "leg-1", ttl_s=0.03)
    assert beats(store) and beats(store)
    assert store.ask(lambda core: core.get_session("s-1")).heartbeat_at > time.time() - 3600
    stop()
    stop()


def test_a_heart_stops_by_itself_when_the_run_is_over_or_another_legs(store):
    started(store)
    store.keep_alive("s-1", "leg-1", ttl_s=0.03)
    assert beats(store)
    (heart,) = store._hearts
    store.ask(lambda core: core.end("s-1", "leg-1", "completed", by=None, now=1.0))
    heart.result(30)
    assert not store._hearts and not os.path.exists(f"{store.location.address}-legs")


def test_a_heart_that_was_stopped_beats_no_more_and_frees_its_lock(store):
    started(store)
    stop = store.keep_alive("s-1", "leg-1", ttl_s=0.03)
    assert beats(store)
    (heart,) = store._hearts
    stop()
    assert heart.cancelled()
    store.ask(lambda core: core.get_session("s-1"))  # the control thread has come round
    assert not os.path.exists(f"{store.location.address}-legs")


def test_a_heart_beats_on_after_the_database_failed_and_before_its_run_is_there(store):
    """A slow registration, or a locked file, must not leave a leg without a lease."""
    store.keep_alive("s-1", "leg-1", ttl_s=0.03)
    assert beats(store)  # of nobody yet
    store.failing = True
    assert store.failed.wait(30)
    store.failing = False
    started(store)
    assert beats(store) and beats(store)
    assert store.ask(lambda core: core.get_session("s-1")).heartbeat_at > 0


def test_a_legs_lock_is_held_from_the_beginning_also_where_nothing_was_made_yet(tmp_path):
    store = Store(tmp_path / "new" / "c.db")
    stop = store.keep_alive("s-1", "leg-1")
    started(store)
    (lock,) = os.listdir(tmp_path / "new" / "c.db-legs")
    assert lock and not LegLocks(str(tmp_path / "new" / "c.db")).is_free("leg-1")
    stop()
    store.close()


def test_closing_does_not_wait_for_hearts(tmp_path):
    store = Store(tmp_path / "c.db")
    store.keep_alive("s-1", "leg-1", ttl_s=3e6)
    store.close(timeout_s=60)
    assert store.keep_alive("s-1", "leg-1")() is None  # a closed store has none, and says nothing


def test_a_store_in_memory_has_no_heart():
    """Nobody else could ask."""
    store = Store(":memory:")
    store.keep_alive("s-1", "leg-1")()
    assert store._thread is None
