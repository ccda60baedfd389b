"""Odd input, as people have reported it to poison histories or widen orders elsewhere: ids are of group h.

Those that are exactly the rule of an older test stand in its docstring: h01, h03, h05, h07, h09, h11, h13, h15, h17, h19,
h23.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

import lionnb
from lionnb import cli, frames
from lionnb.legs import start_leg, steering
from lionnb.notebook import view_of
from lionnb.store import Store
from lionnb.testing import Gate, Reply, scripted_model
from tests.store.conftest import _kept_database, pg_emptied_url, postgres  # noqa: F401  # fixtures

SEPARATED = "one\u2028two\u2029three\x85four"


@pytest.fixture(autouse=True)
def _rows_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "RECORDED_WITHIN_S", 30.0)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    made = Store(tmp_path / "odd.sqlite" if request.param == "sqlite" else request.getfixturevalue("pg_emptied_url"))
    yield made
    made.close()


async def steered(store: Store | None, *texts: str) -> lionnb.Leg:
    """A leg that has carried *texts*."""
    gate = Gate()
    branch = lionnb.Branch(chat_model=scripted_model([Reply("one", gate=gate), "two"]))
    leg = start_leg(branch, "Survey X", store=store)
    await gate.reached()
    for text in texts:
        leg.steer(text)
    gate.open()
    await leg
    return leg


async def test_a_tool_that_returns_nothing_poisons_no_history(road):
    """h02: the next request is answered, and the view says that there was no output."""

    def silent() -> str:
        """Return nothing."""
        return ""

    call = {"action_requests": [{"function": "silent", "arguments": {}}], "reason": None, "action_required": True}
    first = json.dumps(call) if road.name == "cli" else Reply(json.dumps(call))
    branch = lionnb.Branch(chat_model=road.model([first, "fine", "fine"], repeat_last=True), tools=[silent])
    await branch.operate(instruction="use silent", actions=True)
    assert await branch.communicate("go on") == "fine"
    results = [m for m in branch.messages if m.role.value == "action" or type(m).__name__ == "ActionResponse"]
    assert results, "the tool was not called"
    view = view_of(branch)
    assert "(no output)" in view._repr_mimebundle_()[0]["text/html"]
    view.close()


async def test_a_line_of_json_is_one_record_whatever_the_text_holds(monkeypatch, capsys):
    """h06: by the line feed alone, and the text comes back unchanged."""
    leg = await steered(None, SEPARATED)
    monkeypatch.setattr(sys, "argv", ["lionnb", "ctl", "status", leg.run_id, "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 1 and json.loads(out)["controls"][0]["payload"]["text"] == SEPARATED


async def test_text_that_looks_like_a_tag_is_shown_as_text(store):
    """h21."""
    leg = await steered(store, "compare <Plan at 0x1a2b> with a < b && c > d")
    view = view_of(leg)
    for html in (frames.controls(leg)._repr_html_(), view._repr_mimebundle_()[0]["text/html"]):
        assert "&lt;Plan at 0x1a2b&gt;" in html and "<Plan" not in html
    view.close()


@pytest.mark.parametrize("text", ["123", "null", "true", "0.1", '{"text": "inner"}', '"quoted"', "\\u0041"])
async def test_a_text_that_is_json_itself_stays_the_text_that_it_is(store, text):
    """h24: on both databases, and for whoever reads it: it sits in a field of an object and is decoded once."""
    leg = await steered(store, text)
    row = (await leg.receipts[0]).record
    read = store.submit(lambda core: core.get_control(row.id)).result(30)
    assert type(read.text) is str and read.text == text == row.text
    assert frames.controls(leg)["text"].tolist() == [text]
