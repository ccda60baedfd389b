"""The arrows that point up: who shows an object, and who keeps a turn, is found by name when it is needed.

Branches and legs know nothing of widgets, and a Branch nothing of the store; `lionnb.notebook` and `lionnb.recorder`
know both. An import of them from here would be a circle.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lionnb.turns.log import TurnRow

__all__ = ("keep", "mimebundle", "show")


def mimebundle(shown: Any, include: Any = None, exclude: Any = None) -> Any:
    """The mime bundle of *shown* (a Branch, a leg, a turn log): the live view, and a static twin in HTML and text."""
    return importlib.import_module("lionnb.notebook").mimebundle(shown, include=include, exclude=exclude)


def show(shown: Any) -> None:
    """Display *shown* in the current cell and remember where, so that its end can be shown there too."""
    importlib.import_module("lionnb.notebook").show(shown)


def keep(row: TurnRow) -> None:
    """Let a turn that ended become a row of the store. Returns at once, raises nothing."""
    importlib.import_module("lionnb.recorder").keep(row)
