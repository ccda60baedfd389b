"""`lionnb ctl` and `lionnb legs`: another process steers a leg, and every answer says what is true."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import lionnb
from lionnb import cli
from lionnb.records import Fate, SessionSpec
from lionnb.store import Store
from lionnb.store.door import who
from lionnb.store.lease import identity
from lionnb.testing import Gate
from tests.store.conftest import other, pg_url, postgres  # noqa: F401  # fixtures of the store's tests

RUN = "20261130T101010-abcdef"
OTHER_HOST = {"host": "linux:another-boot:pid:[1]", "pid": 1, "pid_start": "1", "ttl_s": 90.0}


@dataclass
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def ctl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Runs `lionnb …` as a person would, in this process; gives exit status and both outputs."""

    def run(*args: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["lionnb", *args])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Said(code, *capsys.readouterr())

    return run


def lionnb_(*args: str, **env: str) -> Said:
    """Runs `lionnb …` in a process of its own."""
    environ = os.environ | env
    done = subprocess.run([sys.executable, "-m", "lionnb", *args], capture_output=True, text=True, env=environ)
    return Said(done.returncode, done.stdout, done.stderr)


class Book:
    """The store that the commands act on, as its own process has it open."""

    def __init__(self, url: str) -> None:
        self.store, self.url = Store(url), url

    def __call__(self, work: Callable[[Any], Any]) -> Any:
        return self.store.submit(work).result(60)

    def run(self, sid: str = "a" * 32, run_id: str = RUN, leg: str = "leg-1", **fields: Any) -> str:
        made = {"id": sid, "run_id": run_id, "branch_id": "branch-1", "leg": leg, "created_at": time.time()}
        self(lambda core: core.start_session(SessionSpec(**made | identity() | fields), time.time()))
        return sid

    def sent(self, text: str = "only sources after 2020", sid: str = "a" * 32, **how: Any) -> str:
        return self(lambda core: core.admit(sid, text=text, by="ana", now=time.time(), **how)).unwrap().id

    def claimed(self, text: str = "claimed", sid: str = "a" * 32, leg: str = "leg-1") -> str:
        cid = self.sent(text, sid)
        self.claim = self(lambda core: core.claim_all(sid, leg, time.time() - 250)).token
        return cid

    def killed(self, sid: str = "a" * 32) -> None:
        """As kill -9 would have left it: running, and another process has its pid."""
        row = self(lambda core: core.get_session(sid))
        gone = SessionSpec(**row.model_dump(include=set(SessionSpec.model_fields)) | {"pid_start": "1"})
        assert self(lambda core: core.resume_session(gone, dead_leg=row.leg, now=time.time()))

    def row(self, cid: str) -> Any:
        return self(lambda core: core.get_control(cid))

    def status(self, sid: str = "a" * 32) -> str:
        return self(lambda core: core.get_session(sid)).status.value


@pytest.fixture
def book() -> Any:
    made = Book(os.environ["LIONNB_DB"])
    yield made
    made.store.close()


# --- a leg, and another process ---------------------------------------------------------------------------------


async def test_another_process_steers_a_leg_and_the_leg_carries_it(road):
    """The whole way: a terminal, the database, the continuation turn, and the model's request."""
    gate = Gate()
    model = road.model(["one", "two"], gate=gate)
    leg = lionnb.start_leg(lionnb.Branch(chat_model=model), "Survey X", name="survey")
    await gate.reached()
    sent = await asyncio.to_thread(lionnb_, "ctl", "msg", leg.run_id, "only sources after 2020", "--by", "ben")
    assert sent.code == 0 and sent.err == "" and "lands as a continuation turn" in sent.out
    listed = await asyncio.to_thread(lionnb_, "legs", "--json")
    (line,) = listed.json["legs"]
    assert (line["run_id"], line["name"], line["status"], line["queued"]) == (leg.run_id, "survey", "running", 1)
    gate.open()
    assert len((await leg).turns) == 2
    assert "only sources after 2020" in str(road.requests(model)[1])
    looked = await asyncio.to_thread(lionnb_, "ctl", "status", leg.run_id, "--json")
    (control,) = looked.json["controls"]
    assert (control["fate"], control["turn_id"], control["created_by"]) == ("applied", leg.turns[1].turn_id, "ben")


async def test_a_receipt_here_says_what_a_person_resolved_in_another_process(road):
    """The claim's holder is slow, not dead: it reports late, and overwrites nothing."""
    gate = Gate()
    leg = lionnb.start_leg(lionnb.Branch(chat_model=road.model(["one", "two"], gate=gate)), "Survey X")
    resolved = asyncio.get_running_loop().create_future()

    def hear(event):
        if event.kind == "steer" and event.data["fate"] == "resolved" and not resolved.done():
            resolved.set_result(event)

    leg.feed.listen(hear)
    await gate.reached()
    receipt = leg.steer("only sources after 2020")
    gate.open()
    gate.close()
    await gate.left()
    await gate.reached()
    assert receipt.fate is Fate.DELIVERING
    said = await asyncio.to_thread(
        lionnb_, "ctl", "resolve", receipt.control_id[:10], "--as", "abandoned", "--by", "ana"
    )
    assert said.code == 0 and "recorded as abandoned by ana" in said.out
    await resolved
    assert receipt.fate is Fate.RESOLVED and receipt.sentence == "recorded as abandoned by ana"
    gate.open()
    await leg
    assert "later its leg reported" in receipt.sentence and receipt.fate is Fate.RESOLVED


async def test_what_another_process_withdraws_is_never_delivered(road):
    gate = Gate()
    leg = lionnb.start_leg(lionnb.Branch(chat_model=road.model(["one"], gate=gate)), "Survey X")
    await gate.reached()
    receipt = leg.steer("only sources after 2020")
    said = await asyncio.to_thread(lionnb_, "ctl", "withdraw", receipt.control_id[:10], "--by", "ana")
    assert said.code == 0 and "withdrawn" in said.out
    await receipt
    assert receipt.fate is Fate.WITHDRAWN
    gate.open()
    assert len((await leg).turns) == 1


def test_a_leg_that_was_killed_is_lost_and_every_fate_is_told(ctl, book, other):  # noqa: F811
    """d02: kill -9: what waited never landed, what was claimed never reported back; the next steer records it."""
    process = other()
    process.runs(book.url, id="a" * 32, name="survey")
    claimed = book.claimed()
    waits = book.sent("waits")
    assert "running" in ctl("legs").out
    process.kill()
    looked = ctl("ctl", "status", RUN)
    assert looked.code == 0 and "lost (its process is gone)" in looked.out and "deadline" not in looked.out
    assert f"process   pid {process.pid} on this machine" in looked.out
    assert "never landed" in looked.out and "never reported back" in looked.out
    assert re.search(r"handed over to leg-1 \d+ min ago, which never reported back", looked.out)
    assert f"resolve {claimed}" in looked.out
    (line,) = ctl("legs", "--json").json["legs"]
    assert (line["status"], line["queued"], line["needs_you"]) == ("lost", 0, 1)
    assert book.status() == "running" and book.row(waits).state.value == "pending"  # looking changed nothing
    refused = ctl("ctl", "msg", RUN, "too late")
    assert refused.code == 1 and refused.out == "" and "is gone" in refused.err
    assert book.status() == "lost" and book.row(waits).state.value == "rejected"
    (line,) = ctl("legs", "--json").json["legs"]  # it has ended, and a person is still needed
    assert (line["status"], line["needs_you"]) == ("lost", 1)
    assert ctl("ctl", "resolve", claimed[:8], "--as", "applied").code == 0
    assert ctl("legs", "--json").json["legs"] == [] and "--all" in ctl("legs").out


def test_a_leg_that_is_stopped_or_blocked_is_steered_and_said_to_be_busy(ctl, book, other):  # noqa: F811
    process = other()
    process.runs(book.url, id="a" * 32, ttl_s=1e-9)
    with process.stopped():
        sent = ctl("ctl", "msg", "aaaa", "go on")
    assert sent.code == 0 and "note: its process is alive but has been busy, or suspended" in sent.out
    assert "its process is alive" in ctl("ctl", "status", "aaaa").out


# --- looking ----------------------------------------------------------------------------------------------------


def test_the_status_of_a_run_tells_every_fate_in_words_and_in_json(ctl, book):
    sid = book.run(name="survey", instruction="Survey X", created_by="ana", deadline_at=time.time() + 3_600)
    rows = {}
    rows["applied"] = book.claimed()
    done = {"turn_id": "turn-1", "turn_outcome": "completed", "in_history": True, "now": time.time()}
    book(lambda core: core.report(book.claim, **done))
    rows["resolved"] = book.claimed()
    book(lambda core: core.resolve(rows["resolved"], "abandoned", "ben", time.time()))
    rows["reported late"] = book.claimed()
    book(lambda core: core.resolve(rows["reported late"], "abandoned", "ben", time.time()))
    book(lambda core: core.report(book.claim, **done))
    rows["delivering"] = book.claimed()
    rows["withdrawn"] = book.sent("withdrawn")
    book(lambda core: core.withdraw(rows["withdrawn"], "ben", time.time()))
    rows["pending"] = book.sent("pending")
    looked, told = ctl("ctl", "status", sid[:4]), ctl("ctl", "status", sid, "--json").json
    assert {c["id"]: c["fate"] for c in told["controls"]} == {
        cid: "resolved" if fate == "reported late" else fate for fate, cid in rows.items()
    }
    held = next(c for c in told["controls"] if c["fate"] == "delivering")
    assert held["owner"] == "leg-1" and held["claim_age_s"] > 200
    assert re.search(r"handed over to leg-1 \d+ min ago: its continuation turn runs", held["sentence"])
    assert re.search(r"deadline  in \d+ min", looked.out)
    for words in (
        "run 20261130T101010-abcdef  survey",
        "recorded as abandoned by ben",
        "applied in turn turn-1, which completed",
        "withdrawn by ben before it was handed over",
        "queued: lands at the end of the current turn; 1 before it",
        "resolved as abandoned by ben; later its leg reported: 20",
        "steers: 1 queued, 1 delivering, 2 applied, 2 not delivered",
        f"process   pid {os.getpid()} on this machine",
    ):
        assert words in looked.out
    book(lambda core: core.end(sid, "leg-1", "failed", by="leg-1", note="why", now=time.time()))
    ended = ctl("ctl", "status", RUN)
    assert "failed: why" in ended.out and "not delivered: the run ended (failed: why)" in ended.out
    assert "never reported back" in ended.out and "deadline" not in ended.out
    only = ctl("ctl", "status", rows["applied"][:12], "--json").json["controls"]
    assert [c["id"] for c in only] == [rows["applied"]]


HOSTILE = 'x\x1b[2J\x9b1m\u202e\r\n  run 20990101T000000-ffffff  forged\u2028"; DROP TABLE'


def test_hostile_text_is_clipped_and_harmless_in_a_terminal_and_to_the_letter_in_json(ctl, book):
    book.run(name=HOSTILE, instruction=HOSTILE * 50, created_by=HOSTILE, leg=HOSTILE)
    cid = book.sent(HOSTILE * 20)
    book(lambda core: core.claim_all("a" * 32, HOSTILE, time.time()))
    for args in (("ctl", "status", RUN), ("legs",)):
        shown = ctl(*args).out
        assert all(line.isprintable() for line in shown.splitlines()) and "\n  run 2099" not in shown
        assert max(map(len, shown.splitlines())) < 600
    told = ctl("ctl", "status", cid, "--json")
    assert told.out.count("\n") == 1 and told.out.isascii() and told.out.strip().isprintable()
    assert told.json["run"]["name"] == HOSTILE and told.json["controls"][0]["payload"] == {"text": HOSTILE * 20}
    assert told.json["controls"][0]["owner"] == HOSTILE
    assert ctl("legs", "--json").json["legs"][0]["created_by"] == HOSTILE


def test_the_list_has_one_line_a_run_with_what_waits_and_what_needs_a_person(ctl, book):
    book.run("a" * 32, "20261130T101010-aaaaaa", "leg-1", name="one")
    book.run("b" * 32, "20261130T101010-bbbbbb", "leg-2", **OTHER_HOST, created_at=time.time() - 7_200)
    book.run("c" * 32, "20261130T101010-cccccc", "leg-3")
    held = book.claimed(sid="c" * 32, leg="leg-3")
    book(lambda core: core.heartbeat("b" * 32, "leg-2", 0.0))
    book.sent(sid="a" * 32)
    book(lambda core: core.end("c" * 32, "leg-3", "completed", by="leg-3", now=time.time()))
    lines = ctl("legs").out.splitlines()
    assert [re.split(r"\s{2,}", line) for line in lines] == [
        ["RUN", "NAME", "STATUS", "QUEUED", "NEEDS YOU", "AGE"],
        ["20261130T101010-aaaaaa", "one", "running", "1", "0", lines[1].rsplit("  ", 1)[1].strip()],
        ["20261130T101010-bbbbbb", "silent", "0", "0", "2 h"],
        ["20261130T101010-cccccc", "completed", "0", "1", lines[3].rsplit("  ", 1)[1].strip()],
    ]
    book(lambda core: core.resolve(held, "applied", "ana", time.time()))
    assert len(ctl("legs", "--json").json["legs"]) == 2 and len(ctl("legs", "--all", "--json").json["legs"]) == 3


# --- acting -----------------------------------------------------------------------------------------------------


def test_a_message_is_acknowledged_with_what_will_happen_to_it(ctl, book):
    book.run()
    first = ctl("ctl", "msg", RUN[:9], "one", "--key", "k", "--by", "ben")
    assert first.code == 0 and first.err == "" and first.out.startswith("control ")
    assert first.out.endswith(f"of run {RUN}: queued; lands as a continuation turn when the current turn ends\n")
    assert "; 1 before it" in ctl("ctl", "msg", "aaa", "two").out
    again = ctl("ctl", "msg", RUN, "one", "--key", "k")
    assert again.code == 0 and "sent before with this key, and not again; it is pending" in again.out
    other_text = ctl("ctl", "msg", RUN, "three", "--key", "k")
    assert other_text.code == 1 and "choose another key" in other_text.err
    rows = book(lambda core: core.list_controls())
    assert [(row.text, row.created_by) for row in rows[:1]] == [("one", "ben")] and len(rows) == 2


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_name_is_the_account_and_one_that_is_no_name_is_refused(ctl, book, blank):
    book.run()
    assert ctl("ctl", "msg", RUN, "go on", "--by", blank).code == 0
    refused = ctl("ctl", "msg", RUN, "go on", "--by", "x" * 201)
    assert refused.code == 1 and "Nothing was written" in refused.err
    (row,) = book(lambda core: core.list_controls())
    assert row.created_by == who()


def test_a_silent_leg_is_steered_anyway_if_the_sender_says_so(ctl, book):
    book.run(**OTHER_HOST)
    book(lambda core: core.heartbeat("a" * 32, "leg-1", 0.0))
    refused = ctl("ctl", "msg", RUN, "go on")
    assert refused.code == 1 and "--anyway" in refused.err and "silent since 1970" in refused.err
    sent = ctl("ctl", "msg", RUN, "go on", "--anyway")
    assert sent.code == 0 and "note: its leg is silent" in sent.out
    assert "but its leg is silent" in ctl("ctl", "status", RUN).out


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_an_agents_leg_is_neither_paused_nor_resumed_and_a_flow_is(ctl, book, verb):
    book.run()
    refused = ctl("ctl", verb, RUN)
    assert refused.code == 1 and "no seam" in refused.err and book(lambda core: core.list_controls()) == []
    book.run("f" * 32, "20261130T101010-ffffff", "leg-f", kind="flow")
    assert ctl("ctl", verb, "ffff").code == 0
    assert [row.verb for row in book(lambda core: core.list_controls())] == [verb]
    assert f"pending  {verb}" in ctl("ctl", "status", "ffff").out


def test_the_account_resolves_and_a_hub_names_its_user(ctl, book, monkeypatch):
    """ADR-0108: it records who, and never a placeholder."""
    book.run()
    monkeypatch.setenv("JUPYTERHUB_USER", "hub-ana")
    cid = book.claimed()
    assert ctl("ctl", "resolve", cid, "--as", "applied").code == 0
    assert (book.row(cid).closed_by, book.row(cid).note) == ("hub-ana", "applied")
    monkeypatch.delenv("JUPYTERHUB_USER")
    monkeypatch.setenv("LOGNAME", "account")
    cid = book.claimed("another")
    assert ctl("ctl", "resolve", cid, "--as", "abandoned").code == 0 and book.row(cid).closed_by == "account"


def test_what_status_printed_resolves_the_hand_over_that_it_showed_and_no_other(ctl, book):
    """V4: the command to copy names the claim; after a give-back and a new hand-over it is refused."""
    sid, cid = book.run(), book.claimed()
    book.killed()
    said = re.search(r"`lionnb (ctl resolve .*) --as", ctl("ctl", "status", RUN).out)
    again = [*shlex.split(said[1]), "--as", "abandoned", "--by", "ben"]
    seen = book.row(cid)
    assert again[:5] == ["ctl", "resolve", cid, "--claim", seen.claim]
    book(lambda core: core.give_back(seen.claim, time.time()))
    book(lambda core: core.claim_all(sid, "leg-1", time.time()))
    refused = ctl(*again)
    assert refused.code == 1 and "handed over anew" in refused.err and book.row(cid).state.value == "delivering"
    again[4] = book.row(cid).claim
    assert ctl(*again).code == 0 and (book.row(cid).note, book.row(cid).closed_by) == ("abandoned", "ben")


def test_a_nameless_person_resolves_nothing(ctl, book):
    book.run()
    cid = book.claimed()
    refused = ctl("ctl", "resolve", cid, "--as", "applied", "--by", " ")
    assert refused.code == 1 and "needs a name" in refused.err and book.row(cid).state.value == "delivering"


def test_what_was_never_claimed_is_withdrawn_and_not_resolved(ctl, book):
    book.run()
    cid = book.sent()
    refused = ctl("ctl", "resolve", cid[:9], "--as", "applied")
    assert refused.code == 1 and "withdraw it instead" in refused.err
    assert ctl("ctl", "withdraw", cid[:9], "--by", "ben").code == 0 and book.row(cid).closed_by == "ben"
    assert ctl("ctl", "withdraw", cid).code == 1


def test_reaping_records_the_dead_and_a_named_person_the_silent(ctl, book):
    book.run("a" * 32, "20261130T101010-aaaaaa", "leg-1")
    book.run("b" * 32, "20261130T101010-bbbbbb", "leg-2", **OTHER_HOST)
    book.sent()
    assert ctl("ctl", "reap").out == "no run here is proven lost\n"
    book.killed()
    book(lambda core: core.heartbeat("b" * 32, "leg-2", 0.0))
    done = ctl("ctl", "reap", "--by", "ben")
    assert (
        done.code == 0 and "20261130T101010-aaaaaa: recorded lost" in done.out and "1 queued and rejected" in done.out
    )
    assert (book.status("a" * 32), book.status("b" * 32)) == ("lost", "running")
    assert ctl("ctl", "reap", "bbbb").code == 2 and book.status("b" * 32) == "running"
    done = ctl("ctl", "reap", "bbbb", "--by", "ben")
    assert done.code == 0 and "declared lost by ben" in done.out and book.status("b" * 32) == "lost"
    assert ctl("ctl", "reap", "bbbb", "--by", "ben").code == 1


def test_purge_removes_what_ended_before_and_names_what_it_kept(ctl, book):
    for i, sid in enumerate(("a" * 32, "b" * 32, "c" * 32)):
        book.run(sid, f"20261130T101010-{i:06}", f"leg-{i}")
    book.claimed(sid="b" * 32, leg="leg-1")
    for i, sid in enumerate(("a" * 32, "b" * 32)):
        book(lambda core, sid=sid, i=i: core.end(sid, f"leg-{i}", "completed", by=None, now=1_000.0))
    assert "0 run(s)" in ctl("ctl", "purge", "--before", "1970-01-01").out
    done = ctl("ctl", "purge", "--before", "30d")
    assert done.code == 0 and "1 run(s), 0 control(s)" in done.out and "kept 1 run(s)" in done.out
    assert [s.id for s in book(lambda core: core.list_sessions())] == ["b" * 32, "c" * 32]


# --- exit statuses, ids, stores ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("ctl", "status", "nobody"), 1),
        (("ctl", "msg", "", "x"), 1),
        (("ctl", "msg", "%", "x"), 1),
        (("ctl", "msg", RUN, "  "), 1),
        (("ctl", "msg", "2026", "x"), 1),
        (("ctl", "withdraw", "aaaa"), 1),
        (("ctl", "msg", RUN), 2),
        (("ctl", "resolve", "x"), 2),
        (("ctl", "resolve", "x", "--as", "maybe"), 2),
        (("ctl", "purge", "--before", "yesterday"), 2),
        (("ctl", "purge", "--before", "9999999d"), 2),
        (("ctl", "nothing"), 2),
        (("legs", "--db", ":memory:"), 3),
        (("ctl", "status", RUN, "--db", "mysql://h/d"), 3),
        (("ctl", "status", RUN, "--db", "missing.db"), 3),
        (("ctl", "status", RUN, "--db", "broken.db"), 3),
    ],
)
def test_the_exit_status_says_what_kind_of_no_it_is(ctl, book, args, code):
    book.run()
    with open("broken.db", "w") as file:
        file.write("no database" * 99)
    said = ctl(*args)
    assert said.code == code and said.out == "" and said.err.strip()
    assert "Traceback" not in said.err and not os.path.exists("missing.db")
    assert book(lambda core: core.list_controls()) == []


def test_an_id_that_fits_two_things_is_refused_and_both_are_named(ctl, book):
    book.run("a" * 32, "20261130T101010-aaaaaa", "leg-1")
    book.run("ab" * 16, "20261130T101010-bbbbbb", "leg-2")
    refused = ctl("ctl", "msg", "a", "x")
    assert refused.code == 1 and "a" * 32 in refused.err and "ab" * 16 in refused.err
    cid = book.sent()
    wrong = ctl("ctl", "msg", cid, "x")
    assert wrong.code == 1 and "is a control, not a run: its run is 20261130T101010-aaaaaa" in wrong.err


def test_a_store_that_is_not_there_yet_has_no_runs_and_is_not_made(ctl):
    path = os.environ["LIONNB_DB"]
    missing = f"there is no control database at {path}, the file does not exist"
    assert ctl("legs").out == f"no runs are here: {missing}\n" and ctl("legs", "--all", "--json").json == {"legs": []}
    for command in (("ctl", "status", RUN), ("export", RUN), ("ctl", "purge", "--before", "30d")):
        refused = ctl(*command)
        assert refused.code == 3 and missing in refused.err
    assert not os.path.exists(path)


def test_who_only_looks_makes_no_file_beside_the_database(ctl, book):
    book.run()
    folder = os.path.dirname(os.environ["LIONNB_DB"])
    before = sorted(os.listdir(folder))
    assert ctl("legs").code == ctl("ctl", "status", RUN).code == ctl("export", RUN).code == 0
    assert sorted(os.listdir(folder)) == before


def test_db_names_another_store_than_the_environment(ctl, book, monkeypatch, tmp_path):
    book.run()
    monkeypatch.setenv("LIONNB_DB", str(tmp_path / "elsewhere.db"))
    assert ctl("ctl", "msg", RUN, "go on", "--db", book.url).code == 0 and ctl("ctl", "msg", RUN, "x").code == 3


@pytest.mark.postgres
def test_the_same_commands_on_postgresql(ctl, pg_url):  # noqa: F811
    book = Book(pg_url)
    try:
        book.run()
        assert ctl("ctl", "msg", RUN[:9], "one", "--db", pg_url).code == 0
        assert ctl("ctl", "status", "aaa", "--json", "--db", pg_url).json["controls"][0]["fate"] == "pending"
        assert ctl("legs", "--db", pg_url).out.count("\n") == 2
        assert ctl("ctl", "msg", "%", "x", "--db", pg_url).code == 1
        book.killed()
        assert "recorded lost" in ctl("ctl", "reap", "--db", pg_url).out and book.status() == "lost"
    finally:
        book.store.close()


def test_a_command_in_a_process_of_its_own_says_its_status(book):
    book.run()
    assert lionnb_("ctl", "msg", RUN, "go on").code == 0
    refused = lionnb_("ctl", "msg", "nobody", "x")
    assert (refused.code, refused.out) == (1, "") and refused.err.startswith("nothing here is called 'nobody'")
    assert lionnb_("legs", LIONNB_DB=":memory:").code == 3


def test_the_commands_load_neither_lionagi_nor_pandas(book):
    book.run()
    code = (
        "import sys; from lionnb.cli import main; sys.argv = ['lionnb', 'ctl', 'status', sys.argv[1]]\n"
        "try: main()\n"
        "except SystemExit as done: assert not done.code\n"
        "print(sorted({'lionagi', 'pandas', 'numpy', 'ipywidgets', 'IPython'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, RUN], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]" and RUN in done.stdout


def test_help_says_the_exit_statuses_and_why_no_machine_resolves(ctl):
    for args in (("ctl",), ("ctl", "msg"), ("ctl", "status"), ("legs",)):
        said = " ".join(ctl(*args, "--help").out.replace("│", " ").split())
        assert "0 done; 1 refused, or not found; 2 wrong usage; 3 the store could not be used" in said
    said = " ".join(ctl("ctl", "resolve", "--help").out.split())
    assert "no tool and no machine surface offers this" in said and "would make the finding up" in said
