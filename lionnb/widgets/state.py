"""What a view knows, as one JSON object, and the function that adds an event to it. Pure: no clock, no I/O.

``static/state.js`` is the same function in the browser's language (and ``static/lists.js`` the same as `lists`). Both
start from the same object and must stay equal after every event, because a page that is reloaded goes on from the
kernel's copy: a differential test feeds random events to both. Whoever changes one changes the other.

The object is changed in place (a copy of 2,000 entries an event would make the view's cost grow with its history)
and is bounded: entries, signals, lanes and steers fall out at the old end and are counted. ``first`` of a list is how
many fell out, so that number ``k`` is at ``items[k - first]``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lionnb.widgets.lists import (
    State,
    add_lane,
    busy,
    entry,
    lane_at,
    lane_of,
    push,
    resize,
    still,
    take_waiter,
)
from lionnb.widgets.wire import Event

__all__ = ("LIMITS", "State", "fresh", "is_live", "reduce")

LIMITS = {
    "entries": 2_000,  # lines of the transcript
    "text": 2_000_000,  # characters of the transcript, all lines together
    "live": 20_000,  # characters of the text that is still coming; the newest are kept
    "signals": 10_000,
    "lanes": 500,  # turns in the timeline
    "steers": 500,
    "waiters": 200,
    "tools": 200,  # calls without a result yet
}

_LANDED = ("delivering", "applied", "resolved", "never_reported")


def fresh(*, uid: str, title: str, can_steer: bool, beats: bool = True, limits: dict[str, int] | None = None) -> State:
    """The state before the first event. *beats*: the kernel sends signs of life, so their absence means something."""
    return {
        "n": 0,  # events added so far, which is the number of the next one
        "uid": uid,
        "title": title,
        "can_steer": can_steer,
        "beats": beats,
        "limits": {**LIMITS, **(limits or {})},
        "at": 0,
        "run": None,
        "beat": None,
        "turn": None,
        "control": None,  # entry of the directive that is stored and not yet taken
        "tokens": {"input": None, "output": None},
        "waiters": [],
        "lanes": {"first": 0, "items": []},
        "entries": {"first": 0, "text": 0, "items": []},
        "signals": {"first": 0, "items": []},
        "steers": {"first": 0, "items": []},
        "live": None,  # the entry whose text is still coming
        "tools": [],  # [call id, entry] of calls without a result
        "blocks": None,
    }


def reduce(state: State, event: Event) -> None:
    """Add one wire event. Whatever came before, it does not raise for an event that `wire.encode` made."""
    state["n"] += 1
    state["at"] = max(state["at"], event["at"])
    _ON[event["kind"]](state, event, event["data"])


def is_live(state: State) -> bool:
    """Whether something goes on in it: a turn, a wait, or a leg that runs."""
    run = state["run"]
    return state["turn"] is not None or bool(state["waiters"]) or (run is not None and run["status"] == "running")


# ---------------------------------------------------------------------- a turn's life
def _on_wait(state: State, event: Event, data: dict[str, Any]) -> None:
    lane = add_lane(state, event["turn"], data["operation"], event["at"], None)
    state["waiters"].append({"turn": event["turn"], "at": event["at"], "lane": lane, **data})
    if len(state["waiters"]) > state["limits"]["waiters"]:
        state["waiters"].pop(0)


def _on_start(state: State, event: Event, data: dict[str, Any]) -> None:
    at, turn = event["at"], event["turn"]
    waiter = take_waiter(state, turn, data)
    lane = None if waiter is None else lane_at(state, waiter["lane"])
    if lane is None:
        add_lane(state, turn, data["operation"], at - (data["waited_s"] or 0), at)
    else:
        lane["turn"], lane["start_at"] = turn, at
    size = event["size"]
    push(
        state,
        {**event, "size": 0},
        "start",
        operation=data["operation"],
        model=data["model"],
        waited_s=data["waited_s"],
    )
    asked = None
    if data["instruction"]:
        text = {"text": data["instruction"], "cut": data["instruction_cut"], "id": None}
        asked = push(state, {**event, "size": size}, "text", role="user", live=False, **text)
    state["turn"] = {
        "id": turn, "operation": data["operation"], "model": data["model"], "phase": "active", "started_at": at,
        "waited_s": data["waited_s"], "quiet_at": at, "outcome": None, "asked": asked,
    }  # fmt: skip


def _on_phase(state: State, event: Event, data: dict[str, Any]) -> None:
    turn = state["turn"]
    if turn is not None and turn["id"] == event["turn"]:
        turn["phase"] = data["phase"]
        if data["phase"] == "closed":
            state["turn"] = None
    lane = lane_at(state, lane_of(state, event["turn"]))
    if lane is not None and data["phase"] == "finalizing":
        lane["fin_at"] = event["at"]


def _on_end(state: State, event: Event, data: dict[str, Any]) -> None:
    turn = event["turn"]
    if turn is None:  # a wait that never became a turn
        waiter = take_waiter(state, None, data)
        lane = None if waiter is None else lane_at(state, waiter["lane"])
    else:
        lane = lane_at(state, lane_of(state, turn))
        if state["turn"] is not None and state["turn"]["id"] == turn:
            state["turn"] = None
        still(state, turn)
        state["tools"] = []
    if lane is not None:
        lane["end_at"], lane["outcome"] = event["at"], data["outcome"]
    for key in ("input", "output"):
        spent = data[f"{key}_tokens"]
        if spent is not None:
            state["tokens"][key] = (state["tokens"][key] or 0) + spent
    kept = ("outcome", "operation", "error", "error_cut", "duration_s", "input_tokens", "output_tokens")
    push(state, event, "end", **{key: data[key] for key in kept})


# ---------------------------------------------------------------------- what is inside it
def _on_text(state: State, event: Event, data: dict[str, Any]) -> None:
    busy(state, event)
    turn = state["turn"]
    item = None
    if data["role"] == "assistant":
        item = entry(state, state["live"])
        if item is not None and item["turn"] == event["turn"]:
            state["live"] = None
        else:
            item = None
    elif data["role"] == "user" and turn is not None and turn["id"] == event["turn"]:
        asked = entry(state, turn["asked"])
        turn["asked"] = None
        if asked is not None and asked["text"] in data["text"]:
            item = asked  # the message that carries the instruction which the start of the turn told already
    if item is None:
        fields = {"text": data["text"], "cut": data["text_cut"], "id": data["id"]}
        push(state, event, "text", role=data["role"], live=False, **fields)
        return
    item.pop("pieces", None)
    item["text"], item["cut"], item["id"], item["live"] = data["text"], data["text_cut"], data["id"], False
    resize(state, item, event["size"])


def _on_chunk(state: State, event: Event, data: dict[str, Any]) -> None:
    busy(state, event)
    item = entry(state, state["live"])
    if item is None or item["turn"] != event["turn"]:
        if item is not None:
            still(state, item["turn"])
        fields: dict[str, Any] = {"text": "", "cut": 0, "id": None, "pieces": []}
        k = push(state, {**event, "size": 0}, "text", role="assistant", live=True, **fields)
        state["live"] = k
        item = entry(state, k)
        assert item is not None
    item["pieces"].append([event["size"], data["text"]])
    item["cut"] += data["text_cut"]
    size = item["size"] + event["size"]
    while size > state["limits"]["live"] and len(item["pieces"]) > 1:
        gone = item["pieces"].pop(0)[0]
        size -= gone
        item["cut"] += gone
    resize(state, item, size)


def _on_tool_call(state: State, event: Event, data: dict[str, Any]) -> None:
    busy(state, event)
    fields = {"call": data["id"], "name": data["name"], "args": data["arguments"], "args_cut": data["arguments_cut"]}
    k = push(state, event, "tool", **fields, done_at=None, output=None, output_cut=0, error=None, error_cut=0)
    state["tools"].append([data["id"], k])
    if len(state["tools"]) > state["limits"]["tools"]:
        state["tools"].pop(0)


def _on_tool_result(state: State, event: Event, data: dict[str, Any]) -> None:
    busy(state, event)
    item = None
    for i, (call, k) in enumerate(state["tools"]):
        if call == data["id"]:
            state["tools"].pop(i)
            item = entry(state, k)
            break
    if item is None:
        fields = {"call": data["id"], "name": data["name"], "args": None, "args_cut": 0}
        item = entry(state, push(state, {**event, "size": 0}, "tool", **fields))
        assert item is not None
    item["done_at"] = event["at"]
    for key in ("output", "output_cut", "error", "error_cut"):
        item[key] = data[key]
    resize(state, item, item["size"] + event["size"])


def _on_blocks(state: State, event: Event, data: dict[str, Any]) -> None:
    before = state["blocks"]
    gather = before["gather"] + 1 if before is not None and before["turn"] == event["turn"] else 1
    state["blocks"] = {"turn": event["turn"], "at": event["at"], "gather": gather, **data}


def _on_control(state: State, event: Event, data: dict[str, Any]) -> None:
    item = entry(state, state["control"])
    if item is not None and item["turn"] == event["turn"] and data["fate"] in ("taken", "not consumed"):
        item["fate"], state["control"] = data["fate"], None
        return
    k = push(state, event, "control", **data)
    if data["fate"] == "stored":
        state["control"] = k


def _on_signal(state: State, event: Event, data: dict[str, Any]) -> None:
    signals, limit = state["signals"], state["limits"]["signals"]
    signals["items"].append([event["at"], lane_of(state, event["turn"]), data["name"]])
    extra = len(signals["items"]) - limit
    if extra > limit // 8:  # in slabs: dropping one at a time would move the whole list each time
        del signals["items"][:extra]
        signals["first"] += extra


def _on_warning(state: State, event: Event, data: dict[str, Any]) -> None:
    push(state, event, "warning", text=data["text"], cut=data["text_cut"])


def _on_line(state: State, event: Event, data: dict[str, Any]) -> None:
    push(state, event, "line", name=data["name"], text=data["text"], cut=data["text_cut"])


# ---------------------------------------------------------------------- a leg's own
def _on_steer(state: State, event: Event, data: dict[str, Any]) -> None:
    steers = state["steers"]
    old = None
    for item in reversed(steers["items"]):
        if data["control_id"] is not None and item["control_id"] == data["control_id"]:
            old = item
            break
    if old is None:
        old = {"key": data["control_id"] or f"refused-{state['n']}", "entry": None}
        steers["items"].append(old)
        if len(steers["items"]) > state["limits"]["steers"]:
            steers["items"].pop(0)
            steers["first"] += 1
    old.update(data)
    shown = {key: data[key] for key in ("control_id", "text", "text_cut", "chip", "sentence", "created_by")}
    item = entry(state, old["entry"])
    if item is not None:
        item.update(shown)
    elif data["fate"] in _LANDED and old["entry"] is None:
        old["entry"] = push(state, event, "steer", **shown)


def _on_leg(state: State, event: Event, data: dict[str, Any]) -> None:
    before = state["run"]
    state["run"] = data
    if data["status"] != "running" and (before is None or before["status"] != data["status"]):
        push(state, event, "leg", status=data["status"], sentence=data["sentence"])


def _on_beat(state: State, event: Event, data: dict[str, Any]) -> None:
    state["beat"] = {"at": event["at"], "text": data["text"]}


_ON: dict[str, Callable[[State, Event, dict[str, Any]], None]] = {
    "wait": _on_wait,
    "start": _on_start,
    "phase": _on_phase,
    "end": _on_end,
    "text": _on_text,
    "chunk": _on_chunk,
    "tool_call": _on_tool_call,
    "tool_result": _on_tool_result,
    "blocks": _on_blocks,
    "control": _on_control,
    "signal": _on_signal,
    "warning": _on_warning,
    "line": _on_line,
    "steer": _on_steer,
    "leg": _on_leg,
    "beat": _on_beat,
}
