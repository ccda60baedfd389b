"""`resume`: a run that has ended goes on under a new leg, on the same row of the record.

The take-over and what it sends again are one transaction, and its answer is waited for, because it decides whether
there is a leg at all: of two that want one run, one gets it. Whatever keeps the leg from being made after that (a
second leg in another thread, an interrupt, an answer that comes too late) ends the run again, by the new leg's token,
so it touches nothing that somebody else has taken meanwhile.

Source: ADR-0108.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from lionnb.branch import Branch, wrap
from lionnb.errors import NoRunningLoopError, ResolveRefusedError, ResumeRefusedError, StoreError
from lionnb.legs.arguments import check_arguments, check_model
from lionnb.legs.budget import Budget, CountOrSame, SecondsOrSame, seconds_limit
from lionnb.legs.drain import STORE_LIMIT_S, Handoff
from lionnb.legs.leg import HEARTBEAT_S, Leg
from lionnb.legs.registry import check_flag, check_resume_on_timeout, enter, legs, refuse_second
from lionnb.legs.run import new_leg
from lionnb.legs.snapshot import restored
from lionnb.legs.turn import FIRST_ONLY
from lionnb.records import ControlRecord, RunStatus, SessionRecord, SessionSpec
from lionnb.store.address import Space
from lionnb.store.door import person, sender
from lionnb.store.lease import identity
from lionnb.store.results import Reopened
from lionnb.store.store import Store, default_store

if TYPE_CHECKING:
    from lionnb.store.core import StoreCore

__all__ = ("resume", "resume_leg")

log = logging.getLogger(__name__)
T = TypeVar("T")

_NOT_MADE = "it was taken up again, and its new leg could not be made"
_abandoned: set[str] = set()  # legs that were never made, in case the store could not be told


def resume(
    run: str,
    instruction: Any = None,
    *,
    branch: Branch | None = None,
    chat_model: Any = None,
    op: str = "operate",
    resend: bool = True,
    timeout_s: SecondsOrSame = "same",
    max_turns: int | None = None,
    max_tokens: int | None = None,
    resume_on_timeout: bool = False,
    snapshot: bool = True,
    anyway: bool = False,
    store: Store | None = None,
    by: str | None = None,
    heartbeat_s: float | None = HEARTBEAT_S,
    **arguments: Any,
) -> Leg:
    """Take up a run again that has ended, or whose process is gone: a new leg on the same row of the record.

    The run keeps its id. What is pending there is the new leg's to deliver; what its end rejected is queued again, as
    new rows, once, however often it is resumed; what was handed over stays with its claim, for a person to resolve. It
    blocks until the database has answered, normally some milliseconds, and returns the new leg.

    Args:
        run: The run: its id, or the beginning of it as far as its ``T``.
        instruction: What the first turn is asked; what is queued goes along with it. ``None``: the first turn carries
            what is queued.
        branch: The Branch to go on with. Without one it is the leg's own, where that was of this kernel; else a new one
            with the history that was kept at the end of the run's last turn, on *chat_model*.
        chat_model: The model of that new Branch; with a Branch, as in `start_leg`.
        op: As in `start_leg`.
        resend: Send again what was rejected.
        timeout_s: As in `start_leg`; ``"same"`` is as much as the run had, counted anew.
        max_turns: As in `start_leg`.
        max_tokens: As in `start_leg`.
        resume_on_timeout: As in `start_leg`.
        snapshot: As in `start_leg`.
        anyway: Take it also from a leg on another host that has been silent for longer than its lease; needs *by*. If
            you are wrong, that leg can deliver nothing any more.
        store: Where it is recorded; the default store of this process.
        by: Who does this; the hub's user or the account.
        heartbeat_s: As in `start_leg`.
        **arguments: The operation's own, as in `start_leg`.

    Raises:
        NoRunningLoopError: There is no running event loop.
        LegExistsError: This kernel has a live leg on that Branch, or of the run's name.
        ResumeRefusedError: The run is somebody's who lives, or may live; or it is no agent's run; or no Branch.
        UnknownIdError: Nothing has this id.
        AmbiguousIdError: Several have, or it is only the date of a run.
        ValueError: Neither an instruction nor anything to deliver; or as `start_leg`.
        TypeError: As `start_leg`.
        StoreError: The database did not answer or failed; the run is left as it was, or ended again.

    Source: ADR-0108.
    """
    _need_loop()
    if not isinstance(run, str):
        raise TypeError(f"the run is named by its id, a text, not by {type(run).__name__}: a leg has leg.resume().")
    if store is not None and not isinstance(store, Store):
        raise TypeError(f"store is a lionnb.store.Store or None (this process's), not {type(store).__name__}.")
    if chat_model is not None:
        check_model("chat_model", chat_model)
    if anyway:
        _need_name(by)
    by = sender(by)
    store = store if store is not None else default_store()
    session = _find(store, run)
    mine = [leg for leg in legs() if leg.session_id == session.id]
    if branch is None and not mine:
        branch = _rebuilt(store, session, chat_model, arguments.get("tools"))
    elif chat_model is not None:
        arguments["chat_model"] = chat_model
    branch = mine[-1].branch if branch is None else branch
    return _go_on(
        wrap(branch),
        instruction,
        session=session,
        op=op,
        arguments=arguments,
        budget=Budget(session.timeout_s if timeout_s == "same" else timeout_s, max_turns, max_tokens),
        store=store,
        by=by,
        heartbeat_s=seconds_limit("heartbeat_s", heartbeat_s),
        before=mine,
        resend=resend,
        resume_on_timeout=resume_on_timeout,
        snapshot=snapshot,
        anyway=anyway,
    )


def resume_leg(
    leg: Leg,
    instruction: Any,
    *,
    resend: bool,
    limits: tuple[SecondsOrSame, CountOrSame, CountOrSame],
    resume_on_timeout: bool,
    arguments: dict[str, Any],
) -> Leg:
    """`Leg.resume`."""
    _need_loop()
    refuse_second(leg.branch, leg.name, resumes=True)
    session = _ask(leg.store, lambda core: core.get_session(leg.session_id))
    if session is None:
        raise ResumeRefusedError(
            "unknown", f"run {leg.run_id} is not in the record: start another leg on its Branch. Nothing was changed."
        )
    had = (leg.budget.timeout_s, leg.budget.max_turns, leg.budget.max_tokens)
    asked: list[Any] = [old if new == "same" else new for new, old in zip(limits, had, strict=True)]
    kept = {name: value for name, value in leg.arguments.items() if name not in FIRST_ONLY}
    return _go_on(
        leg.branch,
        instruction,
        session=session,
        op=leg.op,
        arguments=kept | arguments,
        budget=Budget(*asked),
        store=leg.store,
        by=leg.by,
        heartbeat_s=leg.heartbeat_s,
        before=[leg],
        resend=resend,
        resume_on_timeout=resume_on_timeout,
        snapshot=leg.snapshot,
        anyway=False,
    )


def _go_on(
    branch: Branch,
    instruction: Any,
    *,
    session: SessionRecord,
    op: str,
    arguments: dict[str, Any],
    budget: Budget,
    store: Store,
    by: str,
    heartbeat_s: float | None,
    before: Iterable[Leg],
    resend: bool,
    resume_on_timeout: bool,
    snapshot: bool,
    anyway: bool,
) -> Leg:
    """Take the run, and make its leg; *before* are the legs that this kernel had on it."""
    check_flag("snapshot", snapshot)
    check_resume_on_timeout(resume_on_timeout, budget)
    check_arguments(branch, "go on" if instruction is None else instruction, op, arguments, resumes=True)
    refuse_second(branch, session.name, resumes=True)
    ended = [leg for leg in before if not leg.live]
    spec = _spec(session, branch, budget)
    taken, queued = _take(
        store,
        spec,
        resend=resend,
        instructed=instruction is not None,
        ended_legs={*_abandoned, *(leg.token for leg in ended)},
        anyway=anyway,
    )

    def make(_: tuple[Leg, ...]) -> Leg:
        return Leg(
            branch,
            instruction,
            op=op,
            arguments=arguments,
            name=session.name,
            budget=budget,
            store=store,
            by=by,
            heartbeat_s=heartbeat_s,
            again=taken,
            queued=queued,
            receipts=[receipt for leg in ended for receipt in leg.receipts],
            resume_on_timeout=resume_on_timeout,
            snapshot=snapshot,
        )

    try:
        return enter(branch, session.name, make, resumes=True)[0]
    except BaseException:
        concurrent.futures.wait(_undo(store, spec), timeout=STORE_LIMIT_S)
        raise


# ---------------------------------------------------------------------- the store


def _spec(session: SessionRecord, branch: Branch, budget: Budget) -> SessionSpec:
    fresh = {
        "leg": new_leg(),
        "branch_id": str(branch.id),
        "timeout_s": budget.timeout_s,
        "deadline_at": None if budget.timeout_s is None else time.time() + budget.timeout_s,
    }
    return SessionSpec(**(session.model_dump(include=set(SessionSpec.model_fields)) | identity() | fresh))


def _take(store: Store, spec: SessionSpec, **how: Any) -> tuple[SessionRecord, tuple[ControlRecord, ...]]:
    """Make the run *spec*'s; blocks, and gives what waits in it too. Nobody holds it if this raises.

    Raises:
        ResumeRefusedError: It is somebody else's.
        ValueError: There is nothing to do.
        StoreError: The store did not answer, or failed.
    """
    handoff = Handoff()

    async def work(core: StoreCore) -> Reopened:
        got = await core.reopen(spec, **how, now=time.time())
        if got.session is not None and not handoff.deliver():
            await _end(core, spec)
        return got

    try:
        got = _answer(store.submit(work))
    except BaseException:  # an interrupt too: whether it was written is not known here
        handoff.abandon()
        _undo(store, spec)
        raise
    if got.session is not None:
        return got.session, got.queued
    assert got.refusal is not None
    reason, sentence = got.refusal
    raise ValueError(sentence) if reason == "nothing" else ResumeRefusedError(reason, sentence)


def _undo(store: Store, spec: SessionSpec) -> tuple[concurrent.futures.Future[None], ...]:
    """End again what has no leg; by its token, so that it ends nothing else. Raises nothing; gives what to wait for."""
    _abandoned.add(spec.leg)
    try:
        undone = store.submit(lambda core: _end(core, spec))
    except StoreError as exc:
        log.warning("a run that was resumed in vain could not be ended again: %s", exc)
        return ()
    undone.add_done_callback(_tell_undone)
    return (undone,)


async def _end(core: StoreCore, spec: SessionSpec) -> None:
    await core.end(spec.id, spec.leg, RunStatus.CANCELLED, by=spec.leg, note=_NOT_MADE, now=time.time())


def _tell_undone(done: concurrent.futures.Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        log.warning("a run that was resumed in vain could not be ended again: %s", error)


def _ask(store: Store, work: Callable[[StoreCore], Coroutine[Any, Any, T]]) -> T:
    return _answer(store.submit(work))


def _answer(future: concurrent.futures.Future[T]) -> T:
    try:
        return future.result(STORE_LIMIT_S)
    except concurrent.futures.TimeoutError:
        raise StoreError(
            "the control database did not answer, so the run was not resumed: another program may hold it. Try again."
        ) from None


def _find(store: Store, given: str) -> SessionRecord:
    target = _ask(store, lambda core: core.find(given, acts=True))
    if target.space is Space.CONTROL:
        run = target.session.run_id or target.session.id
        raise ResumeRefusedError("kind", f"{given!r} is a control, not a run: its run is {run}. Nothing was changed.")
    return target.session


# ---------------------------------------------------------------------- the caller


def _need_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise NoRunningLoopError("resume()") from None


def _need_name(by: str | None) -> None:
    try:
        person(by, "taking a run from a silent leg")
    except ResolveRefusedError as exc:
        raise ResumeRefusedError(exc.reason, str(exc)) from None


def _rebuilt(store: Store, session: SessionRecord, chat_model: Any, tools: Any) -> Branch:
    run = session.run_id
    history = _ask(store, lambda core: core.get_snapshot(session.id))
    if history is None:
        raise ResumeRefusedError(
            "history",
            f"no history of run {run} was kept, and it is not of this kernel: give the Branch to go on with, as "
            f'lionnb.resume("{run}", …, branch=branch). Nothing was changed.',
        )
    if chat_model is None:
        raise ResumeRefusedError(
            "history",
            f"the history of run {run} was kept, and no model can be: give one, as "
            f'lionnb.resume("{run}", …, chat_model=model). Nothing was changed.',
        )
    return restored(history, chat_model=chat_model, tools=tools if isinstance(tools, list | tuple) else ())
