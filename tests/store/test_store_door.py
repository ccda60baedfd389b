"""What may come in: one answer for every back end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lionnb.errors import ResolveRefusedError, SteerRefusedError
from lionnb.store import MAX_STEER_BYTES, normalise
from lionnb.store.door import normalise_key, person

BLANK = ["", " ", "\n\t \r", "\u200b", "\ufeff\u2060", "\x01\x1f\x7f", "\u00ad\u200d", "\u2800", "\u3164", "\ufe0f"]


@pytest.mark.parametrize("text", BLANK, ids=ascii)
def test_a_text_that_shows_nothing_is_refused_as_blank(text):
    """h01."""
    with pytest.raises(SteerRefusedError) as caught:
        normalise(text)
    assert caught.value.reason == "blank"


@pytest.mark.parametrize("given_", [None, 3, b"bytes", ["x"], {"text": "x"}, object()])
def test_what_is_no_string_is_refused_by_its_type(given_):
    with pytest.raises(SteerRefusedError) as caught:
        normalise(given_)
    assert caught.value.reason == "type" and type(given_).__name__ in str(caught.value)


def test_a_nul_is_refused_with_its_position():
    with pytest.raises(SteerRefusedError, match="position 3") as caught:
        normalise("abc\x00def")
    assert caught.value.reason == "nul"


@pytest.mark.parametrize("half", ["\ud800", "\udbff", "\udc00", "\udfff"], ids=ascii)
def test_a_lone_surrogate_is_refused_with_its_position(half):
    """h03."""
    with pytest.raises(SteerRefusedError, match="position 2") as caught:
        normalise("ab" + half)
    assert caught.value.reason == "surrogate"


@pytest.mark.parametrize("letter", ["a", "é", "漢", "🙂"])
def test_the_limit_is_in_bytes_of_utf8_and_inclusive(letter):
    """h09."""
    width = len(letter.encode())
    full = letter * (MAX_STEER_BYTES // width)
    assert normalise(full) == full
    with pytest.raises(SteerRefusedError) as caught:
        normalise(full + letter)
    assert caught.value.reason == "size"
    assert f"{MAX_STEER_BYTES:,}" in str(caught.value) and f"{len((full + letter).encode()):,}" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["  keep my spaces \n", "<b>&amp;</b>", "e\u0301", "👩\u200d💻", "'; DROP TABLE x; --", "%_"]
)
def test_what_is_accepted_is_accepted_to_the_letter(text):
    assert normalise(text) == text


class Loud(str):
    def __str__(self) -> str:
        return "something else"


def test_a_subclass_of_str_cannot_change_its_mind_afterwards():
    assert type(normalise(Loud("hello"))) is str and normalise(Loud("hello")) == "hello"


@given(st.text(st.characters(codec=None, categories=None), max_size=80))
def test_every_text_is_either_refused_with_a_reason_or_unchanged_and_storable(text):
    try:
        kept = normalise(text)
    except SteerRefusedError as exc:
        assert exc.reason in {"blank", "nul", "surrogate"}
    else:
        assert kept == text and kept.encode() and "\x00" not in kept


@pytest.mark.parametrize("key", ["", "k" * 201, "a\x00b", "\ud800", None, 7], ids=ascii)
def test_a_key_that_an_index_cannot_keep_is_refused(key):
    with pytest.raises(SteerRefusedError) as caught:
        normalise_key(key)
    assert caught.value.reason == "key"


@pytest.mark.parametrize("by", ["", "  ", "\u200b", None, 3], ids=ascii)
def test_a_person_has_a_name(by):
    with pytest.raises(ResolveRefusedError) as caught:
        person(by, "resolving a control")
    assert caught.value.reason == "by"


# --- the same at the store's door -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "blank"), ("\x00", "nul"), ("\ud800", "surrogate"), ("x" * 65537, "size"), (None, "type")],
    ids=["blank", "nul", "surrogate", "size", "type"],
)
async def test_every_back_end_refuses_the_same_texts_and_writes_nothing(core, story, text, reason):
    """h03, h05."""
    sid = await story.running()
    admission = await core.admit(sid, text=text, by="ana", now=story.now)
    assert admission.control is None and admission.refusal[0] == reason
    assert await core.list_controls() == []


@pytest.mark.parametrize(
    "text", ["'; DROP TABLE sessions; --", "%s :now {0} \\", "👩\u200d💻 e\u0301\u202e", "\x1b[31m"], ids=ascii
)
async def test_every_back_end_keeps_a_hostile_text_to_the_letter(core, story, text):
    control = await story.pending(text=text)
    assert (await story.row(control)).text == text
