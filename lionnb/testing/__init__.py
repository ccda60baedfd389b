"""What tests and notebooks stand on: scripted providers with gates, cancellation at every step, leak checks.

Shipped, because notebooks use it and because code built on lionnb wants to be tested the same way. Needs no
pytest, no network and no key. Loaded lazily: lionagi is imported when a model is made, not before.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lionnb.testing.gate import Gate

if TYPE_CHECKING:
    from lionnb.testing.leaks import Resources, assert_no_leaks, leftover_tasks, no_leaks
    from lionnb.testing.person import person_or
    from lionnb.testing.replies import Reply, Script
    from lionnb.testing.scripted import calls_of, scripted_model
    from lionnb.testing.server import LoopbackServer
    from lionnb.testing.steps import Outcome, World, cancel_at_every_step

_WHERE = {
    "LoopbackServer": "server",
    "Outcome": "steps",
    "Reply": "replies",
    "Resources": "leaks",
    "Script": "replies",
    "World": "steps",
    "assert_no_leaks": "leaks",
    "calls_of": "scripted",
    "cancel_at_every_step": "steps",
    "leftover_tasks": "leaks",
    "no_leaks": "leaks",
    "person_or": "person",
    "scripted_model": "scripted",
}

__all__ = (
    "Gate",
    "LoopbackServer",
    "Outcome",
    "Reply",
    "Resources",
    "Script",
    "World",
    "assert_no_leaks",
    "calls_of",
    "cancel_at_every_step",
    "leftover_tasks",
    "no_leaks",
    "person_or",
    "scripted_model",
)


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
