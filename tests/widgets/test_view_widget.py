"""`TurnView` without a kernel: threads, batches, answers, signs of life.

Of the reported cases of widgets: f01 and f21 are in test_view_page and test_view_in_lab, f13 and f19 in test_view_twin,
f17 is the bundle below, f23 is that nothing here renders Markdown or HTML of others. f03 (prints under the wrong cell)
cannot happen to a view: it prints nothing. f15 is about styled tables, which are not widgets.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from lionnb.records import FeedEvent
from lionnb.widgets import TurnView, turn_view
from tests.widgets import scenes


def event(i: int = 0, kind: str = "warning", **data: Any) -> FeedEvent:
    return FeedEvent(i, 1.0 + i, kind, None, data or {"text": str(i)})


class Told(list[dict[str, Any]]):
    """What a view sent, and from which thread; `want` waits for a message without sleeping."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self.came: Callable[[], None] = lambda: None

    def __call__(self, message: dict[str, Any], buffers: Any = None) -> None:
        json.dumps(message, allow_nan=False)
        self.append(message)
        self.threads.append(threading.get_ident())
        self.came()

    async def want(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        loop, more = asyncio.get_running_loop(), asyncio.Event()
        self.came = lambda: loop.call_soon_threadsafe(more.set)
        async with asyncio.timeout(10):
            while not (found := [m for m in self if fits(m)]):
                more.clear()
                await more.wait()
        self.came = lambda: None
        return found[0]


@pytest.fixture
def view(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: list[TurnView] = []

    def make(on_intent: Any = lambda intent, reply: None, **how: Any) -> tuple[TurnView, Told]:
        told = Told()
        one = TurnView(**{"title": "t", "can_steer": True, "on_intent": on_intent, "beat_s": None, **how})
        monkeypatch.setattr(one, "send", told)
        made.append(one)
        return one, told

    yield make
    for one in made:
        one.close()


def in_thread(fn: Callable[[], Any]) -> int:
    """Run *fn* in another thread, as a subshell would; returns that thread's id."""
    ids: list[int] = []
    thread = threading.Thread(target=lambda: (ids.append(threading.get_ident()), fn()))
    thread.start()
    thread.join()
    return ids[0]


# ---------------------------------------------------------------------- towards the page
def test_without_a_loop_an_event_is_shown_at_once(view: Any) -> None:
    one, told = view()
    one.push(event(0))
    one.push(event(1))
    assert [(m["i0"], len(m["ev"])) for m in told] == [(0, 1), (1, 1)]


async def test_in_a_loop_events_travel_in_batches(view: Any) -> None:
    one, told = view()
    for i in range(50):
        one.push(event(i))
    assert told == []
    batch = await told.want(lambda m: "ev" in m)
    assert (batch["i0"], len(batch["ev"]), len(told)) == (0, 50, 1)
    one.push(event(50))
    one.flush()
    one.flush()
    assert [m["i0"] for m in told] == [0, 50]


def test_a_second_asyncio_run_gets_timers_of_its_own(view: Any) -> None:
    one, told = view()

    async def say(i: int, *, wait: bool) -> None:
        one.push(event(i))
        if wait:
            await told.want(lambda m: "ev" in m)

    asyncio.run(say(0, wait=False))  # ends before its batch is due
    asyncio.run(say(1, wait=True))
    assert [len(m["ev"]) for m in told] == [2]


async def test_a_push_from_a_thread_of_a_thread_arrives_too(view: Any) -> None:
    """f05: events travel as values, not as captured output."""
    one, told = view()
    await asyncio.to_thread(in_thread, lambda: one.push(event(0, "warning", text="deep")))
    assert (await told.want(lambda m: "ev" in m))["ev"][0]["data"]["text"] == "deep"


async def test_a_push_from_another_thread_hands_itself_to_the_loop(view: Any) -> None:
    one, told = view()
    for i in range(3):
        await asyncio.to_thread(one.push, event(i))
    batch = await told.want(lambda m: "ev" in m and m["i0"] + len(m["ev"]) == 3)
    assert set(told.threads) == {threading.get_ident()} and batch


def test_the_seed_is_in_the_first_snapshot_and_costs_no_message(view: Any) -> None:
    one, told = view(seed=scenes.finished_leg())
    assert json.loads(one.get_state("snapshot")["snapshot"])["run"]["status"] == "completed"
    assert told == []


def test_a_reload_gets_all_that_was_pushed_since_the_view_was_made(view: Any) -> None:
    """V1. The front end asks for the state, on whatever thread; nothing was assigned to the trait meanwhile."""
    one, _ = view()
    for i in range(5):
        one.push(event(i))
    states: list[Any] = []
    in_thread(lambda: states.append(json.loads(one.get_state("snapshot")["snapshot"])))
    assert [e["text"] for e in states[0]["entries"]["items"]] == list("01234")


def test_a_view_that_got_20_000_lines_stays_small(view: Any) -> None:
    """f11."""
    one, _ = view(max_entries=200)
    for i in range(20_000):
        one.push(event(i, "warning", text=f"chunk {i} " + "x" * 100))
    assert len(json.dumps(one.get_state(), default=str)) < 200_000


def test_publishing_sends_the_whole_state_from_the_calling_cell(view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = view()
    sent: list[str] = []
    monkeypatch.setattr(one, "send_state", sent.append)
    one.publish()
    assert sent == ["snapshot"]


def test_a_dead_front_end_does_not_reach_the_turn_that_told_us(view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = view()

    def broken(*_: Any) -> None:
        raise OSError("closed")

    monkeypatch.setattr(one, "send", broken)
    one.push(event())
    one.ack(1, ok=True, sentence="x")


def test_a_closed_view_is_silent_and_can_be_collected(view: Any) -> None:
    """f09: nothing holds a view that was closed."""
    one, told = view()
    one.close()
    one.close()
    one.push(event())
    assert told == []
    refs = []
    for _ in range(20):
        v = TurnView(title="t", can_steer=False, on_intent=lambda i, r: None)
        refs.append(weakref.ref(v))
        v.close()
        del v
    gc.collect()
    assert sum(r() is not None for r in refs) == 0


@pytest.mark.parametrize("how", [{"max_entries": 0}, {"max_signals": -1}, {"beat_s": 0}, {"beat_s": float("nan")}])
def test_a_limit_that_means_nothing_is_refused_by_name(view: Any, how: dict[str, Any]) -> None:
    """h11, h15, h23."""
    with pytest.raises(ValueError, match=r"at least one|beat_s"):
        view(**how)


# ---------------------------------------------------------------------- from the page
STEER = {"intent": "steer", "n": 41, "text": "hello", "key": "k"}


def test_an_intent_reaches_the_callback_on_the_thread_it_came_on(view: Any) -> None:
    seen: list[Any] = []

    def on_intent(intent: dict[str, Any], reply: Any) -> None:
        seen.append((intent, threading.get_ident()))
        reply({"ok": True, "sentence": "recorded", "control_id": "c1"})

    one, told = view(on_intent)
    thread = in_thread(lambda: one._handle_custom_msg(STEER, []))
    assert seen == [(STEER, thread)]
    assert told == [{"ack": 41, "ok": True, "sentence": "recorded", "control_id": "c1"}]


def test_an_answer_may_come_later_from_any_thread_and_more_than_once(view: Any) -> None:
    replies: list[Any] = []
    one, told = view(lambda intent, reply: replies.append(reply))
    one._handle_custom_msg(STEER, [])
    assert told == []
    in_thread(lambda: replies[0]({"ok": True, "sentence": "recorded"}))
    replies[0]({"ok": False})
    assert [(m["ok"], m["sentence"]) for m in told] == [(True, "recorded"), (False, "refused")]


def test_what_the_callback_raises_is_shown_and_goes_no_further(view: Any) -> None:
    """f07."""

    class Odd(Exception):
        def __str__(self) -> str:
            raise ValueError("no text either")

    def on_intent(intent: dict[str, Any], reply: Any) -> None:
        raise {"hello": ZeroDivisionError("division by <b>zero</b>"), "odd": Odd()}[intent["text"]]

    one, told = view(on_intent)
    one._handle_custom_msg(STEER, [])
    in_thread(lambda: one._handle_custom_msg({**STEER, "text": "odd"}, []))
    assert [m["ok"] for m in told] == [False, False]
    assert told[0]["sentence"] == "this failed in the kernel: ZeroDivisionError: division by <b>zero</b>"
    assert "Odd" in told[1]["sentence"]


@pytest.mark.parametrize("content", [None, 5, [], "x", {"intent": "nope"}, {"n": [1]}])
def test_a_message_of_an_unknown_shape_becomes_a_notice(view: Any, content: Any) -> None:
    one, told = view()
    one._handle_custom_msg(content, [])
    assert len(told) == 1 and len(told[0]["err"]) > 10


def test_a_view_that_only_shows_hands_nothing_on(view: Any) -> None:
    seen: list[Any] = []
    one, told = view(lambda intent, reply: seen.append(intent), can_steer=False)
    one._handle_custom_msg(STEER, [])
    assert seen == [] and (told[0]["ack"], told[0]["ok"]) == (41, False)


def test_missing_events_are_answered_where_the_question_came(view: Any) -> None:
    """While a cell blocks the main loop a page that is reloaded still catches up."""
    one, told = view()
    for i in range(5):
        one.push(event(i))
    told.clear()
    told.threads.clear()
    thread = in_thread(lambda: one._handle_custom_msg({"since": 3}, []))
    assert (told[0]["i0"], [e["data"]["text"] for e in told[0]["ev"]]) == (3, ["3", "4"])
    assert told.threads == [thread]


def test_where_the_kernel_has_the_hook_clicks_go_to_the_subshell(monkeypatch: pytest.MonkeyPatch) -> None:
    """ipykernel 7.4 alone has it; without it nothing is set."""
    comm = pytest.importorskip("ipykernel.comm.comm").BaseComm
    made: list[Any] = []

    def create(**how: Any) -> Any:
        made.append(comm(**how))
        return made[-1]

    monkeypatch.setattr("comm.create_comm", create)
    one = TurnView(title="t", can_steer=True, on_intent=lambda i, r: None)
    if hasattr(comm, "_reply_subshell_for"):
        assert one.comm is made[-1] and one.comm._reply_subshell_for is None
    else:
        assert not hasattr(one.comm, "_reply_subshell_for")
    one.close()


# ---------------------------------------------------------------------- signs of life
async def test_a_view_beats_while_something_goes_on_and_says_when_it_stops(view: Any) -> None:
    one, told = view(beat_s=0.01)
    one.push(event(0, "wait", operation="chat", task="A", behind="b"))
    first = await told.want(lambda m: "beat" in m)
    assert first["beat"]["next_s"] == 0.01 and first["beat"]["n"] == 1
    await told.want(lambda m: len([x for x in told if "beat" in x]) >= 3)
    one.push(event(1, "end", operation="chat", task="A", outcome="cancelled while waiting"))
    one.flush()
    assert told[-1]["beat"]["next_s"] is None, "the end is told at once, not a beat later"
    assert told[-1]["beat"]["n"] == 2 and one._beater is None


async def test_an_idle_view_and_one_that_was_told_not_to_send_no_signs(view: Any) -> None:
    """A message counts as activity: a kernel with an idle view must stay cullable."""
    idle, told = view(beat_s=0.01)
    idle.push(event())
    idle.flush()
    quiet, nothing = view(beat_s=None)
    quiet.push(event(0, "wait", operation="chat", task="A", behind="b"))
    quiet.flush()
    assert not [m for m in (*told, *nothing) if "beat" in m]
    assert idle._beater is None and quiet._beater is None
    assert json.loads(quiet.feed.snapshot())["beats"] is False


# ---------------------------------------------------------------------- the rest
def test_the_bundle_has_the_live_view_and_two_forms_that_need_no_kernel(view: Any) -> None:
    one, _ = view(seed=scenes.hostile("<img src=x onerror=alert(1)>"))
    data, _metadata = one._repr_mimebundle_()
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == one.model_id
    assert "&lt;img src=x" in data["text/html"] and "<img" not in data["text/html"]
    assert "<img src=x" in data["text/plain"]


def test_importing_the_package_loads_no_widget_machinery_and_needs_no_kernel() -> None:
    code = "import sys, lionnb.widgets, lionnb.widgets.state, lionnb.widgets.twin; print(*[m for m in ('anywidget', 'ipywidgets', 'ipykernel', 'IPython') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
    with pytest.raises(AttributeError, match="nothing_like_it"):
        __import__("lionnb.widgets").widgets.nothing_like_it


def test_the_module_that_goes_to_the_page_has_one_name_a_thing_and_one_default(node: Any, tmp_path: Any) -> None:
    path = tmp_path / "esm.mjs"
    path.write_text(turn_view.assets.esm(), encoding="utf-8")
    subprocess.run(["node", "--check", str(path)], check=True)
    text = path.read_text(encoding="utf-8")
    assert 'from "./' not in text and text.count("export default") == 1
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "http://",
        "https://",
        "import(",
    ):
        assert word not in text, word
