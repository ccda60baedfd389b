"""Queued messages, as people have reported them lost, doubled or stuck elsewhere: ids are of the reported cases, group d.

Those that are exactly the rule of an older test stand in its docstring: d01, d02, d04, d14, d17, d18, d26, d27.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from typing import Any

import pytest

import lionnb
from lionnb import frames
from lionnb.errors import SteerRefusedError, StoreError
from lionnb.legs import start_leg
from lionnb.legs.states import TurnEnd
from lionnb.notebook import view_of
from lionnb.records import Fate, RunStatus
from lionnb.store import Store
from lionnb.testing import Outcome, cancel_at_every_step
from tests.legs.story import HookedStore, heard

pytestmark = pytest.mark.databases


async def test_what_was_typed_is_on_disk_before_steer_returns(scene, where):
    """d06: a kernel that is closed before the turn ends takes nothing along."""
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("keep this")
    if where != ":memory:":
        other = Store(where)  # what the next kernel opens
        (row,) = other.submit(lambda core: core.list_controls(leg.session_id)).result(30)
        other.close()
        assert (row.id, row.text, row.state) == (receipt.control_id, "keep this", "pending")
    s.answer_all()
    await leg


async def test_one_press_is_one_steer_however_many_windows_show_the_leg(scene, monkeypatch):
    """d08: one message, one row, one turn; also when the page sends it again because no answer came."""
    s = scene()
    leg = s.leg()
    await s.working()
    views = [view_of(leg) for _ in range(3)]
    loop, answers = asyncio.get_running_loop(), asyncio.Queue()

    def send(message: dict[str, Any], buffers: Any = None) -> None:
        if "ack" in message:
            loop.call_soon_threadsafe(answers.put_nowait, message)

    monkeypatch.setattr(views[0], "send", send)
    for view in views:
        view._handle_custom_msg({"intent": "steer", "n": 1, "text": "once", "key": "k1"}, [])
    assert [(await answers.get())["ok"] for _ in views] == [True] * 3
    s.answer_all()
    await leg
    assert len(s.rows(leg)) == 1 and len(s.requests) == 2 and s.last(1).count("> once") == 1
    views[0].close()


async def test_a_note_is_in_sight_with_its_fate_from_the_first_moment_until_it_is_final(scene):
    """d10."""
    s = scene()
    leg = s.leg()
    await s.working()
    view = view_of(leg)
    for n in range(5):
        receipt = leg.steer(f"note {n}")
        await heard(leg.feed, lambda e, cid=receipt.control_id: e.kind == "steer" and e.data["control_id"] == cid)
        shown = view._repr_mimebundle_()[0]["text/html"]
        assert all(f"note {i}" in shown for i in range(n + 1)) and shown.count("queued") > n
    s.answer_all()
    await leg
    await asyncio.gather(*leg.receipts)
    assert frames.controls(leg)["fate"].tolist() == ["applied"] * 5
    view.close()


async def test_a_repeat_after_a_lost_answer_is_one_steer(scene):
    """d15: the insert lands, and its answer is lost. It is looked for, so nobody is told *refused* and sends it again."""
    s = scene()
    leg = s.leg()
    await s.working()
    lost: list[str] = []
    leg._unwatch()  # a connection that is lost tells nobody what it has committed

    async def lose(admit: Any, *args: Any, **how: Any) -> Any:
        got = await admit(*args, **how)
        if not lost:
            lost.append("the answer")
            raise StoreError("the server does not answer.")
        return got

    s.store.hooks["admit"] = lose
    first = leg.steer("pay 5", key="k1")
    leg._unwatch = s.store.watch(leg.session_id, leg._steering.changed)
    again = leg.steer("pay 5", key="k1")
    assert lost and again.control_id == first.control_id and first.fate is Fate.PENDING
    s.answer_all()
    await leg
    assert sum("> pay 5" in s.last(n) for n in range(len(s.requests))) == 1 == len(s.rows(leg))


async def test_where_nothing_can_be_looked_up_the_outcome_is_said_to_be_unknown(scene):
    """d15: and not to be refused; with a key it is safe to say it again."""
    s = scene()
    leg = s.leg()
    await s.working()
    leg._unwatch()

    async def lose(admit: Any, *args: Any, **how: Any) -> Any:
        await admit(*args, **how)
        s.store.hooks.pop("admit")
        raise StoreError("the server does not answer.")

    s.store.hooks["admit"] = lose
    s.store.fail("get_control", StoreError("the server does not answer."))
    with pytest.raises(SteerRefusedError, match="unknown, so call it again with the same key"):
        leg.steer("pay 5", key="k1")
    assert leg.steer("pay 5", key="k1").fate is Fate.PENDING
    s.answer_all()
    await leg
    assert s.states(leg) == ["applied"] and len(s.requests) == 2


async def test_a_waiter_stays_until_the_fate_is_final_when_only_the_turn_is_cancelled(scene):
    """d20."""
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("x")
    waiter = asyncio.create_task(receipt._wait())
    leg.cancel_turn()
    await heard(leg.feed, lambda e: e.kind == "steer" and e.data["fate"] == "delivering")
    assert not waiter.done() and not receipt.settled
    s.answer_all()
    assert (await waiter).fate is Fate.APPLIED is receipt.fate
    result = await leg
    assert [t.end for t in result.turns] == [TurnEnd.TURN_CANCELLED, TurnEnd.RETURNED]


@pytest.mark.parametrize("step_s", [0.0, -5.0], ids=["the clock stands", "it goes back"])
async def test_order_is_a_number_of_the_database_and_no_clock(scene, monkeypatch, step_s):
    """d21."""
    s = scene()
    leg = s.leg()
    await s.working()
    at = [2_000_000_000.0]

    def clock() -> float:
        at[0] += step_s
        return at[0]

    with monkeypatch.context() as frozen:
        frozen.setattr(time, "time", clock)
        for n in range(6):
            leg.steer(f"point {n}")
    s.answer_all()
    await leg
    said = s.last(1)
    places = [said.index(f"> point {n}") for n in range(6)]
    assert places == sorted(places) and [row.text for row in s.rows(leg)] == [f"point {n}" for n in range(6)]


@pytest.mark.parametrize("payload", ['["not", "a", "dict"]', "null", '{"text": 5}', '{"text": "\\ud83d"}'])
async def test_a_malformed_row_is_rejected_before_it_is_handed_over_and_holds_nothing_up(scene, payload):
    """d22: another program wrote it. It is told what was wrong with it, and what stands behind it lands."""
    s = scene()
    leg = s.leg()
    await s.working()
    leg.steer("before")
    s.store.ask(lambda core: raw_insert(core, leg.session_id, payload))
    last = leg.steer("fine")
    s.answer_all()
    result = await leg
    before, bad, fine = s.rows(leg)
    assert [row.state.value for row in (before, bad, fine)] == ["applied", "rejected", "applied"]
    assert "payload is no message" in bad.note and bad.handed_over_at is None
    assert (await last).fate is Fate.APPLIED and result.status is RunStatus.COMPLETED
    assert "2 messages" in s.last(1) and len(frames.controls(leg)) == 3


async def raw_insert(core: Any, session_id: str, payload: str) -> None:
    """As another program would write it."""
    import sqlalchemy as sa

    async with core._core._engine.begin() as connection:
        text = "INSERT INTO session_controls (id, session_id, verb, payload, created_at, state) VALUES (:i, :s, 'message', "
        text += "CAST(:p AS JSON), 1.0, 'pending')" if core.dialect == "postgresql" else ":p, 1.0, 'pending')"
        await connection.execute(sa.text(text), {"i": "raw", "s": session_id, "p": payload})


async def test_what_is_no_json_at_all_holds_nothing_up_either(tmp_path):
    """d22: only SQLite takes such a row."""
    store = Store(tmp_path / "raw.sqlite")
    branch = lionnb.Branch(
        chat_model=lionnb.testing.scripted_model(["one", "two"], gate=(gate := lionnb.testing.Gate()))
    )
    leg = start_leg(branch, "Survey X", store=store)
    await gate.reached()
    await asyncio.wrap_future(leg._run.registering)
    with sqlite3.connect(store.location.address) as other:
        columns = "id, session_id, verb, payload, created_at, state"
        other.execute(
            f"INSERT INTO session_controls ({columns}) VALUES ('raw', ?, 'message', 'no json', 1.0, 'pending')",
            (leg.session_id,),
        )
    other.close()
    receipt = leg.steer("fine")
    gate.open()
    assert (await leg).status is RunStatus.COMPLETED and (await receipt).fate is Fate.APPLIED
    store.close()


async def test_a_receipt_has_no_turn_until_one_carries_it_and_is_none_itself(scene):
    """d24: its own id, given as the id of a turn, cancels nothing."""
    s = scene()
    leg = s.leg()
    await s.working()
    receipt = leg.steer("x")
    assert receipt.record.turn_id is None and receipt.control_id != leg.turn_id
    assert not leg.cancel_turn(receipt.control_id) and leg.turn_id is not None
    s.answer_all()
    result = await leg
    assert (await receipt).record.turn_id == result.turns[1].turn_id


# ---------------------------------------------------------------------- at every moment of a leg's life
class Late:
    """A leg that is steered before one callback of its loop: whenever that is, also in its very last."""

    def __init__(self, store: Any, model: Any) -> None:
        self.store, self.branch = store, lionnb.Branch(chat_model=model)
        self.leg: Any = None
        self.receipt: Any = None
        self.refused: SteerRefusedError | None = None

    async def run(self) -> None:
        self.leg = start_leg(self.branch, "tick", store=self.store)
        await asyncio.wait((self.leg.task,))

    def victim(self) -> Any:
        return None if self.leg is None else self

    def cancel(self, _message: str) -> bool:
        if self.receipt is None and self.refused is None:
            try:
                self.receipt = self.leg.steer("late")
            except SteerRefusedError as exc:
                self.refused = exc
        return True

    async def check(self, outcome: Outcome) -> None:
        rows = self.store.ask(lambda core: core.list_controls(self.leg.session_id))
        run = self.store.ask(lambda core: core.get_session(self.leg.session_id))
        assert run.status is RunStatus.COMPLETED is self.leg.status
        if self.receipt is not None:
            await asyncio.wait_for(self.receipt._wait(), 30)
            assert self.receipt.fate in (Fate.APPLIED, Fate.REJECTED, Fate.REFUSED), self.receipt
            assert [row.state.value for row in rows] == [f.value for f in (self.receipt.fate,) if f is not Fate.REFUSED]
        else:
            assert rows == [] and (self.refused is None or "resume" in str(self.refused) or "leg" in str(self.refused))
        calls = sum("> late" in str(m.rendered) for m in self.branch.messages if hasattr(m, "rendered"))
        assert calls <= 1


def test_a_steer_at_any_moment_of_a_legs_life_has_a_final_fate_and_the_leg_ends():
    """d12, d14: in the instant in which a turn ends, during the last settling, behind the last drain."""
    store = HookedStore(":memory:")
    model = lionnb.testing.scripted_model

    async def scenario() -> Late:
        return Late(store, model(["one", "two", "three"]))

    try:
        assert cancel_at_every_step(scenario) > 12
    finally:
        store.close()
