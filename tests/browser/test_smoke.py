"""The harness itself: what later browser tests rest on holds for the simplest widget."""

from __future__ import annotations

import asyncio
import threading

import pytest
from playwright.sync_api import expect

COUNTER = '''
import anywidget, traitlets

class Counter(anywidget.AnyWidget):
    """A number in the kernel and a button that raises it."""

    _esm = """
    export default {
      render({ model, el }) {
        const button = document.createElement("button");
        const draw = () => { button.textContent = `count is ${model.get("value")}`; };
        button.setAttribute("aria-label", "Count");
        button.addEventListener("click", () => model.send({ kind: "count" }));
        model.on("change:value", draw);
        draw();
        el.appendChild(button);
      }
    };
    """
    value = traitlets.Int(0).tag(sync=True)

    def __init__(self):
        super().__init__()
        self.on_msg(lambda _, content, buffers: setattr(self, "value", self.value + 1))

counter = Counter()
counter
'''


def test_a_click_reaches_the_kernel_and_its_number_the_page(notebook, theme) -> None:
    nb = notebook(COUNTER, "print(counter.value)", theme=theme)
    nb.run_all()
    button = nb.output(0).get_by_role("button", name="Count")
    expect(button).to_have_text("count is 0")
    for n in (1, 2, 3):
        nb.click("Count", cell=0)
        expect(button).to_have_text(f"count is {n}")
    nb.run_cell(1)
    assert nb.text(1) == "3\n"
    assert nb.screenshot("smoke-counter").stat().st_size > 5_000
    assert nb.errors == []
    assert nb.foreign_requests == []


def test_a_page_that_comes_back_shows_the_kernels_number(notebook) -> None:
    nb = notebook(COUNTER)
    nb.run_all()
    nb.click("Count")
    button = nb.output(0).get_by_role("button", name="Count")
    expect(button).to_have_text("count is 1")
    nb.save()
    nb.reload()
    expect(button).to_have_text("count is 1")
    nb.click("Count")
    expect(button).to_have_text("count is 2")


def test_waiting_ends_with_the_run_not_with_the_one_before(notebook) -> None:
    # ipykernel sees an interrupt when its loop next wakes, hence the cell that wakes it
    nb = notebook("import asyncio", "print('waits')\nwhile True:\n    await asyncio.sleep(0.05)")
    nb.run_cell(0)
    for _ in range(2):  # the second time the cell has a number and an old state, and neither may count
        nb.run_cell(1, wait=False)
        nb.wait_text(1, "waits")
        assert not nb.page.evaluate("() => window.lionnbTest.ended(1) || window.lionnbTest.done")
        nb.interrupt()
        nb.wait_cell(1)
        nb.wait_done()
        assert nb.text(1).startswith("waits\nCancelledError")


def test_cells_below_an_error_are_not_waited_for(notebook) -> None:
    nb = notebook("1 / 0", "print('never')")
    nb.run_all()
    nb.wait_cell(1)
    assert nb.text(0) == "ZeroDivisionError: division by zero"
    assert nb.outputs(1) == []


def test_the_kernel_is_private(notebook, lab) -> None:
    nb = notebook("import os; print(os.environ['LIONNB_DB'], os.getcwd())", "import sys; print(sys.executable)")
    nb.run_all()
    assert nb.text(0).split() == [str(lab.database), str(lab.root)]


def test_typing_goes_key_by_key_into_the_field_with_that_label(notebook) -> None:
    nb = notebook(
        "import ipywidgets; field = ipywidgets.Text(description='Say', continuous_update=False); field", "field.value"
    )
    nb.run_cell(0)
    nb.type("Say", "naïve 'text'", enter=True)
    nb.run_cell(1)
    assert nb.text(1) == repr("naïve 'text'")


def test_the_body_runs_on_the_stage(stage, chromium) -> None:
    assert threading.current_thread().name.startswith("browser")
    assert chromium.is_connected()


async def test_async_tests_run_beside_an_open_browser(chromium) -> None:
    """playwright's loop must not be the running loop of the main thread, or this test could not start."""
    assert threading.current_thread() is threading.main_thread()
    await asyncio.wait_for(asyncio.sleep(0), 5)


@pytest.mark.xfail(raises=ZeroDivisionError, strict=True)
def test_a_failure_on_the_stage_is_the_tests_failure(stage) -> None:
    raise ZeroDivisionError
