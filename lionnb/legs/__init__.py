"""Legs: background agent runs that a person can steer (ADR-0108)."""

import sys
from types import ModuleType

from lionnb.legs.leg import Leg
from lionnb.legs.persons import resolve, withdraw
from lionnb.legs.receipt import Receipt
from lionnb.legs.registry import legs, start_leg
from lionnb.legs.result import LegResult, LegTurn
from lionnb.legs.resumption import resume
from lionnb.legs.settling import settle

__all__ = ("Leg", "LegResult", "LegTurn", "Receipt", "legs", "resolve", "resume", "settle", "start_leg", "withdraw")


class _Package(ModuleType):
    """The import system binds ``lionnb.legs`` to this package whatever `lionnb` says; ``lionnb.legs()`` still works."""

    def __call__(self) -> tuple[Leg, ...]:
        return legs()


sys.modules[__name__].__class__ = _Package
