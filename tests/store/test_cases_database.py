"""Databases, as people have reported them to lock, tear or double elsewhere: ids are of the reported cases, group g.

Those that are exactly the rule of an older test stand in its docstring: g01, g05, g09, g11, g21.

g07 (side files of the write-ahead log are replaced under an open connection) does not apply: there is no such log here
(``journal_mode=TRUNCATE``). Its kind, the file itself moved or deleted while open, is refused with a sentence:
`test_a_file_that_was_deleted_while_open_is_named`.
"""

from __future__ import annotations

import asyncio

import pytest

from lionnb.records import ControlState, Verdict
from lionnb.status import legs_json, told
from lionnb.store.lease import claim_is_dead, leg_of, new_token

OTHER_HOST = {"host": "linux:another-boot:pid:[1]", "pid": 1, "pid_start": "1", "ttl_s": 90.0}


async def test_two_stores_of_one_database_lose_nothing_and_fail_nowhere(shared_location, opened, make_story):
    """g03: two kernels; the lock is the database's, not an object's."""
    cores = [await opened(shared_location) for _ in range(2)]
    story = make_story(cores[0])
    sid = await story.running()
    got = await asyncio.gather(
        *[cores[i % 2].admit(sid, text=str(i), by="ana", now=story.now) for i in range(200)], return_exceptions=True
    )
    assert [one for one in got if isinstance(one, BaseException) or one.control is None] == []
    rows = await cores[1].list_controls(sid)
    assert len(rows) == 200 == len({row.seq for row in rows}) and [row.seq for row in rows] == sorted(
        r.seq for r in rows
    )


async def test_a_caller_that_is_cancelled_gives_its_connection_back(core, story):
    """g13: thirty of them, at every stage; each is stored once or not at all, and the next one finds a connection."""
    sid = await story.running()
    for n in range(30):
        admission = asyncio.create_task(core.admit(sid, text=f"x{n}", by="ana", control_id=f"x{n}", now=story.now))
        for _ in range(n % 6):
            await asyncio.sleep(0)
        admission.cancel()
        await asyncio.wait([admission])
    assert (await asyncio.wait_for(core.admit(sid, text="last", by="ana", now=story.now), 30)).control is not None
    ids = [row.id for row in await core.list_controls(sid)]
    assert len(ids) == len(set(ids)) and len(ids) <= 31


async def test_sixteen_claims_at_once_hand_a_row_over_once(shared_location, opened, make_story):
    """g15: exactly one of them holds it, and the row bears that one's mark."""
    cores = [await opened(shared_location) for _ in range(2)]
    story = make_story(cores[0])
    row = await story.pending(await story.running())
    claims = await asyncio.gather(*[cores[i % 2].claim_all(row.session_id, "leg-1", story.now) for i in range(16)])
    (holder,) = [claim for claim in claims if claim]
    assert len({claim.token for claim in claims}) == 16 and (await story.row(row)).claim == holder.token


async def test_a_claim_of_a_leg_before_is_not_that_of_the_next_one_of_the_same_name(core, story):
    """g17: what it held stays visible as its own, and the next leg's report touches nothing of it."""
    sid = await story.running("leg-1", name="pod-1")
    old = await story.claimed(sid)
    await core.mark_lost(sid, "leg-1", "its process is gone", "reaper", story.now)
    again = await story.running("leg-2", name="pod-1")
    new = await story.claimed(again, leg="leg-2")
    assert (await story.report(new.token)).landed == (new.rows[0].id,)
    row = await story.row(old.rows[0])
    assert (row.state, leg_of(row.claim)) == (ControlState.DELIVERING, "leg-1")
    assert new_token("pod-1") != new_token("pod-1")


@pytest.mark.parametrize("off_s", [600.0, -600.0], ids=["ahead", "behind"])
async def test_a_reader_whose_clock_is_wrong_ends_nothing_and_shows_no_age_below_zero(core, story, off_s):
    """g19: here the process is asked, and no clock; of another host it says silent at most, which ends nothing."""
    from lionnb.store.lease import identity

    here = await story.running("leg-1", **identity())
    there = await story.running("leg-2", **OTHER_HOST)
    claim = await story.claimed(here, leg="leg-1")
    now = story.now + off_s
    await core.heartbeat(there, "leg-2", story.now)
    sessions = await core.list_sessions([here, there])
    views = await core.views(sessions, now)
    assert views[0].verdict is Verdict.ALIVE and views[1].verdict in (Verdict.FRESH, Verdict.SILENT)
    assert await core.reap(now, "ana") == [] and (await core.get_session(there)).status == "running"
    (shown,) = told(list(claim.rows), sessions[0], views[0], now)
    assert shown.claim_age_s >= 0 and "-" not in shown.sentence.partition("handed over to leg-1 ")[2]
    assert not claim_is_dead(claim.rows[0], sessions[0], views[0].verdict)
    lines = [(session, view, 0, 0) for session, view in zip(sessions, views, strict=True)]
    assert all(line["age_s"] >= 0 for line in legs_json(lines, now)["legs"])
