"""Lifecycle signals with ``turn_id``: additive subclasses of lionagi's.

The class names stay ``RunStart``, ``RunEnd``, ``RunFailed``: lionagi's SessionObserver persists ``type(sig).__name__``
as the signal's kind, and observers of the lionagi classes keep matching.

Source: ADR-0018 D5.
"""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

from lionagi.session import signal as upstream

__all__ = ("UPSTREAM_LIFECYCLE", "RunEnd", "RunFailed", "RunStart", "build_run_end")

log = logging.getLogger(__name__)

UPSTREAM_LIFECYCLE = (upstream.RunStart, upstream.RunEnd, upstream.RunFailed)


class RunStart(upstream.RunStart):
    """A turn holds its Branch."""

    turn_id: UUID | None = None


class RunEnd(upstream.RunEnd):
    """A turn ended cleanly. Usage is cumulative over the Branch's history, as lionagi defines it."""

    turn_id: UUID | None = None


class RunFailed(upstream.RunFailed):
    """A turn raised or was cancelled; ``data`` is the exception."""

    turn_id: UUID | None = None


def build_run_end(branch: Any, *, turn_id: UUID | None = None, duration_ms: float = 0.0, result: Any = None) -> RunEnd:
    """A RunEnd with lionagi's own usage and duration policy, and the turn's id.

    Usage that a provider has garbled would fail the RunEnd of this turn and of every later one: none is reported then.
    """
    try:
        end = upstream.build_run_end(branch, duration_ms=duration_ms, result=result)
    except Exception:
        log.exception("the usage in a Branch's history cannot be read: its RunEnd reports none")
        end = upstream.RunEnd(data=result, duration_ms=duration_ms, usage_valid=False)
    # Every field as lionagi made it, whatever it adds to them; validated there, so not a second time.
    return RunEnd.model_construct(**{**vars(end), "turn_id": turn_id})  # type: ignore[no-any-return]
