"""A run as one JSON value: its row, what was sent to it with the fates, and its turns; with their texts, or without.

Redaction is by what may stay, not by what must go: ids, instants, numbers and words from fixed lists keep their value,
and every other text becomes its length. A field that is added later is redacted until somebody says otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lionnb.errors import LionnbError

if TYPE_CHECKING:
    from lionnb.records import SessionRecord, TurnRecord
    from lionnb.status import Told

__all__ = ("KEPT", "exported", "redacted", "write_private")

FORMAT: Final = 1

KEPT: Final = frozenset(
    {
        "id", "run_id", "session_id", "branch_id", "turn_id", "resent_from", "leg", "claim",  # ids
        "kind", "status", "verb", "state", "fate", "chip", "outcome", "turn_outcome", "carried",  # words, and ids again
        "operation", "model",
    }
)  # fmt: skip
"""Fields whose text stays when an export is redacted."""

FINDINGS: Final = frozenset({"applied", "abandoned"})
"""What the note of a resolved control says, and nothing else: words of a fixed list, which stay."""


def exported(
    session: SessionRecord, controls: Sequence[Told], turns: Sequence[TurnRecord], *, at: float, redact: bool
) -> dict[str, Any]:
    """The run as JSON values.

    Args:
        session: Its row.
        controls: What was sent to it, with what is true of it now.
        turns: Its turns.
        at: When this is said.
        redact: Replace every text that is no id and no word of a fixed list by its length.
    """
    run = session.model_dump(mode="json")
    sent = [
        told.control.model_dump(mode="json") | {"fate": told.fate.value, "chip": told.chip.value} for told in controls
    ]
    did = [turn.model_dump(mode="json") for turn in turns]
    if redact:
        run, sent, did = redacted(run), redacted(sent), redacted(did)
    return {"lionnb_export": FORMAT, "redacted": redact, "exported_at": at, "run": run, "controls": sent, "turns": did}


def redacted(value: Any, field: str = "") -> Any:
    """*value* with its texts replaced, as the value of *field*."""
    if isinstance(value, str):
        return value if field in KEPT or (field == "note" and value in FINDINGS) else f"({len(value)} characters)"
    if isinstance(value, dict):
        return {key: redacted(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [redacted(each, field) for each in value]
    return value


def write_private(path: Path, value: Any) -> None:
    """Write *value* as JSON into a new file that only this account can read.

    Raises:
        LionnbError: There is a file already, or none can be made here. Nothing was written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise LionnbError("there is a file of this name already: nothing was written. Name another one.") from None
    except OSError as exc:
        raise LionnbError(f"no file can be made at this place ({exc.strerror}): nothing was written.") from None
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            json.dump(value, file, indent=2)
            file.write("\n")
    except OSError as exc:
        with contextlib.suppress(OSError):
            path.unlink()
        raise LionnbError(f"the file could not be written ({exc.strerror}), and is removed again.") from None
