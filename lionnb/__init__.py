"""lionnb: turn-aware lionagi Branches, background legs, and steering for notebooks.

    branch = lionnb.Branch(chat_model=model)       # calls on it queue instead of corrupting each other
    leg = lionnb.start_leg(branch, "Survey X")     # runs in the background, shows itself
    leg.steer("only sources after 2020")           # lands as a continuation turn at the next turn boundary
    await leg                                      # the result
    lionnb.frames.controls(leg)                    # what became of every steer

This module is the table of contents. Everything is imported when it is first used, so that ``import lionnb`` loads
neither lionagi nor pandas nor ipywidgets nor SQLAlchemy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lionnb import errors, frames, testing
    from lionnb.branch import Branch, after_turn, wrap
    from lionnb.history import mend
    from lionnb.legs import Leg, LegResult, Receipt, legs, resolve, resume, settle, start_leg, withdraw
    from lionnb.session import Session, wrap_session
    from lionnb.store import default_store

__version__ = "0.1.0"

__all__ = (
    "Branch",
    "Leg",
    "LegResult",
    "Receipt",
    "Session",
    "after_turn",
    "default_store",
    "errors",
    "frames",
    "legs",
    "mend",
    "resolve",
    "resume",
    "settle",
    "start_leg",
    "testing",
    "withdraw",
    "wrap",
    "wrap_session",
)

_MODULES = frozenset({"errors", "frames", "testing"})
_HOME = {
    "Branch": "branch",
    "Leg": "legs",
    "LegResult": "legs",
    "Receipt": "legs",
    "Session": "session",
    "after_turn": "branch",
    "default_store": "store",
    "legs": "legs",
    "mend": "history",
    "resolve": "legs",
    "resume": "legs",
    "settle": "legs",
    "start_leg": "legs",
    "withdraw": "legs",
    "wrap": "branch",
    "wrap_session": "session",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"lionnb.{name}")
    if name in _HOME:
        value = getattr(importlib.import_module(f"lionnb.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'lionnb' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
