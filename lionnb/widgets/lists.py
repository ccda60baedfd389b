"""The bounded lists of a view's state, and what finds its way in them. Pure; the same as ``static/lists.js``."""

from __future__ import annotations

from typing import Any

from lionnb.widgets.wire import Event

__all__ = ("State", "add_lane", "busy", "entry", "lane_at", "lane_of", "push", "resize", "still", "take_waiter")

State = dict[str, Any]


def entry(state: State, k: int | None) -> dict[str, Any] | None:
    """Entry *k*; ``None`` when it has fallen out, or for ``None``."""
    entries = state["entries"]
    return None if k is None or k < entries["first"] else entries["items"][k - entries["first"]]


def push(state: State, event: Event, kind: str, /, **fields: Any) -> int:
    """Add an entry; returns its number. The oldest fall out."""
    entries, limits = state["entries"], state["limits"]
    k: int = entries["first"] + len(entries["items"])
    entries["items"].append(
        {"k": k, "at": event["at"], "kind": kind, "turn": event["turn"], "size": event["size"], **fields}
    )
    entries["text"] += event["size"]
    items = entries["items"]
    while len(items) > limits["entries"] or (entries["text"] > limits["text"] and len(items) > 1):
        entries["text"] -= items.pop(0)["size"]
        entries["first"] += 1
    return k


def resize(state: State, item: dict[str, Any], size: int) -> None:
    """An entry now holds this many characters."""
    state["entries"]["text"] += size - item["size"]
    item["size"] = size


def lane_of(state: State, turn: str | None) -> int:
    """The number of the turn's lane; -1 when it has none (any more)."""
    lanes = state["lanes"]
    for i in range(len(lanes["items"]) - 1, -1, -1):  # the newest first: nearly always the last one
        if turn is not None and lanes["items"][i]["turn"] == turn:
            return int(lanes["first"]) + i
    return -1


def lane_at(state: State, no: int) -> dict[str, Any] | None:
    """Lane *no*; ``None`` when it has fallen out, or for -1."""
    lanes = state["lanes"]
    return lanes["items"][no - lanes["first"]] if no >= lanes["first"] else None


def add_lane(state: State, turn: str | None, operation: str, wait_at: float, start_at: float | None) -> int:
    """Add a lane; returns its number. The oldest fall out."""
    lanes = state["lanes"]
    lanes["items"].append(
        {
            "turn": turn, "operation": operation, "wait_at": wait_at, "start_at": start_at,
            "fin_at": None, "end_at": None, "outcome": None,
        }
    )  # fmt: skip
    if len(lanes["items"]) > state["limits"]["lanes"]:
        lanes["items"].pop(0)
        lanes["first"] += 1
    return int(lanes["first"]) + len(lanes["items"]) - 1


def take_waiter(state: State, turn: str | None, data: dict[str, Any]) -> dict[str, Any] | None:
    """The waiter that an entry or an ended wait belongs to.

    The feed names a waiter by its task at most. Waiters enter in arrival order, so the first that fits is the one.
    """

    def fits(waiter: dict[str, Any]) -> bool:
        if turn is not None and waiter["turn"] is not None:
            return bool(waiter["turn"] == turn)
        if data["task"] is not None and waiter["task"] is not None and data["task"] != waiter["task"]:
            return False
        return data["operation"] is None or data["operation"] == waiter["operation"]

    for i, waiter in enumerate(state["waiters"]):
        if fits(waiter):
            taken: dict[str, Any] = state["waiters"].pop(i)
            return taken
    return None


def still(state: State, turn: str | None) -> None:
    """The text that was coming will not come any further: what is there is a part."""
    item = entry(state, state["live"])
    if item is not None and item["turn"] == turn:
        item["live"], item["part"] = False, True
        state["live"] = None


def busy(state: State, event: Event) -> None:
    """Note that something of the turn came just now: it is not quiet."""
    if state["turn"] is not None and state["turn"]["id"] == event["turn"]:
        state["turn"]["quiet_at"] = event["at"]
