"""The live views. They take records and feed events, and give what a person presses to a callback; they never see the
store, a leg or a Branch.

Nothing here is loaded by ``import lionnb``, and loading it needs no kernel: outside of one a view keeps its state and
has its static form, and its messages go nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lionnb.widgets.turn_view import TurnView

__all__ = ("TurnView",)


def __getattr__(name: str) -> Any:
    if name == "TurnView":  # late: the plain parts (reducer, static form) work without anywidget's machinery
        from lionnb.widgets.turn_view import TurnView

        return TurnView
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
