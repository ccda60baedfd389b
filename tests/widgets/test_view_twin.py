"""The static form: everything that matters, readable, and text is never markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from lionnb.widgets import twin
from lionnb.widgets.state import LIMITS, fresh, reduce
from lionnb.widgets.wire import encode
from tests.widgets import scenes

TAGS = {"div", "b", "table", "tr", "td", "svg", "rect"}
ATTRIBUTES = {"style", "x", "y", "width", "height", "fill", "opacity", "role", "aria-hidden"}


class Reader(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        # the one class there may be: it keeps a front end from typesetting what somebody wrote as mathematics
        rest = [(name, value) for name, value in attrs if (name, value) != ("class", "mathjax_ignore tex2jax_ignore")]
        assert {name for name, _ in rest} <= ATTRIBUTES, rest
        assert not any("url(" in (value or "") for _, value in attrs)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.words)


def state_of(events: scenes.Story) -> dict[str, object]:
    state = fresh(uid="u", title="Branch", can_steer=True)
    for event in events:
        reduce(state, encode(event))
    return state


@pytest.mark.parametrize("text", scenes.HOSTILE)
def test_a_hostile_text_in_any_field_is_only_text(text: str) -> None:
    """V2, f13."""
    page = Reader(twin.html(state_of(scenes.hostile(text))))
    assert set(page.tags) <= TAGS
    assert any(text[:100] in word for word in page.words)


def test_the_end_of_a_leg_can_be_read_without_a_kernel() -> None:
    """f19: run, status, what was said, every steer with its chip, providers, turns."""
    state = state_of(scenes.finished_leg())
    for told in (Reader(twin.html(state)).text, twin.text(state)):
        for word in ("survey", "20261130T140000-3fa9c1", "completed", "the claim is the fence", "5,961 in / 499 out", "search(",
                     "HTTPError: 503", "✓ applied", "✕ not delivered", "! needs you", "Only papers after 2024.", "wiki", "timed out after 2 s"):  # fmt: skip
            assert word in told, word


def test_plain_text_gives_no_orders_to_a_terminal() -> None:
    told = twin.text(state_of(scenes.hostile("\x1b[2Jgone\x07\x00\r\x9b31m\x7f")))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", told)
    assert "␛[2Jgone␇␀␍" in told


def test_a_long_history_is_cut_at_the_old_end_and_says_so() -> None:
    s = scenes.Story()
    for i in range(LIMITS["entries"] + 500):
        s("text", None, role="assistant", text=f"line {i} " + "x" * (9_000 if i % 100 == 99 else 90), id=None)
    state = state_of(s)
    html, plain = twin.html(state), twin.text(state)
    assert "2,200 earlier lines not shown" in html and "2,440 earlier lines not shown" in plain
    assert "line 2499" in html and "more characters not shown" in html
    assert len(html) < 1_500_000 and len(plain) < 40_000


def test_nothing_has_happened_is_a_form_too() -> None:
    assert "nothing has happened yet" in twin.text(state_of(scenes.Story()))
    assert Reader(twin.html(state_of(scenes.Story()))).text.startswith("Branch")
