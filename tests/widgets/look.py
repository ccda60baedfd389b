"""Pictures of the view, for the eye: ``python -m tests.widgets.look [scene …]`` writes them to ``tests/out/``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from lionnb.records import FeedEvent
from lionnb.widgets import twin
from lionnb.widgets.feed import Feed
from lionnb.widgets.state import fresh
from tests.widgets import scenes
from tests.widgets.page import chromium, page

OUT = Path(__file__).parents[1] / "out"


def feed_of(events: Iterable[FeedEvent], *, can_steer: bool = True, uid: str = "look", **limits: int) -> Feed:
    feed = Feed(fresh(uid=uid, title="Branch researcher", can_steer=can_steer, limits=limits))
    for event in events:
        feed.add(event)
    feed.take()
    return feed


def long_history() -> Iterable[FeedEvent]:
    s = scenes.Story()
    for turn in range(40):
        name = f"{turn:08x}-0000"
        s("start", name, operation="communicate", model="gpt-4.1-mini", waited_s=0.0, instruction=f"Question {turn}")
        for i in range(50):
            s("signal", name, after=0.2, name="NodeCreated")
            s("text", name, role="assistant", text=f"Line {i} of turn {turn}.", id=None)
        s("end", name, outcome="completed", error=None, duration_s=10.0, input_tokens=100, output_tokens=50)
    return s


SCENES: dict[str, Callable[[], Feed]] = {
    "leg": lambda: feed_of(scenes.working_leg()),
    "ended": lambda: feed_of(scenes.finished_leg()),
    "failed": lambda: feed_of(scenes.failed_turn(), can_steer=False),
    "empty": lambda: feed_of([], can_steer=False),
    "empty-leg": lambda: feed_of(scenes.Story().leg(sentence="has not begun its first turn")),
    "hostile": lambda: feed_of(e for text in scenes.HOSTILE[:12] for e in scenes.hostile(text)),
    "words": lambda: feed_of(scenes.hostile("W" * 400)),
    "long": lambda: feed_of(long_history(), can_steer=False),
}


def shoot(browser: object, name: str, theme: str, width: int) -> None:
    feed = SCENES[name]()
    with page(browser, theme=theme, width=width) as p:
        p.open(feed)
        state = feed.state()
        p.deliver({"beat": {"at": state["at"] + 12 if state["at"] else time.time(), "n": feed.sent, "next_s": 2}})
        if name == "leg":
            box = p.page.locator("textarea")
            for text, answer in (
                ("Prefer primary sources.", None),
                (
                    "Too late for this one",
                    {"ok": False, "sentence": "refused: the leg has ended; start another leg to go on."},
                ),
            ):
                box.fill(text)
                p.page.get_by_role("button", name="Send", exact=True).click()
                if answer:
                    p.deliver({"ack": p.sent("steer")[-1]["n"], "control_id": None, **answer})
        p.frame()
        p.picture(OUT / f"view-{name}-{theme}-{width}.png")
        if name == "leg":
            p.page.evaluate("document.querySelector('.ln-scroll').scrollTop = 0")
            p.page.locator(".ln-tool summary").first.click()
            p.page.locator(".ln-block summary").first.click()
            p.page.evaluate("document.querySelector('.ln-ledger').scrollTop = 330")
            p.frame()
            p.picture(OUT / f"view-{name}-top-{theme}-{width}.png")
        if p.errors:
            print(name, theme, width, p.errors)


def main(names: list[str]) -> None:
    with chromium() as browser:
        for name in names or SCENES:
            for theme, width in (("light", 1200), ("dark", 1200), ("light", 480), ("dark", 480)):
                if names or width == 1200 or name in ("leg", "hostile"):
                    shoot(browser, name, theme, width)
        for name in ("leg", "failed"):
            with page(browser, width=1000) as p:
                p.page.evaluate("h => { document.body.innerHTML = h }", twin.html(SCENES[name]().state()))
                p.picture(OUT / f"twin-{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
