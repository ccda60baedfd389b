"""Text of models, tools, operators and errors is text: on the page, in the saved notebook, in its export. Source: V2."""

from __future__ import annotations

import json

import nbformat
import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import Page, expect

from tests.browser.view import ViewOnPage
from tests.notebook_page import OUT, NotebookPage

HOSTILE = (
    "<img src=x onerror=window.__pwned=1></script><script>window.__pwned=2</script>"
    '<a href="javascript:window.__pwned=3">a</a>[b](javascript:window.__pwned=4)<style>body{display:none}</style>'
    " **c** $d^2$ &lt;e&gt; \u202egnp.exe"
)

SETUP = f"""
import json
import lionnb
from lionagi.testing import StreamChunkSpec
from lionnb.testing import Gate, Reply, scripted_model

H = json.loads({json.dumps(HOSTILE)!r})
gate = Gate()
talks = Reply(chunks=(
    StreamChunkSpec(type="tool_use", tool_name=H, tool_id="t1", tool_input={{H: H}}),
    StreamChunkSpec(type="tool_result", tool_id="t1", tool_output=H),
    StreamChunkSpec(type="text", content=H),
))
fails = Reply(error=ValueError(H))
branch = lionnb.Branch(chat_model=scripted_model([talks, fails], gate=gate, model=H), system=H, name=H)


class Library:
    name = H

    async def provide(self, branch, instruction):
        return H


class Broken(Library):
    async def provide(self, branch, instruction):
        raise ValueError(H)


branch.providers.register(Library())
branch.providers.register(Broken())
"""
START = 'leg = lionnb.start_leg(branch, H, op="run", name=H, timeout_s=300)\nleg'
FORMULA = "from IPython.display import HTML\nHTML('$y^2$')"  # JupyterLab does typeset that
SHOWN = (
    "branch",
    "leg.receipts[-1]",
    "lionnb.frames.controls(leg)",
    "lionnb.frames.turns(branch)",
    "lionnb.legs()",
    FORMULA,
)
END = "gate.open()\nawait leg"


def nothing_ran(page: Page) -> None:
    assert page.evaluate("() => window.__pwned") is None
    assert page.evaluate("() => getComputedStyle(document.body).display") != "none"  # no style of others took hold


def watched(page: Page) -> list[str]:
    """The dialogs that open on a page from now on."""
    seen: list[str] = []
    page.on("dialog", lambda dialog: (seen.append(dialog.message), dialog.dismiss()))
    return seen


@pytest.fixture(scope="module")
def attacked(stage, chromium, lab):
    """A notebook with hostile text wherever text of others can come from, its leg ended; and the dialogs that opened."""

    def run():
        nb = NotebookPage(chromium, lab, lab.write_notebook([SETUP, START, END, *SHOWN]))
        dialogs = watched(nb.page)
        nb.run_cell(0)
        nb.run_cell(1)
        view = ViewOnPage(nb, 1)
        view.wait_in_turn()
        view.box.fill(HOSTILE)
        view.send.click()
        view.wait_chip("queued")
        nb.run_cell(2)
        view.wait_status("failed")
        for i in range(len(SHOWN)):
            nb.run_cell(3 + i)
        return nb, view, dialogs

    made = stage.call(run)
    yield made
    stage.call(made[0].close)


def test_hostile_text_stays_text_on_the_page(attacked) -> None:
    nb, view, dialogs = attacked
    assert nb.text(2).startswith("LegFailedError: ")
    view.wait_chip("applied")
    for part in (view.transcript, view.steers.first, view.root.locator(".ln-blocks")):
        expect(part).to_contain_text(HOSTILE)
    # in a sentence of ours, a character that would turn round the rest of it is made visible
    expect(view.head).to_contain_text(HOSTILE.replace("\u202e", "\ufffd"))
    assert "\u202e" not in view.head.inner_text()
    assert view.transcript.inner_text().count("window.__pwned=1") >= 6  # asked, tool, result, said, steered, the error
    for root in (view.root, ViewOnPage(nb, 3).root):
        assert root.locator("img, script, style, a, b, i, strong, iframe, object, [onerror]").count() == 0
    expect(nb.output(5)).to_contain_text("<img src=x onerror=window.__pwned=1>")
    for detail in view.root.locator("details").all():
        detail.evaluate("e => { e.open = true; }")
    nothing_ran(nb.page)
    assert dialogs == []
    for theme in ("dark", "light"):
        nb.set_theme(theme)
        nb.screenshot("hostile", cell=1)
    assert nb.foreign_requests == []


def test_hostile_text_stays_text_in_the_saved_notebook_and_its_export(attacked, chromium, tmp_path) -> None:
    nb, _, _ = attacked
    saved = nb.save()
    assert "widgets" not in saved.metadata  # the state needs a CDN; the twin needs nothing
    body, _ = HTMLExporter().from_notebook_node(saved)
    export = tmp_path / "export.html"
    export.write_text(body)
    page = chromium.new_page()
    dialogs = watched(page)
    page.goto(export.as_uri(), wait_until="load")
    nothing_ran(page)
    assert dialogs == []
    twin = page.locator(".jp-OutputArea-output", has_text="Steers").first
    expect(twin).to_be_visible()
    expect(twin).to_contain_text(HOSTILE)
    assert twin.inner_text().count("window.__pwned=1") >= 6
    assert twin.locator("img, script, style, a, b b, i, strong, iframe, object, [onerror]").count() == 0
    (OUT / "hostile-export.png").write_bytes(page.screenshot(full_page=True))
    page.close()


def test_whoever_is_sent_the_notebook_reads_it_without_its_kernel(attacked, notebook, lab) -> None:
    """Opened where nobody ran it, so JupyterLab does not trust it: the twin is there, and is text too."""
    nb, _, _ = attacked
    saved = nb.save()
    saved.metadata["sent_by"] = "somebody"  # the signature covers it: this is another notebook now
    path = lab.root / "sent.ipynb"
    nbformat.write(saved, path)
    other = notebook(path)
    dialogs = watched(other.page)
    twin = other.output(1)
    expect(twin).to_contain_text("Steers")
    expect(twin).to_contain_text(HOSTILE)
    assert other.page.locator(".lionnb-turn-view").count() == 0
    expect(other.output(2 + len(SHOWN)).locator("mjx-container").first).to_be_attached()
    assert twin.locator("mjx-container").count() == 0  # two dollar signs are no formula
    nothing_ran(other.page)
    assert dialogs == []
    for theme in ("dark", "light"):
        other.set_theme(theme)
        other.screenshot("twin-in-lab", cell=1)
