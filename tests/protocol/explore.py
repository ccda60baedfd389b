"""Breadth-first search over every interleaving: what can be broken, by the shortest way, and where it can all end.

States are kept once, whatever the order of their rows: two rows that look alike have the same future. So a way is found
between kinds of states, and `Found.way` walks it again with the rows in their places.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.protocol.model import Protocol
from tests.protocol.state import GONE, OFF, State

__all__ = ("Found", "explore")


@dataclass
class Found:
    """What a search has seen."""

    protocol: Protocol
    states: int = 0
    steps: int = 0
    broken: dict[str, list[State]] = field(default_factory=dict)  # invariant -> the states on the shortest way there
    fates: set[tuple[str, bool]] = field(default_factory=set)  # (record, delivered), when no leg is left

    def way(self, invariant: str) -> str:
        """The shortest way to break *invariant*, told step by step, with what each did to the rows."""
        kinds = self.broken[invariant]
        here, lines = self.protocol.initial(), [invariant]
        for n, kind in enumerate(kinds[1:], 1):
            last = n == len(kinds) - 1
            label, there = next(
                (label, there)
                for label, there, why in self.protocol.steps(here)
                if canonical(there) == kind
                and (not last or invariant in why or invariant in self.protocol.broken(there))
            )
            lines.append(f"{n:4}. {label}{_changes(here, there)}")
            here = there
        return "\n".join(lines)


def canonical(s: State) -> State:
    """The same state with its rows sorted."""
    return State(s.run, s.legs, s.env, tuple(sorted(s.rows)))


def explore(protocol: Protocol, *, limit: int | None = None) -> Found:
    """Visit every state that can be reached; with *limit*, stop after so many."""
    found, start = Found(protocol), canonical(protocol.initial())
    parents: dict[State, State | None] = {start: None}
    shared: dict[object, object] = {}
    level = [start]
    with _no_collector():
        while level and (limit is None or len(parents) < limit):
            following = []
            for s in level:
                _note_fates(found, s)
                for _, there, why in protocol.steps(s):
                    found.steps += 1
                    kind = State(*(shared.setdefault(part, part) for part in canonical(there)))
                    if kind not in parents:
                        parents[kind] = s
                        following.append(kind)
                        why += protocol.broken(kind)
                    for invariant in why:
                        if invariant not in found.broken:
                            found.broken[invariant] = [*_path(parents, s), kind]
            level = following
    found.states = len(parents)
    return found


def _path(parents: dict[State, State | None], s: State | None) -> list[State]:
    path = []
    while s is not None:
        path.append(s)
        s = parents[s]
    return path[::-1]


def _note_fates(found: Found, s: State) -> None:
    if all(leg.pc in GONE or leg.pc == OFF for leg in s.legs):
        found.fates.update((row.rec, row.asked > 0) for row in s.rows)


def _changes(before: State, after: State) -> str:
    told = []
    for i, (was, now) in enumerate(zip(before.rows, after.rows, strict=True)):
        if now.asked > was.asked:
            told.append(f"m{i} reaches the model")
        if now.rec != was.rec:
            told.append(f"m{i} {was.rec} → {now.rec}")
    return f"   [{'; '.join(told)}]" if told else ""


@contextmanager
def _no_collector() -> Iterator[None]:
    """Millions of tuples without a cycle: the collector would only walk through them."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
