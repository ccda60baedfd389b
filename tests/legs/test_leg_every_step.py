"""Cancelled at every step of its life, once and more often, by anybody: what a leg leaves behind is always true."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import lionnb
from lionnb.errors import StoreError
from lionnb.legs import ledger, start_leg
from lionnb.legs.budget import Budget
from lionnb.legs.drain import Drain
from lionnb.legs.ledger import Ledger
from lionnb.legs.states import LegPhase
from lionnb.records import RunStatus, SessionSpec, TurnOutcome
from lionnb.testing import Outcome, cancel_at_every_step, scripted_model
from tests.legs.story import HookedStore

OPEN = {"pending", "delivering"}


@pytest.fixture
def store() -> Iterator[HookedStore]:
    """A real database without a disk: hundreds of lives are lived here."""
    made = HookedStore(":memory:")
    yield made
    made.close()


class Life:
    """A leg from start_leg to its end, with a steer that was there from the beginning and one that comes later."""

    def __init__(self, store: Any, model: Any, victim: str) -> None:
        self.store, self.branch = store, lionnb.Branch(chat_model=model)
        self.whom, self.driver = victim, asyncio.current_task()
        self.leg: Any = None
        self.receipts: list[Any] = []

    async def run(self) -> None:
        self.leg = start_leg(self.branch, "Survey X", store=self.store, by="ana")
        self.receipts.append(self.leg.steer("first"))
        self.leg.feed.listen(self._second)
        await self._to_its_end()

    async def _to_its_end(self) -> None:
        while not self.leg.task.done():
            try:
                await asyncio.wait((self.leg.task,))
            except asyncio.CancelledError:
                assert self.whom == "everything"

    def _second(self, event: Any) -> None:
        """During the continuation another one is sent, as a person would."""
        if event.kind == "steer" and event.data["fate"] == "delivering" and len(self.receipts) == 1:
            self.receipts.append(self.leg.steer("second"))

    # ------------------------------------------------------------------ who is cancelled
    def victim(self) -> Any:
        if self.leg is None:
            return None
        match self.whom:
            case "the leg":
                return self.leg.task
            case "the turn's task":
                return self.leg._turn and self.leg._turn._task
        return self

    def cancel(self, _message: str) -> bool:
        if self.whom == "the turn, by a person":
            return self.leg.cancel_turn()
        return self._everything()

    def _everything(self) -> bool:
        """As the end of asyncio.run: every task there is, helpers and finalizers included."""
        tasks = [t for t in asyncio.all_tasks() if t is not self.driver and not _background(t)]
        for task in tasks:
            task.cancel()
        return bool(tasks)

    # ------------------------------------------------------------------ what must hold
    async def check(self, outcome: Outcome) -> None:
        leg = self.leg
        assert leg.phase is LegPhase.ENDED and leg.task.done() and not leg._tasks
        leg.flush(10)  # cancelled before its first step, it has told the store and not waited
        run = self.store.ask(lambda core: core.get_session(leg.session_id))
        rows = self.store.ask(lambda core: core.list_controls(leg.session_id))
        assert (run.status, run.leg) == (leg.status, None) and run.terminal
        assert not OPEN & {row.state.value for row in rows}
        assert [r.fate.value for r in self.receipts] == [row.state.value for row in rows]
        assert all(r.settled for r in self.receipts)
        self._the_branch_is_free()
        self._delivered_is_applied(rows)
        if leg.status is RunStatus.COMPLETED:
            assert leg.turns and not leg._drain.owing

    def _the_branch_is_free(self) -> None:
        state = self.branch.turn_state
        assert not state.lock.locked() and state.turn is None and not state.waiters
        assert all(r.ended_at is not None for r in self.branch.turns.records())

    def _delivered_is_applied(self, rows: list[Any]) -> None:
        """A row is applied exactly when a turn called the Branch with it, once; its outcome is that turn's."""
        outcomes = {t.turn_id: t.outcome for t in self.leg.turns}
        ends = (e for e in self.branch.turns.events() if e.kind == "end")
        logged = {e.turn_id: e.data["outcome"] for e in ends}
        carried = [cid for t in self.leg.turns for cid in t.steers]
        for row in rows:
            said = sum(row.id in m.metadata.get("lionnb_controls", ()) for m in self.branch.messages)
            if row.state == "applied":
                assert carried.count(row.id) == 1 and row.handed_over_at is not None
                assert row.in_history is (said == 1)
                assert row.turn_outcome == outcomes[row.turn_id].value == logged[row.turn_id]
            else:
                assert row.handed_over_at is None and said == 0

    async def aclose(self) -> None:
        await _settle_background(self.driver)


def _background(task: Any) -> bool:
    return "start_replenishing" in str(task.get_coro())


async def _settle_background(driver: Any) -> None:
    """Let a message signal or two that the end overtook be done; a task that stays is the harness's to report."""
    for _ in range(10):
        await asyncio.sleep(0)


def sweep(store: Any, make: Any, victim: str, **how: Any) -> int:
    async def scenario() -> Life:
        return Life(store, make(), victim)

    tried = cancel_at_every_step(scenario, **how)
    gc.collect()  # here, where stray coroutines are expected
    return tried


VICTIMS = ["the leg", "the turn's task", "the turn, by a person", "everything"]
FAST = [("cli", "the leg"), ("cli", "everything")]
ROADS = pytest.mark.parametrize("road", ["cli", pytest.param("api", marks=pytest.mark.slow)], indirect=True)
# anyio's and lionagi's child tasks, cancelled before their first step, leave their coroutine unstarted.
STRAY = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


@STRAY
@pytest.mark.parametrize(
    ("road", "victim"),
    [
        pytest.param(road, victim, marks=[] if (road, victim) in FAST else pytest.mark.slow)
        for road in ("cli", "api")
        for victim in VICTIMS
    ],
    indirect=["road"],
)
def test_a_leg_cancelled_at_any_step_leaves_a_true_record(road, store, victim, caplog):
    """S1, S3, S5 and T5, with the store and the provider real."""
    caplog.set_level("CRITICAL", "lionnb")
    assert sweep(store, lambda: road.model(["one", "two", "three"]), victim) > 25


@STRAY
@pytest.mark.slow
@pytest.mark.parametrize(("cancels", "gap"), [(2, 1), (3, 3)])
@pytest.mark.parametrize("victim", VICTIMS)
def test_so_does_one_that_is_cancelled_twice_or_three_times(road, store, victim, cancels, gap, caplog):
    """Also during its own cleanup. Every other step: the ones between are the second cancellation's."""
    caplog.set_level("CRITICAL", "lionnb")
    how = {"cancels": cancels, "gap": gap, "stride": 2}
    assert sweep(store, lambda: road.model(["one", "two", "three"]), victim, **how) > 12


@STRAY
@ROADS
@pytest.mark.parametrize("victim", ["the leg", "everything"])
def test_a_continuation_that_raises_reports_itself_at_any_step(road, store, victim, caplog):
    caplog.set_level("CRITICAL", "lionnb")
    assert sweep(store, lambda: road.model(["one", ValueError("refused")]), victim, cancels=2) > 25


@STRAY
@ROADS
@pytest.mark.parametrize("lands", [True, False], ids=["answer lost", "write lost"])
@pytest.mark.parametrize("victim", ["the leg", "everything"])
def test_an_end_that_fails_once_is_cancelled_at_any_step(road, store, victim, lands, caplog, monkeypatch):
    """Asked again, between the pauses too: the run has one end, and nothing is left pending or delivering."""
    caplog.set_level("CRITICAL", "lionnb")
    monkeypatch.setattr(ledger, "PAUSE_S", 0.0)
    failed: set[str] = set()

    async def end(operation: Any, session_id: str, *args: Any, **how: Any) -> Any:
        if session_id in failed:
            return await operation(session_id, *args, **how)
        failed.add(session_id)
        if lands:
            await operation(session_id, *args, **how)
        raise StoreError("the server does not answer.")

    store.hooks["end"] = end
    assert sweep(store, lambda: road.model(["one", "two", "three"]), victim, cancels=2, stride=2) > 12


@pytest.mark.postgres
@STRAY
@pytest.mark.parametrize("victim", ["the leg", "everything"])
def test_so_does_one_whose_store_is_a_server(victim, pg_emptied_url, caplog):
    """In a coarse form: every life costs a dozen transactions there."""
    caplog.set_level("CRITICAL", "lionnb")
    store = HookedStore(pg_emptied_url)
    try:
        assert sweep(store, lambda: scripted_model(["one", "two", "three"]), victim, cancels=2, stride=7) > 3
    finally:
        store.close()


# ---------------------------------------------------------------------- the drain alone
class Handing:
    """Claim, and then what a turn would do: give back, or call and report."""

    def __init__(self, store: Any, what: str) -> None:
        self.store, self.what = store, what
        self.sid = uuid.uuid4().hex
        spec = SessionSpec(id=self.sid, run_id="20261130T000000-abcdef", branch_id="b", leg="leg", created_at=1.0)
        self.ledger = Ledger(store, lambda: spec)
        self.drain = Drain(self.ledger, self.sid, "leg", Budget())
        self.ledger.register().result(10)
        for text in ("a", "b"):
            store.ask(lambda core, text=text: core.admit(self.sid, text=text, by="ana", now=2.0)).unwrap()
        self.called = False

    async def run(self) -> None:
        batch = await self.drain.take()
        assert batch is not None and len(batch.rows) == 2
        if self.what == "give back":
            late = await self.drain.give_back(batch)
        else:
            self.called = True
            late = await self.drain.report(batch, turn_id="t", outcome=TurnOutcome.COMPLETED, in_history=True)
        if late is not None:
            raise late

    def check(self, outcome: Outcome) -> None:
        states = {row.state.value for row in self.store.ask(lambda core: core.list_controls(self.sid))}
        assert states == {"applied" if self.called else "pending"}, outcome
        assert outcome.error is None or outcome.cancelled


@pytest.mark.parametrize("cancels", [1, 2, 3])
@pytest.mark.parametrize("what", ["give back", "report"])
def test_a_hand_over_cancelled_at_any_step_leaves_no_row_delivering(store, what, cancels):
    """Rows are pending exactly when the Branch was not called."""

    async def scenario() -> Handing:
        return Handing(store, what)

    assert cancel_at_every_step(scenario, cancels=cancels) >= 5


# ---------------------------------------------------------------------- a run that goes on
class Second(Life):
    """As a life, of the leg that resumes a run whose end had rejected a steer."""

    async def run(self) -> None:
        first = start_leg(self.branch, "Survey X", store=self.store, by="ana")
        first.steer("rejected once")
        first.stop()
        await asyncio.wait((first.task,))
        self.first = first
        self.leg = first.resume("Go on")
        self.receipts.append(self.leg.steer("first"))
        self.leg.feed.listen(self._second)
        await self._to_its_end()

    async def check(self, outcome: Outcome) -> None:
        if self.leg is None:
            return
        self.leg.flush(10)
        rows = self.store.ask(lambda core: core.list_controls(self.leg.session_id))
        old, again = rows[:2]
        assert (old.state, again.resent_from) == ("rejected", old.id) and old.handed_over_at is None
        mine = [row for row in rows[1:] if row.resent_from is None]
        assert [r.fate.value for r in self.receipts] == [row.state.value for row in mine]
        assert not OPEN & {row.state.value for row in rows}
        run = self.store.ask(lambda core: core.get_session(self.leg.session_id))
        assert (run.status, run.leg, run.id) == (self.leg.status, None, self.first.session_id)
        self._the_branch_is_free()
        self._delivered_is_applied(rows)


@STRAY
@pytest.mark.filterwarnings("ignore:turn .* left a question:UserWarning")
@pytest.mark.parametrize(
    ("road", "victim", "cancels"),
    [
        ("cli", "the leg", 1),
        pytest.param("cli", "the leg", 2, marks=pytest.mark.slow),
        pytest.param("cli", "everything", 1, marks=pytest.mark.slow),
        pytest.param("api", "the leg", 1, marks=pytest.mark.slow),
    ],
    indirect=["road"],
)
def test_a_leg_that_resumes_a_run_leaves_a_true_record_when_cancelled_at_any_step(road, store, victim, cancels, caplog):
    """What was sent again is delivered once or rejected, and never both; what was rejected before stays so."""
    caplog.set_level("CRITICAL", "lionnb")

    async def scenario() -> Life:
        return Second(store, road.model(["one", "two", "three"]), victim)

    assert cancel_at_every_step(scenario, cancels=cancels) > 25
    gc.collect()


# ---------------------------------------------------------------------- a person who changes the mind at once
class Redirected(Life):
    """As a life, redirected before its first turn: the redirect goes with that turn, whoever is cancelled meanwhile."""

    async def run(self) -> None:
        self.leg = start_leg(self.branch, "Survey X", store=self.store, by="ana")
        self.receipts.append(self.leg.redirect("first"))
        await self._to_its_end()

    async def check(self, outcome: Outcome) -> None:
        await super().check(outcome)
        if not outcome.delivered:
            assert len(self.leg.turns) == 1 and self.receipts[0].fate == "applied"


@STRAY
@ROADS
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_redirect_before_the_first_turn_leaves_a_true_record_at_any_step(road, store, victim, caplog):
    caplog.set_level("CRITICAL", "lionnb")

    async def scenario() -> Life:
        return Redirected(store, road.model(["one", "two"]), victim)

    assert cancel_at_every_step(scenario, cancels=2) > 10
    gc.collect()
