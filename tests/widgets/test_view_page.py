"""The view in a real browser, without Jupyter: what is shown, what a press sends, and that text stays text."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from lionnb.records import FeedEvent
from lionnb.widgets.feed import Feed
from tests.widgets import scenes
from tests.widgets.look import feed_of

pytestmark = [pytest.mark.browser, pytest.mark.slow]

DUMP = """() => {
  const out = { texts: [], tags: new Set(), attributes: new Set(), handlers: [] };
  for (const root of document.querySelectorAll('.lionnb-turn-view')) {
    const walk = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
    for (let n = walk.currentNode; n; n = walk.nextNode()) {
      if (n.nodeType === 3) { out.texts.push(n.data); continue; }
      out.tags.add(n.localName);
      for (const a of n.attributes) out.attributes.add(a.name);
    }
  }
  return { texts: out.texts, tags: [...out.tags], attributes: [...out.attributes] };
}"""
TAGS = {
    "header", "section", "div", "span", "code", "ul", "li", "time", "details", "summary", "pre", "button", "label",
    "textarea", "input", "canvas",
}  # fmt: skip


def beat(feed: Feed, after: float = 0.0) -> dict[str, Any]:
    state = feed.state()
    return {"beat": {"at": state["at"] + after, "n": feed.sent, "next_s": 2}}


def more(feed: Feed, *events: FeedEvent) -> dict[str, Any]:
    for event in events:
        feed.add(event)
    batch = feed.take()
    assert batch is not None
    return batch


def told(kind: str, turn: str | None = scenes.NEXT, **data: Any) -> FeedEvent:
    return FeedEvent(0, scenes.T0 + 100, kind, turn, data)


# ---------------------------------------------------------------------- text is text
@pytest.mark.parametrize("live", [False, True], ids=["snapshot", "live"])
def test_hostile_text_in_every_field_is_shown_as_it_was_typed(open_page: Any, live: bool) -> None:
    """V2. Through the snapshot and through batches; nothing runs, nothing is fetched, nothing is changed."""
    page = open_page()
    for text in scenes.HOSTILE:
        feed = feed_of((), uid=text) if live else feed_of(scenes.hostile(text), uid=text)
        page.open(feed)
        if live:
            page.deliver(more(feed, *scenes.hostile(text)))
        page.deliver({"err": text})
        page.page.locator("textarea").fill(text)
        page.page.get_by_role("button", name="Send", exact=True).click()
        page.deliver({"ack": page.sent("steer")[-1]["n"], "ok": False, "sentence": text, "control_id": None})
        page.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
        page.page.locator("canvas").hover(position={"x": 300, "y": 8})
        page.frame()
        seen = page.page.evaluate(DUMP)
        assert set(seen["tags"]) <= TAGS
        assert not [a for a in seen["attributes"] if a.startswith("on") or a in ("href", "src", "srcdoc", "action")]
        assert sum(t.count(text[:100]) for t in seen["texts"]) >= 12, text
        assert (page.dialogs, page.errors, page.fetched) == ([], [], [])
        page.page.evaluate("window.fake.ended.pop()()")


def test_long_words_never_make_the_view_wider_than_its_place(open_page: Any) -> None:
    for width in (320, 480, 800, 1200):
        page = open_page(width=width)
        page.open(feed_of(scenes.hostile("W" * 400)))
        wide = page.page.evaluate("""() => [...document.querySelectorAll('.lionnb-turn-view, .lionnb-turn-view *')]
            .filter(n => n.getBoundingClientRect().right > innerWidth + 0.5 && !n.closest('.ln-call, .ln-peek, .ln-readout, .ln-chip'))
            .map(n => n.className + ' ' + n.getBoundingClientRect().right)""")
        assert wide == [], width
        assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


# ---------------------------------------------------------------------- what is shown
def test_what_comes_is_shown_and_the_final_text_takes_the_place_of_the_pieces(open_page: Any) -> None:
    page, feed = open_page(), feed_of(scenes.working_leg())
    page.open(feed)
    page.deliver(beat(feed, 0.1))
    rows = page.page.locator(".ln-is-assistant")
    assert "so that a row which was" in rows.last.inner_text()
    page.deliver(more(feed, told("chunk", text="claimed ")))
    assert "a row which was claimed" in rows.last.inner_text()
    before = rows.count()
    page.deliver(more(feed, told("text", role="assistant", text="All of it.", id="m9")))
    assert rows.count() == before and rows.last.locator(".ln-text").inner_text() == "All of it."


def test_what_is_awaited_is_named_while_nothing_comes(open_page: Any) -> None:
    page, feed = open_page(), feed_of(scenes.working_leg())
    page.open(feed)
    page.deliver(beat(feed, 42.5))
    assert re.match(r"waiting for the provider, 4[23] s", page.page.locator(".ln-now").inner_text())


def test_an_update_touches_only_what_it_is_about(open_page: Any) -> None:
    """V3. The same events after 10 and after 1,900 lines make the same nodes."""
    costs = []
    for history in (10, 1_900):
        s = scenes.Story()("start", "T", operation="chat", model="m", instruction="", waited_s=0.0)
        for i in range(history):
            s("text", "T", role="assistant", text=f"line {i}", id=None)("signal", "T", after=0.1, name="S")
        page, feed = open_page(), feed_of(s, can_steer=False)
        page.open(feed)
        page.page.evaluate("""() => { window.made = 0; const add = n => { window.made += 1 + (n.querySelectorAll ? n.querySelectorAll('*').length : 0); };
            new MutationObserver(rs => { for (const r of rs) for (const n of r.addedNodes) add(n); })
              .observe(document.querySelector('.ln-list'), { childList: true, subtree: true }); }""")
        for i in range(20):
            page.deliver(
                more(feed, told("text", "T", role="assistant", text=f"new {i}", id=None), told("signal", "T", name="S"))
            )
        costs.append(page.page.evaluate("window.made"))
        assert page.page.locator(".ln-list > .ln-row").count() == history + 21
    assert costs[0] == costs[1] and costs[0] > 0


def test_lines_that_the_kernel_dropped_leave_the_page_too(open_page: Any) -> None:
    s = scenes.Story()
    for i in range(30):
        s("warning", None, text=f"w{i}")
    page, feed = open_page(), feed_of(s, entries=30)
    page.open(feed)
    page.deliver(more(feed, *[told("warning", None, text=f"n{i}") for i in range(10)]))
    assert page.page.locator(".ln-list > .ln-row").count() == 30
    assert page.page.locator(".ln-gone").inner_text() == "10 earlier lines no longer kept by this view"


def test_a_block_that_somebody_reads_stays_open_when_the_turn_gathers_again(open_page: Any) -> None:
    page, feed = open_page(), feed_of(scenes.working_leg())
    page.open(feed)
    page.page.locator(".ln-block summary", has_text="project notes").click()
    again = [{"name": "project notes", "tokens": 9, "text": "newer"}, {"name": "clock", "tokens": 1, "text": "t"}]
    page.deliver(more(feed, told("blocks", scenes.TURN, blocks=again, skipped=[], failed=[], degraded=[])))
    assert page.page.locator(".ln-block[open]").all_inner_texts() == ["project notes 9 tokens\nnewer"]
    assert "gathering 2 of this turn" in page.page.locator(".ln-blocks").inner_text()


def test_a_reader_who_scrolled_up_stays_there_and_is_told_of_news(open_page: Any) -> None:
    s = scenes.Story()
    for i in range(100):
        s("warning", None, text=f"w{i}")
    page, feed = open_page(), feed_of(s)
    page.open(feed)
    page.page.evaluate("document.querySelector('.ln-scroll').scrollTop = 0")
    page.frame()
    page.deliver(more(feed, told("warning", None, text="news")))
    assert page.page.evaluate("document.querySelector('.ln-scroll').scrollTop") == 0
    page.page.get_by_role("button", name="newest").click()
    page.frame()
    assert page.page.evaluate(
        "(e => e.scrollHeight - e.scrollTop - e.clientHeight < 2)(document.querySelector('.ln-scroll'))"
    )
    page.deliver(more(feed, told("warning", None, text="more news")))
    assert page.page.locator(".ln-jump").is_hidden()


# ---------------------------------------------------------------------- what a press sends
def steer_page(open_page: Any, **how: Any) -> tuple[Any, Feed]:
    page, feed = open_page(**how), feed_of(scenes.working_leg())
    page.open(feed)
    page.deliver(beat(feed, 1.0))
    return page, feed


def test_a_steer_goes_out_once_and_reads_not_yet_recorded_until_the_kernel_answers(open_page: Any) -> None:
    page, feed = steer_page(open_page)
    box = page.page.locator("textarea")
    box.fill("  Only primary sources.\n")
    box.press("Control+Enter")
    (sent,) = page.sent("steer")
    assert (sent["text"], sent["intent"]) == ("  Only primary sources.\n", "steer") and len(sent["key"]) >= 10
    out = page.page.locator(".ln-out")
    assert "sent, not yet recorded" in out.inner_text() and box.input_value() == ""
    assert page.page.get_by_role("button", name="Send", exact=True).is_enabled()
    page.deliver({"ack": sent["n"], "ok": True, "sentence": "recorded: lands after 1 other", "control_id": "c9"})
    assert "recorded: lands after 1 other" in out.inner_text()
    row = (
        scenes.Story()
        .steer(9, "pending", "queued", "lands after 1 other", text="Only primary sources.", control_id="c9")
        .events
    )
    page.deliver(more(feed, *row))
    assert out.inner_text() == "" and "Only primary sources." in page.page.locator(".ln-steers").inner_text()


def test_each_steer_has_a_key_and_a_number_of_its_own_and_a_repeat_keeps_them(open_page: Any) -> None:
    page, _ = steer_page(open_page)
    page.page.clock.install()
    for text in ("one", "two"):
        page.page.locator("textarea").fill(text)
        page.page.get_by_role("button", name="Send", exact=True).click()
    first, second = page.sent("steer")
    assert first["key"] != second["key"] and first["n"] != second["n"]
    page.page.clock.fast_forward(8_000)
    page.page.get_by_role("button", name="Send again").first.click()
    assert page.sent("steer")[2] == first


def test_a_refused_text_is_back_in_the_box_with_the_sentence_that_refused_it(open_page: Any) -> None:
    page, _ = steer_page(open_page)
    box = page.page.locator("textarea")
    box.fill("too late")
    page.page.get_by_role("button", name="Send", exact=True).click()
    page.deliver(
        {"ack": page.sent("steer")[0]["n"], "ok": False, "sentence": "refused: the leg has ended", "control_id": None}
    )
    assert box.input_value() == "too late"
    assert "refused: the leg has ended" in page.page.locator(".ln-out").inner_text()
    box.fill("something new")
    page.page.get_by_role("button", name="Edit again").click()
    assert box.input_value() == "too late\nsomething new"


def test_blank_is_not_sent(open_page: Any) -> None:
    page, _ = steer_page(open_page)
    page.page.locator("textarea").fill(" \n ")
    page.page.get_by_role("button", name="Send", exact=True).click()
    assert page.sent() == [] and page.page.locator(".ln-said").inner_text() == "Nothing to send yet."


def test_cancel_acts_on_the_turn_it_was_drawn_for(open_page: Any) -> None:
    """V4. A press that began on one turn's button never ends another turn."""
    page, feed = steer_page(open_page)
    page.page.wait_for_timeout(450)  # a button that is younger than a reaction time does nothing, see below
    page.page.get_by_role("button", name="Cancel turn a1b2c3d4").click()
    assert [(m["intent"], m["turn_id"]) for m in page.sent()] == [("cancel_turn", scenes.NEXT)]
    button = page.page.get_by_role("button", name="Cancel turn")
    spot = button.bounding_box()
    page.page.mouse.move(spot["x"] + 8, spot["y"] + 8)
    page.page.mouse.down()
    page.deliver(
        more(
            feed,
            told("end", outcome="completed"),
            told("start", "ffff0000-1", operation="operate", model="m", instruction=""),
        )
    )
    page.page.mouse.up()
    assert len(page.sent("cancel_turn")) == 1
    page.page.get_by_role("button", name="Cancel turn ffff0000").click()
    assert len(page.sent("cancel_turn")) == 1, "pressed within a reaction time of the change"
    assert "nothing was cancelled" in page.page.locator(".ln-said").inner_text()
    page.deliver(more(feed, told("end", "ffff0000-1", outcome="completed")))
    assert page.page.get_by_role("button", name="Cancel turn").is_disabled()


def test_stopping_takes_two_presses(open_page: Any) -> None:
    page, _ = steer_page(open_page)
    page.page.get_by_role("button", name="Stop leg").click()
    assert page.sent() == [] and "for good" in page.page.locator(".ln-said").inner_text()
    page.page.get_by_role("button", name="Press again to stop").click()
    assert [m["intent"] for m in page.sent()] == ["stop"]


def test_withdraw_is_offered_on_queued_rows_only_and_names_its_row(open_page: Any) -> None:
    page, _ = steer_page(open_page)
    buttons = page.page.locator(".ln-steers").get_by_role("button", name="Withdraw")
    assert buttons.count() == 1
    buttons.click()
    assert [(m["intent"], m["control_id"]) for m in page.sent()] == [("withdraw", "c5")]


def test_a_resolution_needs_a_name(open_page: Any) -> None:
    page, feed = steer_page(open_page)
    page.page.get_by_role("button", name="It arrived").click()
    assert page.sent() == [] and "Say who you are" in page.page.locator(".ln-said").inner_text()
    page.page.get_by_label("your name").fill("ada")
    page.deliver(more(feed, *scenes.Story().steer(1, "applied", "applied", "applied in turn a1b2c3d4").events))
    text, handed = "Stop after two papers if they agree.", {"handed_over_at": 7.0}
    told_again = scenes.Story().steer(
        3, "never_reported", "needs you", "nobody reported back for 9 min", text, **handed
    )
    page.deliver(more(feed, *told_again.events))
    assert "for 9 min" in page.page.locator(".ln-steers").inner_text()
    page.page.get_by_role("button", name="It did not").click()
    (sent,) = page.sent()
    said = [sent[key] for key in ("intent", "control_id", "claim", "outcome", "by")]
    assert said == ["resolve", "c3", "leg-1:3", "abandoned", "ada"]


def test_a_turn_that_the_leg_waits_for_is_not_offered_to_be_cancelled(open_page: Any) -> None:
    """V4: what runs on the Branch is somebody else's call."""
    page, feed = steer_page(open_page)
    page.deliver(more(feed, *scenes.Story().leg(sentence="waits for the Branch behind turn 12345678").events))
    panel = page.page.locator(".ln-panel")
    assert "the leg waits for the Branch" in panel.inner_text()
    assert panel.get_by_role("button", name="Cancel turn").is_disabled()


def test_a_form_is_for_the_hand_over_that_it_was_drawn_for(open_page: Any) -> None:
    """V4: given back and handed over anew, it is asked anew: the name that was typed is not about this one."""
    page, feed = steer_page(open_page)
    page.page.get_by_label("your name").fill("ada")
    again = scenes.Story().steer(
        3, "never_reported", "needs you", "nobody reported back", handed_over_at=9.0, claim="leg-2:1"
    )
    page.deliver(more(feed, *again.events))
    assert page.page.get_by_label("your name").input_value() == ""
    page.page.get_by_label("your name").fill("ben")
    page.page.get_by_role("button", name="It arrived").click()
    assert [(m["claim"], m["by"]) for m in page.sent()] == [("leg-2:1", "ben")]


def test_a_press_in_one_of_two_displays_acts_once_and_both_show_it(open_page: Any) -> None:
    """f21."""
    page, _ = steer_page(open_page)
    page.show("b")
    page.page.locator("#a textarea").fill("hello")
    page.page.locator("#a").get_by_role("button", name="Send", exact=True).click()
    assert len(page.sent("steer")) == 1
    for place in ("#a", "#b"):
        assert "sent, not yet recorded" in page.page.locator(f"{place} .ln-out").inner_text()
    page.deliver({"ack": page.sent("steer")[0]["n"], "ok": False, "sentence": "no", "control_id": None})
    assert [page.page.locator(f"{place} .ln-out li").count() for place in ("#a", "#b")] == [1, 1]


def test_a_display_that_goes_takes_its_listeners_and_timers_with_it(open_page: Any) -> None:
    page, feed = steer_page(open_page)
    page.show("b")
    page.page.evaluate("window.fake.ended.pop()()")
    assert page.page.locator("#b").inner_html() == ""
    assert page.page.evaluate("window.fake.on.get('msg:custom').length") == 1
    page.page.evaluate("window.fake.ended.pop()()")
    assert page.page.evaluate("[...window.fake.on.values()].flat().length") == 0
    page.deliver(beat(feed))
    assert page.errors == []


def test_text_in_the_box_and_what_was_sent_outlive_a_display(open_page: Any) -> None:
    page, _ = steer_page(open_page)
    page.page.locator("textarea").fill("first")
    page.page.get_by_role("button", name="Send", exact=True).click()
    page.page.locator("textarea").fill("half a thought")
    page.page.evaluate("window.fake.ended.pop()()")
    page.show("b")
    assert page.page.locator("textarea").input_value() == "half a thought"
    assert "first" in page.page.locator(".ln-out").inner_text()


def test_a_view_that_only_shows_has_no_panel(open_page: Any) -> None:
    page = open_page()
    page.open(feed_of(scenes.working_leg(), can_steer=False))
    assert page.page.locator("textarea").count() == 0
    assert page.page.get_by_role("button", name="Stop").count() == 0


def test_an_ended_leg_takes_no_steer_and_keeps_the_text(open_page: Any) -> None:
    page = open_page()
    page.open(feed_of(scenes.finished_leg()))
    page.page.locator("textarea").fill("late")
    page.page.locator("textarea").press("Control+Enter")
    assert page.sent() == [] and page.page.locator("textarea").input_value() == "late"
    assert "has ended" in page.page.locator(".ln-said").inner_text()


# ---------------------------------------------------------------------- is the kernel there
def test_a_silent_kernel_is_named_and_nothing_looks_alive(open_page: Any) -> None:
    page, feed = open_page(), feed_of(scenes.working_leg())
    page.page.clock.install()
    page.open(feed)
    page.deliver(beat(feed, 1.0))
    pulse = page.page.locator(".ln-pulse")
    assert pulse.is_hidden()
    page.page.clock.run_for(30_000)
    assert re.search(r"No sign of life from the kernel for (29|30) s \(since \d", pulse.inner_text())
    lead = page.page.locator(".ln-lead").inner_text()
    page.page.clock.run_for(10_000)
    assert page.page.locator(".ln-lead").inner_text() == lead, "the elapsed time stands still"
    page.page.locator("textarea").fill("are you there")
    page.page.get_by_role("button", name="Send", exact=True).click()
    page.deliver({"ack": page.sent("steer")[0]["n"], "ok": True, "sentence": "recorded", "control_id": "c7"})
    page.page.clock.run_for(2_000)
    assert "busy with a cell" in pulse.inner_text()
    page.page.evaluate("m => window.fake.deliver(m)", beat(feed, 50.0))
    page.page.clock.run_for(100)
    assert pulse.is_hidden()


def test_a_kernel_that_is_gone_takes_nothing_and_costs_no_text(open_page: Any) -> None:
    page, _ = steer_page(open_page)
    box, send = page.page.locator("textarea"), page.page.get_by_role("button", name="Send", exact=True)
    box.fill("before anybody noticed")
    page.page.evaluate("window.fake.cut = true")
    send.click()
    assert box.input_value() == "before anybody noticed" and page.sent("steer") == []
    assert "The kernel of this view is gone" in page.page.locator(".ln-out").inner_text()
    page.page.evaluate("window.fake.on.get('comm_live_update').forEach(f => f())")
    assert "The kernel of this view is gone" in page.page.locator(".ln-pulse").inner_text()
    assert send.is_disabled() and page.page.get_by_role("button", name="Stop leg").is_disabled()
    assert page.page.locator(".ln-top .ln-chip").first.inner_text().endswith("running when last heard")


def test_a_page_that_missed_messages_asks_and_catches_up(open_page: Any) -> None:
    page, feed = open_page(), feed_of(scenes.working_leg())
    page.open(feed)
    n = feed.sent
    more(feed, told("warning", text="lost"))
    page.deliver(more(feed, told("warning", text="seen")))
    assert page.page.locator(".ln-is-warning").count() == 1
    asked = page.page.evaluate("window.fake.sent.filter(m => 'since' in m)")
    assert {"since": n} in asked
    page.deliver(feed.since(n))
    page.deliver(feed.since(n))
    assert [t.split("\n")[-1] for t in page.page.locator(".ln-is-warning").all_inner_texts()][1:] == ["lost", "seen"]
    fresh = feed_of([*scenes.working_leg(), *[told("warning", text=f"w{i}") for i in range(5)]])
    page.deliver({"snapshot": fresh.snapshot()})
    assert page.page.locator(".ln-is-warning").count() == 6


def test_a_widget_without_state_says_what_to_do(open_page: Any) -> None:
    page = open_page()
    page.show("a")
    assert page.page.locator("#a").inner_text() == "This view has no saved state. Run its cell again."


# ---------------------------------------------------------------------- for every reader
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("lab", [True, False], ids=["lab", "bare"])
def test_every_text_stands_out_from_what_is_behind_it(open_page: Any, theme: str, lab: bool) -> None:
    """WCAG AA: 4.5 to 1 for every visible text, in both themes, with JupyterLab's colours and without."""
    page, feed = open_page(theme=theme, lab=lab), feed_of(scenes.working_leg())
    page.open(feed)
    page.deliver(beat(feed, 1.0))
    page.page.locator("textarea").fill("x")
    page.page.get_by_role("button", name="Send", exact=True).click()
    page.deliver({"err": "a notice"})
    low = page.page.evaluate(CONTRAST)
    assert low == []


CONTRAST = """() => {
  const c = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = s => { c.clearRect(0, 0, 1, 1); c.fillStyle = s; c.fillRect(0, 0, 1, 1); const d = c.getImageData(0, 0, 1, 1).data; return [d[0], d[1], d[2], d[3] / 255]; };
  const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
  const behind = n => { const stack = []; for (; n; n = n.parentElement) stack.unshift(rgba(getComputedStyle(n).backgroundColor));
    return stack.reduce((b, a) => over(a, b), [255, 255, 255, 1]); };
  const lum = v => { const f = [0, 1, 2].map(i => { const x = v[i] / 255; return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; }); return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
  const low = [];
  const walk = document.createTreeWalker(document.querySelector('.lionnb-turn-view'), NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const n = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !n.checkVisibility() || n.closest(':disabled')) continue;
    const bg = behind(n), fg = over(rgba(getComputedStyle(n).color), bg), [hi, lo] = [lum(fg), lum(bg)].sort((a, b) => b - a);
    const ratio = (hi + 0.05) / (lo + 0.05);
    if (ratio < 4.5) low.push([walk.currentNode.data.slice(0, 30), n.className, ratio.toFixed(2)]);
  }
  return low;
}"""


def test_everything_can_be_reached_and_named_without_a_mouse(open_page: Any) -> None:
    page, _ = steer_page(open_page)
    nameless = page.page.evaluate("""() => [...document.querySelectorAll('.lionnb-turn-view :is(button, input, textarea, canvas, summary, [tabindex])')]
        .filter(n => !(n.getAttribute('aria-label') || n.textContent.trim() || (n.id && document.querySelector(`label[for="${n.id}"]`)))).map(n => n.outerHTML)""")
    assert nameless == []
    seen = set()
    for _ in range(60):
        page.page.keyboard.press("Tab")
        seen.add(
            page.page.evaluate(
                "document.activeElement.className + '|' + (document.activeElement.getAttribute('aria-label') || document.activeElement.textContent).slice(0, 24)"
            )
        )
    for wanted in (
        "ln-box",
        "Send",
        "Withdraw",
        "Cancel turn",
        "Stop leg",
        "timeline of turns",
        "It arrived",
        "search",
    ):
        assert any(wanted in s for s in seen), wanted


def test_the_timeline_moves_by_keys_and_tells_what_is_under_the_pointer(open_page: Any) -> None:
    page, _ = steer_page(open_page, width=1200)
    canvas = page.page.locator("canvas")
    canvas.hover(position={"x": 560, "y": 30})
    assert "operate" in page.page.locator(".ln-readout").inner_text()
    before = canvas.evaluate("c => c.toDataURL()")
    canvas.focus()
    page.page.keyboard.press("+")
    page.page.keyboard.press("ArrowLeft")
    assert canvas.evaluate("c => c.toDataURL()") != before


def test_a_hundred_thousand_signals_stay_smooth(open_page: Any) -> None:
    """Counted, not timed: one more signal among 100,000 draws no more than among 1,000."""
    strokes = []
    for n in (1_000, 100_000):
        s = scenes.Story()("start", "T", operation="chat", model="m", instruction="", waited_s=0.0)
        for _ in range(n):
            s("signal", "T", after=10 / n, name="S")
        page, feed = open_page(width=1200), feed_of(s, can_steer=False, signals=100_000)
        page.open(feed)
        page.page.evaluate("""() => { window.strokes = 0; const p = CanvasRenderingContext2D.prototype, f = p.fillRect;
            p.fillRect = function (...a) { window.strokes += 1; return f.apply(this, a); }; }""")
        page.deliver(more(feed, told("signal", "T", name="S")))
        strokes.append(page.page.evaluate("window.strokes"))
        assert f"{n + 1:,} signals" in page.page.locator(".ln-timeline .ln-caption").inner_text()
    assert 0 < strokes[1] < 4_000 and strokes[1] < 6 * strokes[0]


def test_it_stands_still_for_readers_who_ask_for_that(open_page: Any) -> None:
    page = open_page()
    page.page.emulate_media(reduced_motion="reduce")
    page.open(feed_of(scenes.working_leg()))
    assert page.page.evaluate("getComputedStyle(document.querySelector('.ln-caret')).animationName") == "none"


def test_every_event_on_file_is_drawn_without_an_error(open_page: Any) -> None:
    page, feed = open_page(), feed_of([])
    page.open(feed)
    for scene in (scenes.failed_turn(), scenes.finished_leg()):
        for event in scene:
            page.page.evaluate("m => window.fake.deliver(m)", more(feed, event))
    page.frame()
    assert page.errors == []
    assert json.loads(feed.snapshot())["n"] == feed.sent
