"""The stream: numbered, batched, bounded, and complete whatever gets lost on the way."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from lionnb.records import FeedEvent
from lionnb.widgets.feed import Feed
from lionnb.widgets.state import fresh


def feed(keep: int = 4_000, **limits: int) -> Feed:
    return Feed(fresh(uid="u", title="t", can_steer=True, limits=limits), keep=keep)


def signal(i: int, turn: str | None = None) -> FeedEvent:
    return FeedEvent(i, float(i), "signal", turn, {"name": f"S{i}"})


def chunk(text: str, turn: str = "T") -> FeedEvent:
    return FeedEvent(0, 1.0, "chunk", turn, {"text": text})


def test_batches_carry_the_views_own_numbers() -> None:
    """The feed's numbers have holes (chunks are not kept there) and two sources; a view counts what it shows."""
    f = feed()
    f.add(signal(70))
    f.add(signal(90))
    assert f.take()["i0"] == 0 and f.take() is None  # type: ignore[index]
    f.add(signal(3))
    batch = f.take()
    assert batch is not None and (batch["i0"], [e["data"]["name"] for e in batch["ev"]]) == (2, ["S3"])


def test_pieces_of_one_turn_become_one_event_a_batch() -> None:
    f = feed()
    for event in (chunk("a"), chunk("b"), chunk("c", "U"), chunk("d"), signal(1), chunk("e"), chunk("f")):
        f.add(event)
    batch = f.take()
    assert batch is not None
    told = [(e["turn"], e["data"]["text"], e["size"]) for e in batch["ev"] if e["kind"] == "chunk"]
    assert told == [("T", "ab", 2), ("U", "c", 1), ("T", "d", 1), ("T", "ef", 2)]


def test_a_page_that_missed_little_gets_that_and_one_that_missed_much_a_snapshot() -> None:
    f = feed(keep=10)
    for i in range(30):
        f.add(signal(i))
        f.take()
    assert [e["data"]["name"] for e in f.since(28)["ev"]] == ["S28", "S29"]
    assert f.since(30) == {"i0": 30, "ev": []}
    assert len(f.since(20)["ev"]) == 10
    assert json.loads(f.since(19)["snapshot"])["n"] == 30
    assert json.loads(f.since(31)["snapshot"])["n"] == 30, "a page ahead of the kernel gets the kernel's truth"


def test_what_is_sent_for_an_event_does_not_grow_with_the_history() -> None:
    """V3. The same event after ten and after 20,000 others."""
    f, sizes = feed(), {}
    for i in range(20_001):
        f.add(signal(i % 7, "T"))
        sizes[i] = len(json.dumps(f.take()))
    assert sizes[20_000] - sizes[10] <= len("20000") - len("10")


def test_a_snapshot_is_bounded_whatever_came() -> None:
    """f11: a view that keeps 200 lines and got 20,000."""
    f = feed(entries=200, text=60_000, signals=200)
    for i in range(20_000):
        f.add(FeedEvent(i, float(i), "warning", None, {"text": f"line {i} " + "x" * 100}))
        f.add(signal(i))
        f.take()
    assert len(f.snapshot()) < 100_000
    assert f.state()["entries"]["first"] == 19_800


@pytest.mark.parametrize("seed", range(6))
def test_the_page_ends_with_the_kernels_state_when_messages_are_lost_and_doubled(seed: int, node: Any) -> None:
    """Both real halves: this feed, and the page's `Sync` in node. A third of the messages is lost, each way."""
    rng, page = random.Random(seed), node("client.mjs")
    f = feed(keep=rng.choice([40, 4_000]), entries=50, signals=64)
    opening, now, asked = f.snapshot(), 0, 0

    def hear(**message: Any) -> Any:
        answer = page({"now": now, **message})
        for question in answer["sent"]:
            if rng.random() > 0.35:
                reply = f.since(question["since"])
                if rng.random() > 0.35:
                    page({"now": now, "deliver": reply})
        return answer

    hear(open=opening)
    for i in range(250):
        now += 50
        for _ in range(rng.randint(1, 4)):
            f.add(
                rng.choice(
                    [
                        signal(i, "T"),
                        chunk("x" * rng.randint(1, 9)),
                        FeedEvent(i, float(i), "warning", None, {"text": "w"}),
                    ]
                )
            )
        batch = f.take()
        for _ in range(rng.choice([0, 1, 1, 2])):
            hear(deliver=batch)
        if i % 40 == 0 and rng.random() > 0.35:
            asked += 1
            hear(deliver={"beat": {"n": f.sent}})
    for _ in range(100):  # nothing new comes; the heartbeats bring the rest
        now += 2_000
        if hear(deliver={"beat": {"n": f.sent}})["n"] == f.sent:
            break
    last = page({"now": now, "show": True})
    assert asked and last["state"] == f.state()
