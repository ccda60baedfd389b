"""What is printed in a terminal: harmless, on its own line, and as wide as it says."""

from __future__ import annotations

import io
import json
import sys

import pytest

from lionnb.plain import first_line, plain
from lionnb.terminal import clip, json_line, say, table

HOSTILE = "a\x1b[2J\x9b31m\x07\u202eb\r\nrun forged\u2028\x85\tc\x7f\ud800\u200e"


def test_a_clipped_text_is_one_line_on_which_nothing_acts():
    shown = clip(HOSTILE, 200)
    assert shown == "a\ufffd[2J\ufffd31m\ufffd\ufffdb run forged c\ufffd\ufffd\ufffd" and shown.isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("12345678", "12345678"),
        ("123456789", "1234567…"),
        ("測試測試", "測試測試"),
        ("測試測試x", "測試測…"),
        ("e\u0301" * 8, "e\u0301" * 8),
        ("", ""),
        (" \n ", ""),
        (None, "None"),
    ],
)
def test_a_text_is_cut_by_its_cells_and_the_cut_is_seen(text, shown):
    assert clip(text, 8) == shown


def test_marks_that_pile_up_on_one_letter_are_cut_too():
    assert len(clip("a" + "\u0301" * 10_000, 20)) <= 100


def test_the_columns_of_a_table_are_aligned_by_cells():
    lines = table(("A", "B"), [("測試", "1"), ("abc", "2")]).splitlines()
    assert lines == ["A     B", "測試  1", "abc   2"]


def test_json_holds_every_text_to_the_letter_and_nothing_on_which_a_terminal_acts():
    line = json_line({"text": HOSTILE})
    assert json.loads(line) == {"text": HOSTILE} and line.isascii() and line.isprintable()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_the_terminal_cannot_show_is_replaced_and_no_error(monkeypatch, encoding):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding, errors="strict"))
    say("a… 測 \ud800")
    sys.stdout.flush()
    assert raw.getvalue().decode(encoding).startswith("a") and raw.getvalue().endswith(b"\n")


def test_plain_text_keeps_its_lines_and_nothing_acts():
    assert plain("a\x1b[2J\u202eb\r\n\tc") == "a\ufffd[2J\ufffdb\ufffd\n\tc"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("  first\nsecond", "first"),
        ("one\u2028forged", "one"),
        ("", ""),
        ("\x1b[1mbold", "\ufffd[1mbold"),
        ("x" * 999, "x" * 300),
    ],
)
def test_a_first_line_is_one_plain_line(text, said):
    assert first_line(text) == said
