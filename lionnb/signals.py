"""Lifecycle signals with ``turn_id``: additive subclasses of lionagi's.

The class names stay ``RunStart``, ``RunEnd``, ``RunFailed``: lionagi's SessionObserver persists ``type(sig).__name__``
as the signal's kind, and observers of the lionagi classes keep matching.

Source: ADR-0018 D5.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from lionagi.session import signal as upstream

__all__ = ("UPSTREAM_LIFECYCLE", "RunEnd", "RunFailed", "RunStart", "build_run_end")

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


# What a RunEnd says of usage: every field that is RunEnd's own, whatever lionagi adds to it.
_USAGE_FIELDS = tuple(set(upstream.RunEnd.model_fields) - set(upstream.Signal.model_fields) - {"duration_ms"})


def build_run_end(branch: Any, *, turn_id: UUID | None = None, duration_ms: float = 0.0, result: Any = None) -> RunEnd:
    """A RunEnd with lionagi's own usage and duration policy, and the turn's id."""
    end = upstream.build_run_end(branch, duration_ms=duration_ms)
    usage = {name: getattr(end, name) for name in _USAGE_FIELDS}
    return RunEnd(data=result, turn_id=turn_id, duration_ms=duration_ms, **usage)
