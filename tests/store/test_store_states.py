"""The tables of states, and the database's own idea of them."""

from __future__ import annotations

import itertools
import re

import pytest
import sqlalchemy as sa

from lionnb.errors import IllegalTransitionError
from lionnb.records import ControlRecord, ControlState, FeedEvent, RunStatus, SessionRecord, TurnRecord
from lionnb.store import gate, schema, states
from lionnb.store import statements as sql
from lionnb.store.core import StoreCore

PAIRS = list(itertools.product(ControlState, ControlState))


def test_every_state_is_a_key_of_its_table():
    assert set(states.TRANSITIONS) == set(ControlState)
    assert set(states.RUN_TRANSITIONS) == set(RunStatus)


def test_a_closed_control_has_no_step():
    closed = set(ControlState) - {ControlState.PENDING, ControlState.DELIVERING}
    assert all(not states.TRANSITIONS[state] for state in closed)
    assert closed | states.OPEN == set(ControlState)


@pytest.mark.parametrize(("frm", "to"), PAIRS)
def test_a_step_outside_the_table_raises(frm, to):
    if to in states.TRANSITIONS[frm]:
        assert states.step(frm, to) is to
    else:
        with pytest.raises(IllegalTransitionError):
            states.step(frm, to)


def test_a_terminal_run_goes_nowhere_but_back_to_running():
    with pytest.raises(IllegalTransitionError):
        states.run_step(RunStatus.COMPLETED, RunStatus.FAILED)
    assert states.run_step(RunStatus.FAILED, RunStatus.RUNNING) is RunStatus.RUNNING


def test_no_statement_can_be_written_for_a_step_outside_the_table():
    with pytest.raises(IllegalTransitionError):
        sql._move(ControlState.DELIVERING, ControlState.REJECTED)


def test_statements_cover_every_step_of_the_table_and_no_other():
    taken = set()
    for statement in vars(sql).values():
        if isinstance(statement, sa.Update) and statement.table is schema.session_controls:
            binds = statement.compile().params
            if "state" in binds:  # the new one; the guard's is the second of the name
                taken.add((ControlState(binds["state_1"]), ControlState(binds["state"])))
    assert taken == {(frm, to) for frm, tos in states.TRANSITIONS.items() for to in tos}


def _checks(table: sa.Table) -> dict[str, str]:
    return {c.name: str(c.sqltext) for c in table.constraints if isinstance(c, sa.CheckConstraint)}


def test_the_database_lists_the_states_of_the_enum():
    listed = set(re.findall(r"'(\w+)'", _checks(schema.session_controls)["control_state"]))
    assert listed == {state.value for state in ControlState}
    listed = set(re.findall(r"'(\w+)'", _checks(schema.sessions)["run_status"]))
    assert listed == {status.value for status in RunStatus}


@pytest.mark.parametrize(
    ("table", "record"),
    [(schema.session_controls, ControlRecord), (schema.sessions, SessionRecord), (schema.turns, TurnRecord)],
)
def test_columns_are_the_fields_of_the_records(table, record):
    own = {"seq", "row_key"} - set(record.model_fields)
    assert {column.name for column in table.columns} - own == set(record.model_fields)


def test_signal_columns_are_the_fields_of_a_feed_event():
    assert {column.name for column in sql.SIGNAL_FIELDS} == set(FeedEvent.__dataclass_fields__)


async def _insert(core: StoreCore, sid: str, **row: object) -> None:
    base = {"id": "forged", "session_id": sid, "verb": "message", "payload": {"text": "x"}, "created_at": 1.0}
    async with core._engine.begin() as connection:
        await connection.execute(sa.insert(schema.session_controls), [base | row])


def _facts(state: ControlState) -> dict[str, object]:
    held = {"claim": "leg-1:abc", "handed_over_at": 2.0} if state not in states.UNCLAIMED else {}
    return held | ({} if state in states.OPEN else {"closed_at": 3.0})


@pytest.mark.parametrize("state", list(ControlState))
async def test_the_database_takes_each_state_with_its_facts(core, story, state):
    await _insert(core, await story.running(), state=state.value, **_facts(state))


@pytest.mark.parametrize(
    ("state", "forged"),
    [
        ("rejected", {"claim": "leg-1:abc", "handed_over_at": 2.0}),
        ("withdrawn", {"claim": "leg-1:abc", "handed_over_at": 2.0}),
        ("pending", {"claim": "leg-1:abc", "handed_over_at": 2.0}),
        ("delivering", {"claim": None, "handed_over_at": None}),
        ("applied", {"claim": None, "handed_over_at": None}),
        ("resolved", {"claim": None}),
        ("pending", {"closed_at": 3.0}),
        ("delivering", {"closed_at": 3.0}),
        ("applied", {"closed_at": None}),
        ("rejected", {"closed_at": None}),
        ("applied", {"late_report": "too late"}),
        ("unconfirmed", {"closed_at": 3.0}),
    ],
)
async def test_the_database_refuses_a_false_record(core, story, state, forged):
    known = {member.value for member in ControlState}
    facts = _facts(ControlState(state)) if state in known else {"claim": "l:a", "handed_over_at": 2.0}
    with pytest.raises(sa.exc.IntegrityError):
        await _insert(core, await story.running(), state=state, **facts | forged)


@pytest.mark.parametrize(
    "forged", [{"status": "asleep"}, {"leg": None}, {"ended_at": 2.0}, {"status": "completed", "ended_at": 2.0}]
)
async def test_the_database_refuses_a_run_that_contradicts_itself(core, story, forged):
    sid = await story.running()
    with pytest.raises(sa.exc.IntegrityError):
        async with core._engine.begin() as connection:
            await connection.execute(sa.update(schema.sessions).where(schema.sessions.c.id == sid).values(**forged))


def test_every_verb_that_a_run_consumes_is_in_one_table():
    assert {
        "message": {"agent", "flow"},
        "pause": {"flow"},
        "resume": {"flow"},
        "stop": set(),
    } == gate.CONSUMERS
