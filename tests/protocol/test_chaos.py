"""Nothing acknowledged is lost, nothing is delivered twice and no record is false, whoever is killed whenever (S6)."""

from __future__ import annotations

import random
import statistics

import pytest

from lionnb.records import ControlState
from lionnb.store import Store
from tests.protocol.book import read_books
from tests.protocol.chaos import Chaos
from tests.protocol.judge import Evidence, judge
from tests.protocol.processes import Round

KILLS = 260  # on each database; `python -m tests.protocol.chaos --kills 10000` for as many as you have time for


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_any_process_may_be_killed_at_any_moment(url, request, tmp_path):
    """Legs, operators, reapers and who takes over; at the end a crash of the server, where there is one."""
    chaos = Chaos(url, tmp_path / "books", seed=20261130)
    found = chaos.run(KILLS)
    print(f"\n{dict(chaos.count)}")
    assert not found, "\n".join(found)
    assert chaos.count["kills"] >= KILLS
    for happened in ("legs killed", "operators killed", *(state.value for state in ControlState)):
        assert chaos.count[happened] or happened == ControlState.PENDING, chaos.count
    if url.startswith("postgresql"):
        request.getfixturevalue("server").restart()
        assert not chaos.whole_and_true()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_eight_processes_steer_eight_legs_on_one_file(tmp_path):
    """g01: Nothing is lost and nobody sees an error, however busy the one writer of SQLite is."""
    made = Round(str(tmp_path / "crowd.sqlite"), tmp_path / "books", random.Random(8))
    for what in ("steady", "steersman"):
        for _ in range(8):
            made.start(what, made.folder, 8, mortal=False)
    made.wait()
    lines = [*read_books(made.folder)]
    evidence, store = Evidence.of(lines), Store(made.url)
    sessions = store.submit(lambda core: core.list_sessions()).result(timeout=60)
    rows = store.submit(lambda core: core.list_controls()).result(timeout=60)
    store.close()
    found = [*made.failures(), *judge(evidence, {run.id: run for run in sessions}, {row.id: row for row in rows})]
    assert not found, "\n".join(found)
    assert len(evidence.steers) == 8 * 32 and all(steer.answers for steer in evidence.steers.values())
    assert {row.state for row in rows} == {ControlState.APPLIED} and len(rows) >= 8 * 16
    took = sorted(line["ms"] for line in lines if line["what"] == "took")
    at = [statistics.median(took), took[int(0.95 * len(took))], took[-1]]
    print(f"\n{len(took)} steers by 8 processes: median {at[0]:.1f} ms, p95 {at[1]:.1f} ms, slowest {at[2]:.1f} ms")
