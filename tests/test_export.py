"""`lionnb export`: all of a run as JSON, and with --redact nothing that anybody wrote."""

from __future__ import annotations

import json
import stat

import pytest

from lionnb.export import KEPT, exported, redacted, write_private
from lionnb.records import ControlRecord, SessionRecord, TurnOutcome, TurnRecord
from tests.test_ctl import RUN, book, ctl  # noqa: F401  # fixtures

SECRETS = (
    "ana",
    "survey the clinic",
    "only patients after 2020",
    "my-key",
    "no such deployment",
    "block text",
    "host-7",
)


@pytest.fixture
def run(book) -> str:  # noqa: F811
    """A run with a steer and a turn that failed; everything that somebody wrote is one of the secrets."""
    sid = book.run(instruction="survey the clinic", name="survey the clinic", created_by="ana", host="host-7", pid=1)
    book.control = book.sent("only patients after 2020", key="my-key")
    turn = TurnRecord(
        turn_id="turn-1",
        branch_id="branch-1",
        branch_name="survey the clinic",
        session_id=sid,
        operation="operate",
        model="openai/gpt-4o-mini",
        task="ana",
        queued_at=1.0,
        started_at=1.5,
        ended_at=3.0,
        outcome=TurnOutcome.FAILED,
        error="ValueError: no such deployment",
        blocks=({"name": "ana", "tokens": 3, "text": "block text"},),
        skipped=("ana",),
        degraded=({"provider_name": "ana", "reason": "no such deployment"},),
        carried=(book.control,),
        starved_s=1.5,
    )
    book(lambda core: core.put_turn(turn, 4.0))
    return sid


def test_it_is_the_whole_run_to_the_letter(run, book, ctl) -> None:  # noqa: F811
    said = ctl("export", RUN)
    assert (said.code, said.err) == (0, "")
    value = said.json
    assert value["lionnb_export"] == 1 and value["redacted"] is False
    assert SessionRecord(**value["run"]).id == run
    (control,) = value["controls"]
    assert (control.pop("fate"), control.pop("chip")) == ("pending", "queued")
    assert ControlRecord(**control).text == "only patients after 2020"
    (turn,) = value["turns"]
    assert TurnRecord(**turn).starved_s == 1.5 and TurnRecord(**turn).carried == (book.control,)
    assert all(secret in said.out for secret in SECRETS)


def test_redacted_it_holds_nothing_that_anybody_wrote(run, book, ctl) -> None:  # noqa: F811
    said = ctl("export", RUN, "--redact")
    assert not [secret for secret in SECRETS if secret in said.out]
    value = said.json
    assert value["redacted"] is True
    assert value["run"]["instruction"] == f"({len('survey the clinic')} characters)"
    (control,) = value["controls"]
    assert control["payload"] == {"text": f"({len('only patients after 2020')} characters)"}
    assert (control["id"], control["state"], control["fate"]) == (book.control, "pending", "pending")
    (turn,) = value["turns"]
    assert turn["error"] == f"({len('ValueError: no such deployment')} characters)"
    assert turn["blocks"][0]["tokens"] == 3 and turn["carried"] == [book.control]
    assert (turn["outcome"], turn["model"], turn["ended_at"]) == ("failed", "openai/gpt-4o-mini", 3.0)


@pytest.mark.parametrize("found", ["applied", "abandoned"])
def test_redacted_it_still_says_what_a_person_found(book, ctl, found) -> None:  # noqa: F811
    """A word of a fixed list is nobody's text; a note that says anything else is."""
    book.run()
    cid, gone = book.claimed(), book.sent()
    book(lambda core: core.resolve(cid, found, "ana", 5.0))
    book(lambda core: core.withdraw(gone, "ana", 6.0, note=f"{found}, as I thought"))
    notes = {one["id"]: one["note"] for one in ctl("export", RUN, "--redact").json["controls"]}
    assert notes == {cid: found, gone: f"({len(found) + len(', as I thought')} characters)"}


def test_what_may_stay_are_fields_that_exist() -> None:
    """A field of a new name is redacted until somebody says otherwise."""
    fields = {*SessionRecord.model_fields, *ControlRecord.model_fields, *TurnRecord.model_fields, "fate", "chip"}
    assert fields >= KEPT
    assert redacted({"new": "text", "more": [{"deep": "text"}], "n": 3, "no": None, "yes": True}) == {
        "new": "(4 characters)",
        "more": [{"deep": "(4 characters)"}],
        "n": 3,
        "no": None,
        "yes": True,
    }


def test_a_file_is_new_and_its_owners_alone(run, ctl, tmp_path) -> None:  # noqa: F811
    path = tmp_path / "run.json"
    said = ctl("export", RUN, "--out", str(path))
    assert (said.code, said.out, said.err) == (0, "", "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["run"]["id"] == run
    before = path.read_bytes()
    again = ctl("export", RUN, "--out", str(path))
    assert again.code == 1 and "is a file of this name already: nothing was written" in again.err
    assert path.read_bytes() == before
    nowhere = ctl("export", RUN, "--out", str(tmp_path / "no" / "folder.json"))
    assert nowhere.code == 1 and "nothing was written" in nowhere.err


def test_a_link_is_not_followed(tmp_path) -> None:
    """Somebody else's file is not written through one."""
    from lionnb.errors import LionnbError

    target, link = tmp_path / "theirs", tmp_path / "run.json"
    link.symlink_to(target)
    with pytest.raises(LionnbError):
        write_private(link, {})
    assert not target.exists()


def test_an_id_that_nothing_has_is_refused(run, ctl) -> None:  # noqa: F811
    assert ctl("export", "nothing-here").code == 1


def test_every_text_can_be_written(run, book, ctl) -> None:  # noqa: F811
    """Control characters and whatever a terminal acts on are escaped, in both places."""
    session = book(lambda core: core.get_session(run)).model_copy(update={"name": "\x1b[31m\u202e\ud800"})
    value = exported(session, [], [], at=1.0, redact=False)
    assert "\\u001b" in json.dumps(value) and "\\ud800" in json.dumps(value)
