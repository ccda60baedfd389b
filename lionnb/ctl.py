"""`lionnb ctl` and `lionnb legs`: steering, from any terminal on the same store, what runs in some other process.

Everything is imported when a command runs. What the store refuses is one sentence and exit status 1; a store that
cannot be used is one sentence and exit status 3 (`cli.main` says both).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import re
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, TypeVar

import typer

from lionnb.errors import LionnbError, StoreError
from lionnb.terminal import clip, json_line, say

if TYPE_CHECKING:
    from lionnb.records import SessionRecord
    from lionnb.store.address import Space, Target
    from lionnb.store.core import StoreCore
    from lionnb.store.results import EndResult

__all__ = ("app", "export", "legs")

T = TypeVar("T")
ANSWER_WITHIN_S: Final = 60.0
EXITS: Final = "Exit status: 0 done; 1 refused, or not found; 2 wrong usage; 3 the store could not be used."

app = typer.Typer(
    name="ctl",
    help="Steer a run from another terminal: send, look, withdraw, resolve. It acts on the store that LIONNB_DB or "
    f"--db names. An id may be shortened as long as it means one thing. {EXITS}",
    no_args_is_help=True,
)

Id = Annotated[str, typer.Argument(metavar="ID", help="A run, session or Branch: its id, or the beginning of it.")]
ControlId = Annotated[str, typer.Argument(metavar="CONTROL-ID", help="The control's id, or the beginning of it.")]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who does this; by default this account.")]
Db = Annotated[str | None, typer.Option("--db", metavar="PATH|URL", help="The store, instead of LIONNB_DB's.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object, texts to the letter.")]


# ---------------------------------------------------------------------- the store


class Ask(Protocol):
    """Has the store do something, and waits for it."""

    def __call__(self, work: Callable[[StoreCore], Coroutine[Any, Any, T]]) -> T: ...


@contextlib.contextmanager
def _store(db: str | None) -> Iterator[Ask]:
    """The store that is meant. It must be there: a command makes no empty one of a name that was mistyped."""
    from lionnb.store import Store, locate

    where = locate(db)
    if where.kind == "memory":
        raise StoreError("a store in memory belongs to its process alone: nothing can be steered in it from here.")
    if where.kind == "file" and not os.path.exists(where.address):
        raise StoreError(
            f"{_nothing_at(where.address)}: nothing has run there yet, or LIONNB_DB (or --db) names another place."
        )
    store = Store(db)

    def ask(work: Callable[[StoreCore], Coroutine[Any, Any, T]]) -> T:
        try:
            return store.submit(work).result(ANSWER_WITHIN_S)
        except concurrent.futures.TimeoutError:
            raise StoreError(
                "the control database did not answer, another program may hold it: whether anything was written is "
                "unknown. Look before you repeat it; a message with the same --key is written once."
            ) from None

    try:
        yield ask
    finally:
        store.close()


def _nothing_at(path: str) -> str:
    return f"there is no control database at {clip(path, 1_000)}, the file does not exist"


def _who(by: str | None) -> str:
    from lionnb.store.door import who

    return who() if by is None else by


def _find(ask: Ask, given: str, *, acts: bool) -> Target:
    return ask(lambda core: core.find(given, acts=acts))


def _run(ask: Ask, given: str) -> SessionRecord:
    """The run to act on."""
    from lionnb.store.address import Space

    target = _find(ask, given, acts=True)
    if target.space is Space.CONTROL:
        run = target.session.run_id or target.session.id
        raise LionnbError(f"{given!r} is a control, not a run: its run is {run}. Nothing was done.")
    return target.session


def _control(ask: Ask, given: str) -> str:
    from lionnb.store.address import Space

    spaces: tuple[Space, ...] = (Space.CONTROL,)
    return ask(lambda core: core.find(given, acts=True, spaces=spaces)).id


# ---------------------------------------------------------------------- sending


@app.command(epilog=EXITS)
def msg(
    target: Id,
    text: Annotated[str, typer.Argument(help="What to say to the agent, taken to the letter.")],
    key: Annotated[str | None, typer.Option(help="Makes a repeated command safe: one key, one steer.")] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Queue it also for a leg that has been silent.")] = False,
    by: By = None,
    db: Db = None,
) -> None:
    """Queue a message for a run.

    For an agent's leg it lands as a continuation turn at the end of the current turn, and never inside one. A run whose
    process is gone takes nothing: it is recorded lost at that moment.
    """
    _send(target, "message", text=text, key=key, anyway=anyway, by=by, db=db)


@app.command(epilog=EXITS)
def pause(target: Id, by: By = None, db: Db = None) -> None:
    """Pause a flow. An agent's leg cannot be paused: one operate() has no seam at which to do it."""
    _send(target, "pause", by=by, db=db)


@app.command(epilog=EXITS)
def resume(target: Id, by: By = None, db: Db = None) -> None:
    """Resume a flow that was paused. An agent's leg is never paused."""
    _send(target, "resume", by=by, db=db)


_ACKNOWLEDGED: Final = {
    "agent": "lands as a continuation turn when the current turn ends",
    "flow": "applies when the flow reads it, while it is live",
}


def _send(
    given: str,
    verb: str,
    *,
    text: str | None = None,
    key: str | None = None,
    anyway: bool = False,
    by: str | None,
    db: str | None,
) -> None:
    from lionnb.store.door import sender

    with _store(db) as ask:
        session, author = _run(ask, given), sender(by)
        got = ask(
            lambda core: core.admit(
                session.id, verb=verb, text=text, key=key, anyway=anyway, by=author, now=time.time()
            )
        )
        row = got.unwrap()
    where = f"control {clip(row.id, 40)} of run {clip(session.run_id)}"
    if got.duplicate:
        say(f"{where}: sent before with this key, and not again; it is {row.state.value}")
        return
    ahead = f"; {got.position} before it" if got.position else ""
    say(f"{where}: queued; {_ACKNOWLEDGED.get(session.kind, 'waits to be read')}{ahead}")
    if got.note is not None:
        say(f"note: {clip(got.note, 200)}")


# ---------------------------------------------------------------------- looking


@app.command(epilog=EXITS)
def status(
    target: Annotated[str, typer.Argument(metavar="ID", help="A run, session, Branch or control, or its beginning.")],
    as_json: Json = False,
    db: Db = None,
) -> None:
    """Show a run and what became of everything that was sent to it. Looks, and changes nothing.

    Every fate is computed now: what is pending on a run that is over reads as never landed, and what was handed over to
    a leg that is gone as never reported back, with the leg and the age of its claim.
    """
    from lionnb.status import status_json, status_lines, told

    with _store(db) as ask:
        found = _find(ask, target, acts=False)
        session, now = found.session, time.time()
        (view,) = ask(lambda core: core.views([session], now))
        told_of = told(ask(lambda core: core.list_controls(session.id)), session, view, now)
    shown = [one for one in told_of if found.control is None or one.control.id == found.control.id]
    if as_json:
        say(json_line(status_json(session, view, shown)))
    else:
        say("\n".join(status_lines(session, view, shown, now)))


def legs(
    every: Annotated[bool, typer.Option("--all", help="Those that have ended, too.")] = False,
    as_json: Json = False,
    db: Db = None,
) -> None:
    """List the runs of the store, one a line: those that run, and those where a steer needs a person.

    A run whose process is gone reads lost, one that cannot be seen and does not answer reads silent. Looks, and changes
    nothing.
    """
    from lionnb.status import legs_json, legs_table
    from lionnb.store import locate

    where, now = locate(db), time.time()
    found: list[Any] = []
    there = where.kind != "file" or os.path.exists(where.address)
    if there:
        with _store(db) as ask:
            found = ask(lambda core: _legs(core, now))
    shown = [line for line in found if every or line[0].ended_at is None or line[3]]
    if as_json:
        say(json_line(legs_json(shown, now)))
    elif shown:
        say(legs_table(shown, now))
    elif not there:
        say(f"no runs are here: {_nothing_at(where.address)}")
    else:
        say("no runs are here" if every or not found else "no run is live here; --all shows those that have ended")


def export(
    target: Annotated[str, typer.Argument(metavar="RUN", help="A run, session or control, or its beginning.")],
    redact: Annotated[bool, typer.Option("--redact", help="Replace texts and names by their length.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="A new file, readable by you alone.")
    ] = None,
    db: Db = None,
) -> None:
    """Write a run with all that was sent to it and all its turns as JSON, to standard output or into a new file.

    It holds prompts, steers and errors to the letter. With --redact there is the length of every text instead; ids,
    instants, numbers, models and words like states and fates stay. Looks, and changes nothing.
    """
    from lionnb.export import exported, write_private
    from lionnb.status import told

    with _store(db) as ask:
        session, now = _find(ask, target, acts=False).session, time.time()
        (view,) = ask(lambda core: core.views([session], now))
        controls = told(ask(lambda core: core.list_controls(session.id)), session, view, now)
        turns = ask(lambda core: core.list_turns(session.id))
    value = exported(session, controls, turns, at=now, redact=redact)
    if out is None:
        say(json_line(value))
    else:
        write_private(out, value)


async def _legs(core: StoreCore, now: float) -> list[Any]:
    from lionnb.records import Chip
    from lionnb.status import told

    sessions = await core.list_sessions()
    waiting: dict[str, list[Any]] = {}
    for control in await core.list_controls(open_only=True):
        waiting.setdefault(control.session_id, []).append(control)
    lines = []
    for session, view in zip(sessions, await core.views(sessions, now), strict=True):
        chips = [one.chip for one in told(waiting.get(session.id, []), session, view, now)]
        lines.append((session, view, chips.count(Chip.QUEUED), chips.count(Chip.NEEDS_YOU)))
    return lines


# ---------------------------------------------------------------------- a person's acts


class Finding(StrEnum):
    """What a person found about a control that was handed over."""

    APPLIED = "applied"
    ABANDONED = "abandoned"


@app.command(epilog=EXITS)
def resolve(
    control: ControlId,
    finding: Annotated[Finding, typer.Option("--as", help="What you found.")],
    claim: Annotated[
        str | None, typer.Option(help="The claim you decided about, as status prints it; by default the present one.")
    ] = None,
    by: By = None,
    db: Db = None,
) -> None:
    """Record what you found out about a control that was handed over and never reported back.

    Only a person can: whether it reached the model is the one thing that the system does not know, so a program that
    resolved it would make the finding up, and the record would read like yours. Therefore no tool and no machine
    surface offers this, in Python it asks for a name, and here your account is taken unless you say --by. The claim
    stays on the record; if its holder reports after all, that is added and overwrites nothing.

    With --claim it lands only on the hand-over that you looked at: one that was given back and handed over anew since
    then has another claim, and is refused. `lionnb ctl status` prints the command with it.
    """
    with _store(db) as ask:
        cid, name = _control(ask, control), _who(by)
        row = ask(lambda core: core.resolve(cid, finding.value, name, time.time(), claim=claim))
    say(f"control {clip(row.id, 40)}: recorded as {finding.value} by {clip(name, 40)}; the claim stays on the record")


@app.command(epilog=EXITS)
def withdraw(control: ControlId, by: By = None, db: Db = None) -> None:
    """Take back a control that nobody has claimed yet: it will never be delivered."""
    with _store(db) as ask:
        cid = _control(ask, control)
        row = ask(lambda core: core.withdraw(cid, _who(by), time.time()))
    say(f"control {clip(row.id, 40)}: withdrawn; it was not delivered and will not be")


@app.command(epilog=EXITS)
def reap(
    target: Annotated[
        str | None, typer.Argument(metavar="ID", help="One run, on your word: it is silent and you know it is gone.")
    ] = None,
    by: By = None,
    db: Db = None,
) -> None:
    """Record lost every run whose process is proven gone, and reject what waited for it.

    A leg on another host cannot be proven gone, and no timer says so: with an ID and --by NAME a person does. If the
    person is wrong, that leg can deliver nothing any more, so no record becomes false.
    """
    with _store(db) as ask:
        if target is None:
            done = ask(lambda core: core.reap(time.time(), _who(by)))
        else:
            if by is None:
                raise typer.BadParameter("a run is declared lost on somebody's word: say --by NAME.")
            session = _run(ask, target)
            one = ask(lambda core: core.declare_lost(session.id, by, time.time()))
            if not one.ended:
                raise LionnbError(f"run {session.run_id} had ended already: nothing was changed.")
            done = [one]
    for one in done:
        say(_lost(one))
    if not done:
        say("no run here is proven lost")


def _lost(done: EndResult) -> str:
    assert done.session is not None, "it was ended in this transaction"
    swept = f"; {len(done.swept)} queued and rejected" if done.swept else ""
    return f"run {clip(done.session.run_id)}: recorded lost, {clip(done.session.ended_note, 120)}{swept}"


_AGE: Final = re.compile(r"(\d{1,6})([mhdw])", re.ASCII)
_UNITS_S: Final = {"m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def _instant(before: str, now: float) -> float:
    if (age := _AGE.fullmatch(before)) is not None:
        return now - int(age[1]) * _UNITS_S[age[2]]
    try:
        at = datetime.fromisoformat(before)
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise typer.BadParameter("say how old (30d, 12h, 2w) or a date (2026-11-30).") from None


@app.command(epilog=EXITS)
def purge(
    before: Annotated[str, typer.Option(metavar="AGE|DATE", help="30d, 12h, 2w, or a date in UTC.")],
    db: Db = None,
) -> None:
    """Remove runs that ended before then, with their controls, turns, signals and histories; running ones never.

    A run where a claimed control waits for a person is kept.
    """
    from lionnb.status import utc

    now = time.time()
    limit = _instant(before, now)
    with _store(db) as ask:
        gone = ask(lambda core: core.purge(limit, now))
    say(
        f"removed what ended before {utc(min(limit, now))}: {gone.sessions} run(s), {gone.controls} control(s), "
        f"{gone.turns} turn(s), {gone.signals} signal(s)"
    )
    if gone.kept_unresolved:
        say(f"kept {gone.kept_unresolved} run(s) where a claimed control waits for a person: `lionnb legs` names them")
