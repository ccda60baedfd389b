"""Legs between, beside and after cells."""

from __future__ import annotations

from tests.cells import START


def test_a_leg_goes_on_between_cells(kernel) -> None:
    """No cell runs while it ends: what tells of the end is its view."""
    kernel.run(f"{START}\nleg")
    view = kernel.view
    kernel.until(lambda: view.of_kind("start"), "the turn")
    cell = kernel.run("gate.open()")
    kernel.until(lambda: view.of_kind("leg")[-1]["status"] == "completed", "the leg's end")
    assert cell.outputs == []
    (session,) = kernel.sessions()
    assert session["status"] == "completed"


def test_a_leg_shows_nothing_in_the_cells_of_others(kernel) -> None:
    """Whatever it and its tools print belongs to the cell that started it."""
    started = kernel.run(
        "def look(query: str) -> str:\n"
        "    print('a tool prints')\n"
        "    return 'found'\n"
        "call = Reply(text='```json\\n{}\\n```')\n"
        "branch.on_message_added.append(lambda m: print('a message'))\n"
        f"{START}"
    )
    other = kernel.begin("print('mine')\nawait gate.reached()\ngate.open()\nawait leg\nprint('done')")
    kernel.wait(other)
    assert other.printed == "mine\ndone\n"
    assert other.complained == ""
    assert len(other.outputs) == sum(m["msg_type"] == "stream" for m in other.outputs)
    assert "a message" in started.printed


def test_a_plain_cell_starts_steers_and_tabulates(kernel) -> None:
    """No await anywhere: functions, loops and callbacks have none."""
    kernel.run(START)
    kernel.run(
        "def steer_all(texts):\n"
        "    for text in texts:\n"
        "        receipts.append(leg.steer(text))\n"
        "receipts = []\n"
        "steer_all(['one', 'two'])"
    )
    assert kernel.value("[r.chip for r in receipts]") == ["queued", "queued"]
    assert kernel.value("list(lionnb.frames.controls(leg)['text'])") == ["one", "two"]
    assert kernel.value("list(lionnb.frames.legs(leg)['status'])") == ["running"]
    kernel.run("gate.open()\nresult = await leg")
    assert kernel.value("list(lionnb.frames.controls(leg)['fate'])") == ["applied", "applied"]
    assert kernel.value("len(result.turns)") == 2


def test_a_leg_that_fails_and_that_nobody_awaits_says_so(kernel) -> None:
    """In its view, and in the cell that started it; not when the collector comes by."""
    kernel.run(
        "branch = lionnb.Branch(chat_model=scripted_model([Reply(error=ValueError('no such deployment'))]), name='b')"
    )
    started = kernel.run(f"{START}\nleg")
    view = kernel.view
    kernel.until(lambda: view.of_kind("leg") and view.of_kind("leg")[-1]["status"] == "failed", "the failure")
    assert "no such deployment" in view.of_kind("leg")[-1]["sentence"]
    assert "The history is safe" in view.of_kind("leg")[-1]["sentence"]
    kernel.until(lambda: started.complained, "the word in the cell that started it")
    assert "no such deployment" in started.complained
    later = kernel.run("import gc\ndel leg\ngc.collect()\nNone")
    assert later.outputs == []


def test_a_failed_leg_raises_where_it_is_awaited(kernel) -> None:
    kernel.run(
        "branch = lionnb.Branch(chat_model=scripted_model([Reply(error=ValueError('no such deployment'))]), name='b')"
    )
    kernel.run(START)
    cell = kernel.wait(kernel.begin("await leg"))
    assert cell.error.startswith("LegFailedError: ")
    assert "no such deployment" in cell.error
    (shown,) = (m["content"]["traceback"] for m in cell.messages if m["msg_type"] == "error")
    assert len("\n".join(shown).splitlines()) < 15  # not the inside of lionagi
    assert "The history is safe" in shown[-1]


def test_running_a_cell_again_never_starts_a_second_leg(kernel) -> None:
    kernel.run(START)
    again = kernel.wait(kernel.begin(START))
    assert again.error.startswith("LegExistsError: ")
    stopping = START[:-1] + ', on_existing="stop")'
    kernel.run(stopping)
    kernel.run("gate.open()\nawait leg")
    assert kernel.value("[leg.live for leg in lionnb.legs()][-2:]") == [False, False]
    assert [s["status"] for s in kernel.sessions()] == ["cancelled", "completed"]


def test_a_leg_that_is_shown_after_its_end_shows_its_own_turns_alone(kernel) -> None:
    kernel.run(f"{START}\ngate.open()\nawait leg\nawait branch.communicate('another matter')")
    kernel.run("leg")
    view = kernel.view
    kernel.run("await branch.communicate('and another')\nawait leg")
    said = [e["text"] for e in view.snapshot["entries"]["items"] if e["kind"] == "text"]
    assert "Survey the literature." in said
    assert not [text for text in said if "another" in text]
