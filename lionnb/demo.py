"""The main scene in a terminal: a leg works, a steer is queued, a continuation turn carries it.

Deterministic: the first answer stays unfinished until the steer is a row in the database, so nothing depends on time.
The store is in memory and the model is scripted: no key, no network, no file.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lionnb.branch import Branch
from lionnb.legs import Leg, start_leg
from lionnb.records import Fate, FeedEvent, RunStatus
from lionnb.store.store import Store
from lionnb.testing import Gate, scripted_model

__all__ = ("run_demo",)

STEER = "only sources after 2020"
ANSWERS = (
    "I found six surveys, from 1998 to 2024. The oldest one, from 1998, is the most cited, so I would begin there.",
    "Understood, only what came after 2020: four surveys are left, and the one from 2024 covers the most ground.",
)
PACE_S = 0.12  # seconds between two words


@dataclass
class _Board:
    """What is on the screen. Everything in it is shown as plain text, never as markup."""

    turns: OrderedDict[str, dict[str, str]] = field(default_factory=OrderedDict)
    steers: OrderedDict[str, dict[str, str]] = field(default_factory=OrderedDict)

    def take(self, event: FeedEvent) -> None:
        """One event of the Branch's log or of the leg."""
        if event.kind == "steer":
            self.steers[event.data["control_id"]] = {
                name: str(event.data[name]) for name in ("text", "chip", "sentence")
            }
        if event.turn_id is None:
            return
        turn = self.turns.setdefault(event.turn_id, {"phase": "active", "text": ""})
        if event.kind == "chunk":
            turn["text"] += event.data["text"]
        elif event.kind == "text" and event.data["role"] == "assistant":
            turn["text"] = event.data["text"]
        elif event.kind == "phase":
            turn["phase"] = event.data["phase"]
        elif event.kind == "end":
            turn["phase"] = event.data["outcome"]

    def render(self) -> Group:
        """The two tables as they stand."""
        turns = Table(title="turns of the leg", title_justify="left", expand=True)
        for name, ratio in (("turn", 2), ("phase", 2), ("what the model says", 10)):
            turns.add_column(name, ratio=ratio)
        for turn_id, turn in self.turns.items():
            turns.add_row(Text(turn_id[:8]), Text(turn["phase"]), Text(turn["text"]))
        steers = Table(title="steers", title_justify="left", expand=True)
        for name, ratio in (("message", 4), ("fate", 2), ("which means", 8)):
            steers.add_column(name, ratio=ratio)
        for steer in self.steers.values():
            steers.add_row(Text(steer["text"]), Text(steer["chip"], style="bold"), Text(steer["sentence"]))
        return Group(turns, steers)


async def _scene(store: Store, console: Console) -> bool:
    gate, board = Gate(), _Board()
    branch = Branch(chat_model=scripted_model(list(ANSWERS), gate=gate, pace_s=PACE_S), name="demo")
    with Live(board.render(), console=console, refresh_per_second=12) as live:

        def show(event: FeedEvent) -> None:
            board.take(event)
            live.update(board.render())

        branch.turns.listen(show, chunks=True)
        leg = start_leg(branch, "Survey the literature on turn-taking.", name="demo", timeout_s=60, store=store)
        leg.feed.listen(show)
        await gate.reached()  # the first answer is all but finished
        receipt = leg.steer(STEER, by="you")
        await asyncio.sleep(1.5)  # for the eye: the turn goes on, the steer is queued
        gate.open()
        result = await leg
        await asyncio.sleep(0)  # the leg's last line reaches the board
    applied = receipt.fate is Fate.APPLIED and result.status is RunStatus.COMPLETED
    _say(console, leg, applied)
    return applied


def _say(console: Console, leg: Leg, applied: bool) -> None:
    receipt = leg.receipts[0]
    console.print(Text(f"\nThe steer was {receipt.sentence}."))
    console.print(Text("Next: `lionnb lab` opens the notebooks." if applied else "That is not what should happen."))


def run_demo(console: Console | None = None) -> int:
    """Run the scene and return the exit status: 0 only if the steer was applied."""
    store = Store(":memory:")
    try:
        return 0 if asyncio.run(_scene(store, console or Console())) else 1
    finally:
        store.close()
