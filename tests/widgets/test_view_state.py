"""The state of a view: what it tells, that it is bounded, and that the page computes the same."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from lionnb.records import FeedEvent
from lionnb.widgets.lists import entry
from lionnb.widgets.state import fresh, is_live, reduce
from lionnb.widgets.wire import FIELDS, encode
from tests.widgets import scenes

FIXTURES = Path(__file__).parents[1] / "js" / "fixtures"
SMALL = {"entries": 12, "text": 400, "live": 40, "signals": 16, "lanes": 4, "steers": 3, "waiters": 3, "tools": 3}


def state_of(events: Any, **limits: int) -> dict[str, Any]:
    state = fresh(uid="u", title="t", can_steer=True, limits=limits)
    for event in events:
        reduce(state, encode(event))
    return state


def texts(state: dict[str, Any], kind: str = "text") -> list[Any]:
    return [e["text"] for e in state["entries"]["items"] if e["kind"] == kind]


def story(*more: Any) -> scenes.Story:
    s = scenes.Story()
    return s("start", "T", operation="operate", model="m", instruction="Go", waited_s=0.0)


# ---------------------------------------------------------------------- the page computes the same
@pytest.mark.parametrize("name", ["working_leg", "finished_leg", "failed_turn"])
def test_both_reducers_reach_the_state_that_is_on_file(name: str, node: Any) -> None:
    """`python -m tests.widgets.test_view_state` writes the files anew; the diff is what a change means."""
    kept = json.loads((FIXTURES / f"{name}.json").read_text())
    assert kept["events"] == [encode(e) for e in getattr(scenes, name)()]
    assert state_of(getattr(scenes, name)()) == kept["state"]
    assert node("reduce.mjs")({"state": kept["start"], "events": kept["events"]}) == kept["state"]


def _random_event(rng: random.Random, i: int) -> FeedEvent:
    turn = rng.choice(["T1", "T1", "T1", "T1", "T2", None, "__proto__"])
    word = lambda: rng.choice(["a", "bb", "", "constructor", "__proto__", "é😀" * rng.randint(0, 9), *scenes.HOSTILE])  # noqa: E731
    number = lambda: rng.choice([None, 0, 1, 2.5, -1, i / 7, True, "x"])  # noqa: E731
    data: dict[str, Any] = {}
    kind = rng.choice([*FIELDS, *["chunk"] * 25, "signal", "start", "end", "a new kind"])
    for key in FIELDS.get(kind, {}):
        listed = [{"name": word(), "reason": word(), "tokens": number(), "text": word()}, word()]
        data[key] = rng.choice(
            [word(), word(), number(), listed if key in ("blocks", "failed", "degraded") else word()]
        )
    choices = {"role": ["user", "assistant"], "fate": ["stored", "taken", "not consumed", "pending", "applied", "delivering"],
               "phase": ["finalizing", "closed"], "id": ["1", "2", "3"], "operation": ["operate", "chat"],
               "task": [None, "A", "B"], "control_id": ["c1", "c2", "c3", "c4", None], "status": ["running", "failed"]}  # fmt: skip
    for key in data.keys() & choices.keys():
        data[key] = rng.choice(choices[key])
    return FeedEvent(i, scenes.T0 + i / 3 - rng.random(), kind, turn, data)


@pytest.mark.parametrize("seed", range(12))
def test_any_events_lead_both_reducers_to_one_state(seed: int, node: Any) -> None:
    rng = random.Random(seed)
    events = [encode(_random_event(rng, i)) for i in range(400)]
    limits = rng.choice([SMALL, {}])
    start = fresh(uid="u", title="t", can_steer=True, limits=limits)
    theirs = node("reduce.mjs")({"state": start, "events": events})
    for event in events:
        reduce(start, event)
    assert start == theirs


# ---------------------------------------------------------------------- what it tells
def test_the_final_text_replaces_the_text_that_came_in_pieces() -> None:
    state = state_of(
        story()("chunk", "T", text="Hel")("chunk", "T", text="lo")("text", "T", role="assistant", text="Hello.", id="1")
    )
    assert texts(state) == ["Go", "Hello."]
    assert state["live"] is None and "pieces" not in state["entries"]["items"][-1]


def test_text_that_the_turn_did_not_finish_stays_and_is_called_a_part() -> None:
    last = state_of(story()("chunk", "T", text="Hel")("end", "T", outcome="failed", error="E"))["entries"]["items"][-2]
    assert (last["pieces"], last["live"], last["part"]) == ([[3, "Hel"]], False, True)


def test_of_a_text_that_is_still_coming_the_newest_is_kept_and_the_rest_counted() -> None:
    s = story()
    for i in range(100):
        s("chunk", "T", text=f"{i:04}")
    item = state_of(s, live=40)["entries"]["items"][-1]
    assert "".join(p[1] for p in item["pieces"]) == "".join(f"{i:04}" for i in range(90, 100))
    assert item["cut"] == 360


def test_the_instruction_is_told_once_though_two_events_carry_it() -> None:
    once = state_of(story()("text", "T", role="user", text="Context: x\nGo", id="1"))
    assert texts(once) == ["Context: x\nGo"]
    other = state_of(story()("text", "T", role="user", text="Something else", id="1"))
    assert texts(other) == ["Go", "Something else"]


def test_a_result_finds_its_call_and_one_without_a_call_is_shown_too() -> None:
    s = story()("tool_call", "T", id="1", name="f", arguments="{}")("tool_call", "T", id="2", name="g", arguments="{}")
    s("tool_result", "T", id="2", name="g", output="two", error=None)(
        "tool_result", "T", id="9", name="h", output="", error="no"
    )
    tools = [
        (e["name"], e["args"], e.get("output"), e["error"])
        for e in state_of(s)["entries"]["items"]
        if e["kind"] == "tool"
    ]
    assert tools == [("f", "{}", None, None), ("g", "{}", "two", None), ("h", None, "", "no")]


def test_a_failed_result_whose_error_is_a_flag_shows_its_output_as_the_error() -> None:
    s = story()("tool_call", "T", id="1", name="f", arguments="{}")(
        "tool_result", "T", id="1", name="f", output="boom", error=True
    )
    s("tool_call", "T", id="2", name="f", arguments="{}")(
        "tool_result", "T", id="2", name="f", output="fine", error=False
    )
    tools = [(e["output"], e["error"]) for e in state_of(s)["entries"]["items"] if e["kind"] == "tool"]
    assert tools == [("", "boom"), ("fine", None)]


def test_waiters_leave_in_arrival_order_and_a_cancelled_wait_by_its_task() -> None:
    s = scenes.Story()
    for task in "ABC":
        s("wait", None, operation="chat", task=task, behind="turn x")
    s("end", None, operation="chat", task="B", outcome="cancelled while waiting")
    s("start", "T", operation="chat", model="m", instruction="", waited_s=2.0)
    state = state_of(s)
    assert [w["task"] for w in state["waiters"]] == ["C"]
    assert [(lane["turn"], lane["outcome"]) for lane in state["lanes"]["items"]] == [
        ("T", None), (None, "cancelled while waiting"), (None, None)]  # fmt: skip


def test_a_control_keeps_one_line_whose_fate_changes() -> None:
    s = story()("control", "T", directive="cancel", reason="r", fate="stored")
    s("control", "T", directive="break", reason="r", fate="refused")(
        "control", "T", directive="cancel", fate="not consumed"
    )
    fates = [(e["directive"], e["fate"]) for e in state_of(s)["entries"]["items"] if e["kind"] == "control"]
    assert fates == [("cancel", "not consumed"), ("break", "refused")]


def test_a_steer_is_one_row_and_stands_in_the_transcript_where_it_landed() -> None:
    state = state_of(scenes.working_leg())
    assert [s["chip"] for s in state["steers"]["items"]] == [
        "applied",
        "not delivered",
        "needs you",
        "delivering",
        "queued",
    ]
    landed = [e for e in state["entries"]["items"] if e["kind"] == "steer"]
    assert [e["control_id"] for e in landed] == ["c1", "c3", "c4"]
    assert landed[0]["chip"] == "applied"


def test_unknown_tokens_stay_unknown_and_known_ones_add_up() -> None:
    assert state_of(scenes.failed_turn())["tokens"] == {"input": None, "output": None}
    assert state_of(scenes.finished_leg())["tokens"] == {"input": 5961, "output": 499}


def test_live_is_a_turn_a_wait_or_a_running_leg() -> None:
    assert not is_live(state_of([]))
    assert is_live(state_of(story()))
    assert not is_live(state_of(story()("end", "T", outcome="completed")))
    assert is_live(state_of(scenes.Story()("wait", None, operation="x", task="A", behind="b")))
    assert is_live(state_of(scenes.Story().leg())) and not is_live(state_of(scenes.finished_leg()))


# ---------------------------------------------------------------------- bounds
def test_every_list_is_bounded_and_counts_what_fell_out() -> None:
    s = scenes.Story()
    for i in range(60):
        s("wait", None, operation=f"o{i}", task=f"w{i}", behind="b")(
            "start", f"T{i}", operation="x", task="none", model="m", instruction="hello"
        )
        s("tool_call", f"T{i}", id=f"{i}", name="f", arguments="")("signal", f"T{i}", name="S")
        s.steer(i, "pending", "queued", "waits")
    state = state_of(s, **SMALL)
    kept = {name: len(state[name]["items"]) for name in ("entries", "lanes", "signals", "steers")}
    assert kept["entries"] == 12 and kept["lanes"] == 4 and kept["steers"] == 3 and 16 <= kept["signals"] <= 18
    assert state["signals"]["first"] + kept["signals"] == 60 and state["steers"]["first"] == 57
    assert len(state["waiters"]) == 3 and len(state["tools"]) == 3


def test_the_characters_of_a_transcript_are_bounded_too() -> None:
    s = scenes.Story()
    for i in range(20):
        s("text", None, role="assistant", text="x" * 100, id=str(i))
    state = state_of(s, text=450)
    assert state["entries"]["text"] == 400 == sum(e["size"] for e in state["entries"]["items"])
    assert entry(state, 15) is None and entry(state, 16) is not None


if __name__ == "__main__":
    FIXTURES.mkdir(exist_ok=True)
    for scene in ("working_leg", "finished_leg", "failed_turn"):
        told = getattr(scenes, scene)()
        start = fresh(uid="u", title="t", can_steer=True)
        body = {"start": start, "events": [encode(e) for e in told], "state": state_of(told)}
        (FIXTURES / f"{scene}.json").write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n")
