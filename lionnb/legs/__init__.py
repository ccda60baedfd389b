"""Legs: background agent runs that a person can steer (ADR-0108)."""

from lionnb.legs.leg import Leg
from lionnb.legs.receipt import Receipt
from lionnb.legs.registry import legs, start_leg
from lionnb.legs.result import LegResult, LegTurn

__all__ = ("Leg", "LegResult", "LegTurn", "Receipt", "legs", "start_leg")
