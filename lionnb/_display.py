"""The one arrow that points up: an object shows itself through the composition root, found by name when displayed.

Branches and legs know nothing of widgets; `lionnb.notebook` knows both. An import of it from here would be a circle.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ("mimebundle", "show")


def mimebundle(shown: Any, include: Any = None, exclude: Any = None) -> Any:
    """The mime bundle of *shown* (a Branch, a leg, a turn log): the live view, and a static twin in HTML and text."""
    return importlib.import_module("lionnb.notebook").mimebundle(shown, include=include, exclude=exclude)


def show(shown: Any) -> None:
    """Display *shown* in the current cell and remember where, so that its end can be shown there too."""
    importlib.import_module("lionnb.notebook").show(shown)
