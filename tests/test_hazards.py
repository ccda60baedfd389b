"""The lesson: each of the five faults shows on a stock Branch, and none of them here."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lionnb import hazards
from lionnb.hazards import Finding, Pair

ALL = [hazards.p1, hazards.p2, hazards.p3, hazards.p4, hazards.p5]


@pytest.mark.parametrize("make", ALL)
def test_the_fault_shows_on_stock_lionagi_and_not_here(make):
    """Every finding, not one of them."""
    pair = make()
    assert pair.holds, pair
    assert len(pair.stock) == len(pair.lionnb) >= 2


async def test_a_lesson_can_be_shown_where_a_loop_is_running():
    """A notebook cell has a running loop."""
    assert hazards.p2().holds


def test_a_pair_shows_itself_and_its_words_are_text():
    """Both forms; nothing in a finding is markup."""
    pair = Pair("<b>P</b>", (Finding("<i>", "<script>", True),), (Finding("<i>", "fine", False),))
    shown = pair._repr_html_()
    assert "<script>" not in shown and "<i>" not in shown and "&lt;script&gt;" in shown
    assert "stock:  ✗ <script>" in repr(pair) and "lionnb: ✓ fine" in repr(pair)


def test_a_fault_here_or_none_on_stock_does_not_hold():
    """The exit status is computed from this."""
    good, bad = Finding("x", "y", False), Finding("x", "y", True)
    assert not Pair("t", (good,), (good,)).holds and not Pair("t", (bad,), (bad,)).holds


def test_the_module_prints_all_five(world):
    """`python -m lionnb.hazards`: status 0, all five titles, no file."""
    command = [sys.executable, "-m", "lionnb.hazards"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=world / "here")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line[:2] for line in done.stdout.splitlines() if line.startswith("P")] == ["P1", "P2", "P3", "P4", "P5"]
    assert list((world / "here").iterdir()) == []
