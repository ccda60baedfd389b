"""What a person types to mean a run, a control or a Branch, and what it means.

Four spaces are searched together, because an answer that one space gives while another would give another one is a
guess, and callers act on it. So, in this order: what fits two spaces, or two ids of one, is refused and the candidates
are named; what is an id is that; what is the beginning of one id is that.

A full run id cannot collide: it carries a ``T`` and a ``-`` where a hexadecimal id has neither, and what has that form
is looked for among run ids only. What stays exposed is its beginning, a date, whose digits all are hexadecimal:
commands that act want it as far as the ``T``.

Source: ADR-0108, "run-id addressing".
"""
# ruff: noqa: D417  # `tx` is handed in by the decorator and no part of the signature

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from lionnb.errors import AmbiguousIdError, UnknownIdError
from lionnb.records import ControlRecord, SessionRecord
from lionnb.store import statements as sql
from lionnb.store.transact import Transactions, Tx, reads

__all__ = ("EVERYWHERE", "Addresses", "Space", "Target")

_RUN_ID: Final = re.compile(r"\d{8}T\d{6}-[0-9a-f]{6}", re.ASCII)
_NO_ID: Final = re.compile("[\x00\ud800-\udfff]")
_LONGEST: Final = 200
_SHOWN: Final = 8  # candidates that a refusal names


class Space(StrEnum):
    """What an id can be the id of."""

    SESSION = "session"
    RUN = "run"
    CONTROL = "control"
    BRANCH = "branch"


EVERYWHERE: Final = frozenset(Space)


@dataclass(frozen=True, slots=True)
class Target:
    """What an id means. ``session`` is the run it leads to: of several, the most recently updated one."""

    space: Space
    id: str
    session: SessionRecord
    control: ControlRecord | None = None


class Addresses(Transactions):
    """Looking things up by what a person typed."""

    @reads
    async def find(self, tx: Tx, given: str, *, acts: bool, spaces: Collection[Space] = EVERYWHERE) -> Target:
        """What *given* means: an id, or the beginning of one, to the letter (``%`` and ``_`` are characters).

        Args:
            given: What was typed.
            acts: The caller changes something on the answer: a run id must be given as far as its ``T``.
            spaces: Where to look.

        Raises:
            AmbiguousIdError: It fits several, or is only the date of a run and *acts*. None was picked.
            UnknownIdError: It is empty, or fits nothing.
        """
        if _no_id(given):
            raise UnknownIdError(given[:_LONGEST])
        if _RUN_ID.fullmatch(given) and Space.RUN in spaces:
            spaces = (Space.RUN,)
        fits = [(space, found) for space in Space if space in spaces for found in await _fits(tx, space, given)]
        space, found = _one(given, fits)
        if acts and space is Space.RUN and found != given and "T" not in given:
            raise AmbiguousIdError(given, (found,))
        return await _target(tx, space, found)

    @reads
    async def branches_of_turns(self, tx: Tx, given: str) -> list[str]:
        """The ids of Branches that are *given* or begin with it and have turns here, whether a leg ran on them or not.

        The shortest first, and only a few.
        """
        if _no_id(given):
            return []
        return await tx.scalars(sql.BRANCHES_OF_TURNS, given=given, size=len(given), most=_SHOWN + 1)


def _no_id(given: str) -> bool:
    return not given.strip() or len(given) > _LONGEST or _NO_ID.search(given) is not None


async def _fits(tx: Tx, space: Space, given: str) -> list[str]:
    """The ids of one space that *given* is, or begins; when it is one of them, that one alone."""
    found = await tx.scalars(sql.BEGINNING[space.value], given=given, size=len(given), most=_SHOWN + 1)
    return [given] if given in found else [str(one) for one in found]


def _one(given: str, fits: Sequence[tuple[Space, str]]) -> tuple[Space, str]:
    if not fits:
        raise UnknownIdError(given)
    if len(fits) > 1:
        named = [f"{space.value} {found}" for space, found in fits[:_SHOWN]]
        raise AmbiguousIdError(given, named if len(fits) <= _SHOWN else [*named, "and more"])
    return fits[0]


async def _target(tx: Tx, space: Space, found: str) -> Target:
    control = next(iter(await tx.controls(sql.CONTROL, cid=found)), None) if space is Space.CONTROL else None
    column: Any = {Space.RUN: sql.s.run_id, Space.BRANCH: sql.s.branch_id}.get(space, sql.s.id)
    wanted = found if control is None else control.session_id
    sessions = await tx.sessions(sql.SESSIONS.where(column == wanted))
    if not sessions:  # purged between the two statements
        raise UnknownIdError(found)
    return Target(space, found, max(reversed(sessions), key=_updated_at), control)


def _updated_at(session: SessionRecord) -> float:
    return max(at for at in (session.created_at, session.heartbeat_at, session.ended_at) if at is not None)
