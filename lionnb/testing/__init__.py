"""What tests and notebooks stand on: scripted providers with gates, cancellation at every step, leak checks.

Shipped, because notebooks use it and because code built on lionnb wants to be tested the same way. Needs no
pytest, no network and no key. Loaded lazily: lionagi is imported when a model is made, not before.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lionnb.testing.gate import Gate

if TYPE_CHECKING:
    from lionnb.testing.replies import Reply, Script
    from lionnb.testing.scripted import calls_of, scripted_model

_WHERE = {
    "Reply": "replies",
    "Script": "replies",
    "calls_of": "scripted",
    "scripted_model": "scripted",
}

__all__ = ("Gate", "Reply", "Script", "calls_of", "scripted_model")


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
