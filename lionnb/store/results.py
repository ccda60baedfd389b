"""What the store's operations answer. Frozen; no I/O."""

from __future__ import annotations

from dataclasses import dataclass

from lionnb.errors import SteerRefusedError
from lionnb.records import ControlRecord, SessionRecord
from lionnb.store.gate import Refusal

__all__ = ("Admission", "Claim", "EndResult", "Purged", "Reopened", "Reported")


@dataclass(frozen=True, slots=True)
class Admission:
    """What became of a steer at the door: a row, or a refusal and no row.

    ``position`` counts the pending and delivering rows that stand before it. ``duplicate`` says that the row was
    there already (same key or id, same text) and that nothing was written. ``note`` is a sentence about the leg that
    the sender should read: it is alive and has been busy for long, say.
    """

    control: ControlRecord | None
    refusal: Refusal | None = None
    position: int = 0
    duplicate: bool = False
    note: str | None = None

    def unwrap(self) -> ControlRecord:
        """Return the row.

        Raises:
            SteerRefusedError: The steer was refused; no row was written.
        """
        if self.control is None:
            assert self.refusal is not None
            raise SteerRefusedError(*self.refusal)
        return self.control


@dataclass(frozen=True, slots=True)
class Claim:
    """What a leg took over in one hand-over. Only ``token`` finalizes these rows; nobody rebuilds it.

    ``owned`` says whether the run was running and this leg's when the claim was tried. ``False`` means that the leg
    was ended or replaced by somebody else: it must not start new work. Without rows there is nothing to report.
    """

    token: str
    rows: tuple[ControlRecord, ...] = ()
    owned: bool = True

    def __bool__(self) -> bool:
        return bool(self.rows)


@dataclass(frozen=True, slots=True)
class Reported:
    """Where a holder's report landed, by control id.

    ``late`` rows had been resolved by a person meanwhile: only ``late_report`` was written. ``earlier`` rows were
    recorded by this very claim before: a report whose answer was lost has landed. ``lost`` rows took nothing: they are
    not this claim's any more. The caller says so to its user.
    """

    landed: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EndResult:
    """Whether the run was ended by this call, and what its sweep rejected.

    ``session`` is the row as stored afterwards (``None``: unknown id), ``pending_left`` what is still pending there.
    """

    ended: bool
    session: SessionRecord | None
    swept: tuple[ControlRecord, ...] = ()
    pending_left: int = 0


@dataclass(frozen=True, slots=True)
class Reopened:
    """A run that a new leg has taken up, or why it was not: then nothing was written.

    ``queued`` is everything that waits for the new leg, in its order: what was left pending, then what was sent again.
    """

    session: SessionRecord | None
    refusal: Refusal | None = None
    queued: tuple[ControlRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Purged:
    """How many rows a purge removed, and how many old runs it kept because a claimed row waits for a person."""

    sessions: int
    controls: int
    turns: int
    signals: int
    kept_unresolved: int
