"""The judge of the chaos sees every lie: a chaos that finds nothing must have been able to find something."""

from __future__ import annotations

import pytest

from lionnb.records import ControlRecord, SessionRecord
from tests.protocol.book import Book, read_books
from tests.protocol.judge import Evidence, judge, judge_ends

ID, RUN = "steer-a-0", "run-1"
SESSION = SessionRecord(
    id=RUN, run_id="20261130T101010-abcdef", branch_id="b", created_at=1.0, status="completed", ended_at=9.0
)
SENT = [{"what": "sends", "id": ID, "run": RUN, "who": "r/operator-1"}]
ACKED = [*SENT, {"what": "sent", "id": ID, "refused": None, "who": "r/operator-1"}]
REFUSED = [*SENT, {"what": "sent", "id": ID, "refused": "ended", "who": "r/operator-1"}]
LEG = [{"what": "begins", "run": RUN, "who": "r/leg-0"}]
TAKER = [{"what": "takes", "run": RUN, "leg": "leg-1", "who": "r/taker-5"}]
ASKED = [{"what": "asked", "id": ID, "fails": False, "who": "r/leg-0"}]
KEPT = [{"what": "history", "id": ID, "who": "r/leg-0"}]
WELL = [{"what": "closed", "who": "r/leg-0"}]
WITHDRAWS = [{"what": "withdraws", "id": ID, "who": "r/operator-1"}]
RESOLVES = [{"what": "resolves", "id": ID, "who": "r/operator-1"}]
HELD = {"claim": "leg-1:x", "handed_over_at": 2.0}
APPLIED = {**HELD, "state": "applied", "closed_at": 3.0, "turn_outcome": "completed", "in_history": True}
RESOLVED = {**HELD, "state": "resolved", "closed_at": 3.0, "note": "abandoned"}


def row(**fields):
    made = {"seq": 1, "id": ID, "session_id": RUN, "verb": "message", "payload": {"text": f"please {ID}"}}
    return ControlRecord(**made | {"created_at": 1.0, "state": "pending"} | fields)


def judged(lines, *rows):
    return judge(Evidence.of(lines), {RUN: SESSION}, {r.id: r for r in rows})


TRUE = {
    "acknowledged, rejected": (ACKED, row(state="rejected", closed_at=3.0)),
    "its sender was killed, and it is a row": (SENT, row(state="rejected", closed_at=3.0)),
    "withdrawn": ([*ACKED, *WITHDRAWS, {**WITHDRAWS[0], "what": "withdrew"}], row(state="withdrawn", closed_at=3.0)),
    "applied": ([*ACKED, *LEG, *ASKED, *KEPT, *WELL], row(**APPLIED)),
    "cancelled before the provider": ([*ACKED, *LEG], row(**APPLIED | {"turn_outcome": "cancelled"})),
    "killed after the claim": ([*ACKED, *LEG], row(state="delivering", **HELD)),
    "killed after the call": ([*ACKED, *LEG, *ASKED], row(state="delivering", **HELD)),
    "resolved, its leg killed": ([*ACKED, *LEG, *ASKED, *RESOLVES], row(**RESOLVED)),
    "resolved, and told": ([*ACKED, *LEG, *ASKED, *RESOLVES, *WELL], row(**RESOLVED, late_report="x")),
}
LIES = {
    "acknowledged, and lost": (ACKED,),
    "delivered without a row": ([*SENT, *ASKED],),
    "refused, and yet written": (REFUSED, row(state="rejected", closed_at=3.0)),
    "nobody sent it": ([], row(state="rejected", closed_at=3.0)),
    "its text is another": (ACKED, row(state="rejected", closed_at=3.0, payload={"text": "please"})),
    "delivered twice": ([*ACKED, *LEG, *ASKED, *ASKED], row(**APPLIED)),
    "reads as never delivered": ([*ACKED, *ASKED], row(state="rejected", closed_at=3.0)),
    "pending on a run": (ACKED, row()),
    "nobody withdrew it": (ACKED, row(state="withdrawn", closed_at=3.0)),
    "withdrawal was acknowledged": ([*ACKED, *LEG, *ASKED, {**WITHDRAWS[0], "what": "withdrew"}], row(**APPLIED)),
    "resolution was acknowledged": (
        [*ACKED, *LEG, *ASKED, {**RESOLVES[0], "what": "resolved", "outcome": "abandoned"}],
        row(**APPLIED),
    ),
    "nobody resolved it": ([*ACKED, *LEG, *ASKED], row(**RESOLVED)),
    "without a word": ([*ACKED, *LEG, *ASKED, *RESOLVES, *WELL], row(**RESOLVED)),
    "left it delivering": ([*ACKED, *LEG, *ASKED, *WELL], row(state="delivering", **HELD)),
    "the model was never asked": ([*ACKED, *LEG], row(**APPLIED)),
    "its turn reads as failed": ([*ACKED, *LEG, *ASKED], row(**APPLIED | {"turn_outcome": "failed"})),
    "in the history: True": ([*ACKED, *LEG, *ASKED, *WELL], row(**APPLIED)),
    "by another process": ([*ACKED, *LEG, {**ASKED[0], "who": "r/leg-9"}], row(**APPLIED)),
    "than r/taker-5": ([*ACKED, *LEG, *TAKER, *ASKED], row(**APPLIED)),
}


@pytest.mark.parametrize("what", TRUE)
def test_what_is_true_is_left_alone(what):
    assert judged(*TRUE[what]) == []


@pytest.mark.parametrize("what", LIES)
def test_what_is_not_true_is_told(what):
    assert any(what in sentence for sentence in judged(*LIES[what]))


def test_a_run_that_goes_on_or_reads_as_something_else_is_told():
    running = SessionRecord(**SESSION.model_dump() | {"status": "running"})
    assert judge(Evidence(), {RUN: running}, {})
    ended = Evidence.of([{"what": "ended", "run": RUN, "status": "failed", "who": "r/leg-0"}])
    assert judge_ends(ended, {RUN: SESSION}) and not judge_ends(Evidence(), {RUN: SESSION})


def test_a_book_keeps_what_was_written_in_order_and_says_who(tmp_path):
    for who in ("leg-0", "operator-1"):
        book = Book(tmp_path, who)
        book.write("sends", id=ID)
        book.write("sent", id=ID, refused=None)
        book.close()
    told = [(line["who"], line["what"]) for line in read_books(tmp_path)]
    assert told == [(f"{tmp_path.name}/{who}", what) for who in ("leg-0", "operator-1") for what in ("sends", "sent")]
