"""What must be true after any number of deaths: the database, against the books that were kept outside of it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lionnb.records import ControlRecord, ControlState, SessionRecord
from lionnb.store.controls import leg_of

__all__ = ("Evidence", "judge", "judge_ends")

S = ControlState


@dataclass
class Steer:
    """What the books say of one steer."""

    sends: int = 0
    answers: list[str | None] = field(default_factory=list)  # None: acknowledged; else the reason of a refusal
    asked: list[dict[str, Any]] = field(default_factory=list)  # each time the model was asked with it
    withdraws: int = 0
    withdrew: bool = False
    resolves: int = 0
    resolved: str | None = None
    kept: bool = False  # it stands in the history of a Branch

    @property
    def acknowledged(self) -> bool:
        return None in self.answers

    @property
    def refused(self) -> bool:
        """Every time that it was sent it was refused, so nobody may have written it."""
        return self.sends == len(self.answers) and not self.acknowledged


@dataclass
class Evidence:
    """The books, put in order."""

    steers: dict[str, Steer] = field(default_factory=lambda: defaultdict(Steer))
    began: dict[str, str] = field(default_factory=dict)  # run -> the process of the leg that began it
    takers: dict[str, str] = field(default_factory=dict)  # token of a leg that took a run -> its process
    well: set[str] = field(default_factory=set)  # processes that reached their end
    ends: dict[str, str] = field(default_factory=dict)  # run -> the status that its last leg ended it with

    @classmethod
    def of(cls, lines: Iterable[Mapping[str, Any]]) -> Evidence:
        """Read *lines*."""
        made = cls()
        for line in lines:
            made._add(line)
        return made

    def _add(self, line: Mapping[str, Any]) -> None:
        steer = self.steers[line["id"]] if "id" in line else Steer()
        match line["what"]:
            case "sends":
                steer.sends += 1
            case "sent":
                steer.answers.append(line["refused"])
            case "asked":
                steer.asked.append(dict(line))
            case "history":
                steer.kept = True
            case "withdraws":
                steer.withdraws += 1
            case "withdrew":
                steer.withdrew = True
            case "resolves":
                steer.resolves += 1
            case "resolved":
                steer.resolved = line["outcome"]
            case "begins":
                self.began[line["run"]] = line["who"]
            case "takes":
                self.takers[line["leg"]] = line["who"]
            case "ended":
                self.ends[line["run"]] = line["status"]
            case "closed":
                self.well.add(line["who"])


def judge(
    evidence: Evidence, sessions: Mapping[str, SessionRecord], controls: Mapping[str, ControlRecord]
) -> list[str]:
    """Everything that is lost, double or false, each in a sentence. Every run must have ended."""
    found = [f"run {run.id} has not ended" for run in sessions.values() if not run.terminal]
    newest, wrong = _newest(controls)
    found += wrong
    told = {row.id: cid for cid, row in newest.items()}
    for cid in newest.keys() - evidence.steers.keys():
        found.append(f"{cid}: nobody sent it")
    for cid, steer in evidence.steers.items():
        if told.get(cid, cid) != cid or (cid in controls and cid not in newest):
            continue  # a row that was sent again, by its own id: what a person did with it is told of its origin
        row = newest.get(cid)
        if row is not None and row.id != cid and row.id in evidence.steers:
            steer.resolves, steer.resolved = evidence.steers[row.id].resolves, evidence.steers[row.id].resolved
        what = _of_nothing(steer) if row is None else _of_row(row, cid, steer, evidence)
        found += [f"{cid} ({'no row' if row is None else row.state.value}): {sentence}" for sentence in what]
    return found


def _newest(controls: Mapping[str, ControlRecord]) -> tuple[dict[str, ControlRecord], list[str]]:
    """For each steer, by the id it was sent with, the row that speaks for it now; and what is wrong on the way there.

    Only what was rejected is sent again, each row once; so all rows of a steer but the newest are rejected.
    """
    newest: dict[str, ControlRecord] = {}
    wrong, origin, parents = [], dict[str, str](), set[str]()
    for row in sorted(controls.values(), key=lambda row: row.seq):
        before = row.resent_from
        origin[row.id] = row.id if before is None else origin.get(before, before)
        newest[origin[row.id]] = row
        if before is None:
            continue
        if before not in controls or controls[before].state is not S.REJECTED:
            wrong.append(f"{row.id}: sends {before} again, which was not rejected")
        if before in parents:
            wrong.append(f"{before}: sent again twice")
        parents.add(before)
    return newest, wrong


def judge_ends(evidence: Evidence, sessions: Mapping[str, SessionRecord]) -> list[str]:
    """Runs whose record is not what their legs say; to be asked before anybody else has touched them."""
    found = []
    for run in sessions.values():
        status = evidence.ends.get(run.id)
        if status is not None and run.status != status:
            found.append(f"run {run.id} reads {run.status.value}, and its leg ended it as {status}")
    return found


def _of_nothing(steer: Steer) -> Iterator[str]:
    if steer.acknowledged:
        yield "acknowledged, and lost"
    if steer.asked:
        yield "delivered without a row"


def _of_row(row: ControlRecord, sent_as: str, steer: Steer, evidence: Evidence) -> Iterator[str]:
    if steer.refused:
        yield "refused, and yet written"
    if row.text != f"please {sent_as}":
        yield "its text is another"
    if len(steer.asked) > 1:
        yield "delivered twice"
    if steer.withdrew and row.state is not S.WITHDRAWN:
        yield "its withdrawal was acknowledged and overwritten"
    if steer.resolved is not None and (row.state, row.note) != (S.RESOLVED, steer.resolved):
        yield "its resolution was acknowledged and overwritten"
    if row.handed_over_at is None and steer.asked:
        yield "delivered, and reads as never delivered"
    if row.state is S.PENDING:
        yield "pending on a run that has ended"
    if row.state is S.WITHDRAWN and not steer.withdraws:
        yield "nobody withdrew it"
    if row.claim is not None:
        yield from _of_claimed(row, steer, evidence)


def _of_claimed(row: ControlRecord, steer: Steer, evidence: Evidence) -> Iterator[str]:
    process = evidence.takers.get(leg_of(row.claim or "")) or evidence.began.get(row.session_id, "nobody")
    well = process in evidence.well
    if any(asked["who"] != process for asked in steer.asked):
        yield f"delivered by another process than {process}, which holds the claim"
    if row.state is S.DELIVERING and well:
        yield f"{process} ended well and left it delivering"
    if row.state is S.RESOLVED and not steer.resolves:
        yield "nobody resolved it"
    if row.state is S.RESOLVED and well and row.late_report is None:
        yield f"{process} ended well without a word on the resolved row"
    if row.state is S.APPLIED:
        yield from _of_applied(row, steer)
        if well and "/" in process and row.in_history != steer.kept:
            yield f"reads as in the history: {row.in_history}, and that is not so"


def _of_applied(row: ControlRecord, steer: Steer) -> Iterator[str]:
    if row.turn_outcome not in ("completed", "failed", "cancelled", "timed_out"):
        yield f"its turn {row.turn_outcome}"
    if row.turn_outcome in ("completed", "failed"):
        if not steer.asked:
            yield f"reads as applied in a turn that {row.turn_outcome}, and the model was never asked"
        elif steer.asked[0]["fails"] != (row.turn_outcome == "failed"):
            yield f"its turn reads as {row.turn_outcome}, and that is not so"
