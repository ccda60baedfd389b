"""The protocol of a control, one rule a test, on every back end (ADR-0108)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lionnb.errors import ResolveRefusedError, SteerRefusedError
from lionnb.records import Chip, ControlState, Fate, chip_of

S = ControlState


# --- admission --------------------------------------------------------------------------------------------------


async def test_an_admitted_steer_is_a_pending_row_of_its_run(core, story):
    sid = await story.running()
    admission = await core.admit(sid, text="go on", by="ana", key="k", control_id="c-1", resent_from="c-0", now=5.0)
    row = await story.row("c-1")
    assert admission.control == row and admission.unwrap() == row
    assert (row.session_id, row.verb, row.payload, row.state) == (sid, "message", {"text": "go on"}, S.PENDING)
    assert (row.created_by, row.created_at, row.key, row.resent_from) == ("ana", 5.0, "k", "c-0")
    assert row.claim is row.handed_over_at is row.closed_at is None


async def test_order_is_the_databases_and_not_the_clocks(core, story):
    sid = await story.running()
    for text, at in (("first", 9.0), ("second", 1.0), ("third", 5.0)):
        await core.admit(sid, text=text, by="ana", now=at)
    assert [row.text for row in (await core.claim_all(sid, "leg-1", story.now)).rows] == ["first", "second", "third"]


async def test_an_ended_run_admits_nothing(core, story):
    sid = await story.ended("failed")
    admission = await core.admit(sid, text="too late", by="ana", now=story.now)
    assert (
        admission.refusal[0] == "ended"
        and "failed" in admission.refusal[1]
        and "lionnb.resume(" in admission.refusal[1]
    )
    assert await core.list_controls() == []
    with pytest.raises(SteerRefusedError) as caught:
        admission.unwrap()
    assert caught.value.reason == "ended"


async def test_an_unknown_run_admits_nothing(core, story):
    admission = await core.admit("nobody", text="hello", by="ana", now=story.now)
    assert admission.refusal[0] == "unknown" and "lionnb legs" in admission.refusal[1]


@pytest.mark.parametrize(
    ("kind", "verb", "reason"),
    [
        ("agent", "message", None),
        ("agent", "pause", "verb"),
        ("agent", "resume", "verb"),
        ("flow", "message", None),
        ("flow", "pause", None),
        ("flow", "resume", None),
        ("agent", "stop", "verb"),
        ("flow", "stop", "verb"),
        ("flow", "jump", "verb"),
        ("mirror", "message", "kind"),
        ("mirror", "pause", "kind"),
    ],
)
async def test_a_verb_is_admitted_where_that_kind_of_run_consumes_it(core, story, kind, verb, reason):
    sid = await story.running(kind=kind)
    admission = await core.admit(sid, verb=verb, text="hello", by="ana", now=story.now)
    assert (admission.refusal and admission.refusal[0]) == reason
    assert len(await core.list_controls()) == (reason is None)


async def test_an_agent_session_without_a_run_id_admits_nothing(core, story):
    """A mirrored session reads running and nobody drains it: fail closed."""
    sid = await story.running(run_id="")
    assert (await core.admit(sid, text="hello", by="ana", now=story.now)).refusal[0] == "kind"


async def test_only_a_message_has_a_text(core, story):
    sid = await story.running(kind="flow")
    assert (await core.admit(sid, verb="pause", text="ignored", by="ana", now=story.now)).unwrap().payload == {}


async def test_position_counts_what_is_open_before_it(core, story):
    sid = await story.running()
    claim = await story.claimed(sid, rows=2)
    await story.pending(sid)
    assert (await core.admit(sid, text="third", by="ana", now=story.now)).position == 3
    await story.report(claim.token)
    assert (await core.admit(sid, text="fourth", by="ana", now=story.now)).position == 2
    other = await story.running()
    assert (await core.admit(other, text="alone", by="ana", now=story.now)).position == 0


async def test_a_key_used_twice_is_one_row(core, story):
    sid = await story.running()
    first = await story.pending(sid, "go on", key="k")
    again = await core.admit(sid, text="go on", by="ben", key="k", now=story.now)
    assert again.duplicate and again.control == first and again.refusal is None
    assert await core.list_controls() == [first]


async def test_a_key_used_twice_finds_its_row_also_when_the_run_has_ended(core, story):
    sid = await story.running()
    first = await story.pending(sid, "go on", key="k")
    await core.end(sid, "leg-1", "completed", by=None, now=story.now)
    again = await core.admit(sid, text="go on", by="ana", key="k", now=story.now)
    assert again.duplicate and again.control.id == first.id and again.control.state is S.REJECTED


async def test_a_key_with_another_text_is_refused(core, story):
    sid = await story.running()
    first = await story.pending(sid, "go on", key="k")
    again = await core.admit(sid, text="stop it", by="ana", key="k", now=story.now)
    assert again.refusal[0] == "key" and again.control is None
    assert await core.list_controls() == [first]


async def test_a_key_belongs_to_its_run(core, story):
    one, two = await story.running(), await story.running()
    assert (await story.pending(one, key="k")).id != (await story.pending(two, key="k")).id


async def test_a_control_id_used_twice_is_one_row(core, story):
    sid, other = await story.running(), await story.running()
    await story.pending(sid, "go on", control_id="c-1")
    assert (await core.admit(sid, text="go on", by="ana", control_id="c-1", now=story.now)).duplicate
    assert (await core.admit(other, text="go on", by="ana", control_id="c-1", now=story.now)).refusal[0] == "key"


# --- hand-over --------------------------------------------------------------------------------------------------


async def test_a_claim_takes_everything_pending_in_order(core, story):
    sid = await story.running()
    sent = [await story.pending(sid, f"m{i}") for i in range(5)]
    claim = await core.claim_all(sid, "leg-1", 50.0)
    assert [row.id for row in claim.rows] == [row.id for row in sent] and claim.owned
    for row in claim.rows:
        assert (row.state, row.claim, row.handed_over_at, row.closed_at) == (S.DELIVERING, claim.token, 50.0, None)
        assert row == await story.row(row)


async def test_a_row_is_claimed_once(core, story):
    sid = await story.running()
    first = await story.claimed(sid)
    second = await core.claim_all(sid, "leg-1", story.now)
    assert not second and second.owned and second.token != first.token
    assert (await story.row(first.rows[0])).claim == first.token


async def test_another_leg_claims_nothing_and_is_told(core, story):
    sid = await story.running()
    await story.pending(sid)
    claim = await core.claim_all(sid, "leg-2", story.now)
    assert not claim and not claim.owned
    assert await core.pending_count(sid) == 1


async def test_a_leg_of_an_ended_run_claims_nothing_and_is_told(core, story):
    sid = await story.ended(sweep=False, pending=1)
    claim = await core.claim_all(sid, "leg-1", story.now)
    assert not claim and not claim.owned and await core.pending_count(sid) == 1


async def test_a_claim_leaves_other_runs_alone(core, story):
    one, two = await story.running(), await story.running()
    await story.pending(one), await story.pending(two)
    await core.claim_all(one, "leg-1", story.now)
    assert (await core.pending_count(one), await core.pending_count(two)) == (0, 1)


async def test_an_unresolved_claim_does_not_block_what_comes_after_it(core, story):
    """d17."""
    sid = await story.running()
    stuck = await story.claimed(sid)
    later = await story.claimed(sid)
    assert {row.claim for row in await core.list_controls(sid)} == {stuck.token, later.token}


# --- give back --------------------------------------------------------------------------------------------------


async def test_what_is_given_back_is_pending_again_and_can_be_claimed(core, story):
    sid = await story.running()
    claim = await story.claimed(sid, rows=2)
    assert set(await core.give_back(claim.token, story.now)) == {row.id for row in claim.rows}
    for row in await core.list_controls(sid):
        assert (row.state, row.claim, row.handed_over_at) == (S.PENDING, None, None)
    again = await core.claim_all(sid, "leg-1", story.now)
    assert [row.id for row in again.rows] == [row.id for row in claim.rows] and again.token != claim.token


async def test_only_the_holder_gives_back(core, story):
    claim = await story.claimed()
    assert await core.give_back(claim.token + "x", story.now) == ()
    assert (await story.row(claim.rows[0])).state is S.DELIVERING


async def test_a_claim_that_was_given_back_finalizes_nothing(core, story):
    claim = await story.claimed()
    await core.give_back(claim.token, story.now)
    reported = await story.report(claim.token, expected=[claim.rows[0].id])
    assert (reported.landed, reported.late, reported.lost) == ((), (), (claim.rows[0].id,))
    assert (await story.row(claim.rows[0])).state is S.PENDING


async def test_a_row_resolved_meanwhile_is_not_given_back_but_told_late(core, story):
    claim = await story.claimed()
    await core.resolve(claim.rows[0].id, "applied", "ana", story.now)
    assert await core.give_back(claim.token, story.now) == ()
    row = await story.row(claim.rows[0])
    assert row.state is S.RESOLVED and "never called" in row.late_report and row.late_delivery is False


# --- report -----------------------------------------------------------------------------------------------------


async def test_a_report_says_which_turn_carried_it_and_how_that_ended(core, story):
    claim = await story.claimed(rows=2)
    reported = await core.report(
        claim.token, turn_id="t-9", turn_outcome="timed_out", in_history=False, note="late", now=70.0
    )
    assert reported.landed == tuple(row.id for row in claim.rows) and not reported.late and not reported.lost
    row = await story.row(claim.rows[1])
    assert (row.state, row.turn_id, row.turn_outcome, row.in_history) == (S.APPLIED, "t-9", "timed_out", False)
    assert (row.note, row.closed_at, row.closed_by, row.claim) == ("late", 70.0, "leg-1", claim.token)
    assert row.handed_over_at == claim.rows[1].handed_over_at


async def test_a_report_without_the_claim_lands_nowhere(core, story):
    claim = await story.claimed()
    assert not (await story.report("leg-1:guessed")).landed
    assert (await story.row(claim.rows[0])).state is S.DELIVERING


async def test_a_second_report_changes_nothing_and_is_told_that_it_was_there_before(core, story):
    """The answer to the first was lost: what stands is this holder's own word, and nobody else's."""
    claim = await story.claimed()
    await story.report(claim.token, turn_id="t-1")
    before = await story.row(claim.rows[0])
    reported = await story.report(claim.token, turn_id="t-2", expected=[before.id])
    assert reported.earlier == (before.id,) and not (reported.landed or reported.late or reported.lost)
    assert await story.row(before) == before


async def test_a_late_claimant_cannot_overwrite_a_resolution(core, story):
    """d27: S5, and ADR-0108: the holder comes back after a person has decided."""
    claim = await story.claimed(rows=2)
    resolved = await core.resolve(claim.rows[0].id, "abandoned", "ana", story.now)
    reported = await story.report(claim.token, turn_id="t-1")
    assert (reported.landed, reported.late) == ((claim.rows[1].id,), (resolved.id,))
    row = await story.row(resolved)
    assert row.late_report and "t-1" in row.late_report
    assert row == resolved.model_copy(update={"late_report": row.late_report})
    assert row.late_delivery is True and chip_of(Fate.RESOLVED, row) is Chip.APPLIED


async def test_a_late_report_is_written_once(core, story):
    claim = await story.claimed()
    await core.resolve(claim.rows[0].id, "abandoned", "ana", story.now)
    await story.report(claim.token, turn_id="t-1")
    first = await story.row(claim.rows[0])
    again = await story.report(claim.token, turn_id="t-2")
    assert (again.late, again.earlier, again.lost) == ((first.id,), (), ())  # a person closed it, all the same
    assert await story.row(first) == first


async def test_a_report_lands_also_when_the_run_has_ended(core, story):
    """The record of work that was done is never refused for the run's state."""
    sid = await story.running()
    claim = await story.claimed(sid)
    await core.mark_lost(sid, "leg-1", "its process is gone", "reaper", story.now)
    assert (await story.report(claim.token)).landed == (claim.rows[0].id,)


# --- withdraw ---------------------------------------------------------------------------------------------------


async def test_a_pending_row_can_be_withdrawn_and_is_then_never_claimed(core, story):
    sid = await story.running()
    control = await story.pending(sid)
    row = await core.withdraw(control.id, "ana", 60.0, note="changed my mind")
    assert (row.state, row.closed_by, row.closed_at, row.note) == (S.WITHDRAWN, "ana", 60.0, "changed my mind")
    assert row == await story.row(control)
    assert not await core.claim_all(sid, "leg-1", story.now)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("delivering", "claimed"),
        ("applied", "claimed"),
        ("resolved", "claimed"),
        ("withdrawn", "closed"),
        ("rejected", "closed"),
    ],
)
async def test_only_a_pending_row_can_be_withdrawn(core, story, state, reason):
    before = await _in_state(core, story, state)
    with pytest.raises(ResolveRefusedError) as caught:
        await core.withdraw(before.id, "ana", story.now)
    assert caught.value.reason == reason and await story.row(before) == before


# --- resolve ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["applied", "abandoned"])
async def test_a_resolution_keeps_who_held_it_and_since_when(core, story, outcome):
    claim = await story.claimed()
    row = await core.resolve(claim.rows[0].id, outcome, "ana", 60.0)
    assert (row.state, row.note, row.closed_by, row.closed_at) == (S.RESOLVED, outcome, "ana", 60.0)
    assert (row.claim, row.handed_over_at) == (claim.token, claim.rows[0].handed_over_at)
    assert row == await story.row(row)


@pytest.mark.parametrize("state", ["pending", "applied", "resolved", "withdrawn", "rejected"])
async def test_only_a_delivering_row_can_be_resolved(core, story, state):
    before = await _in_state(core, story, state)
    with pytest.raises(ResolveRefusedError) as caught:
        await core.resolve(before.id, "abandoned", "ana", story.now)
    assert caught.value.reason == "not_claimed" and await story.row(before) == before


async def test_a_finding_about_one_hand_over_does_not_close_another(core, story):
    """V4: read, given back, handed over anew (by the same leg), and then resolved: what stands now was never looked at."""
    seen = (await story.claimed()).rows[0]
    await core.give_back(seen.claim, story.now)
    with pytest.raises(ResolveRefusedError, match="given back meanwhile") as caught:
        await core.resolve(seen.id, "abandoned", "ana", story.now, claim=seen.claim)
    assert caught.value.reason == "not_claimed"
    again = await core.claim_all(seen.session_id, "leg-1", story.now)
    with pytest.raises(ResolveRefusedError, match="handed over anew") as caught:
        await core.resolve(seen.id, "abandoned", "ana", story.now, claim=seen.claim)
    assert caught.value.reason == "anew" and await story.row(seen) == again.rows[0]
    with pytest.raises(ResolveRefusedError, match="or the claim is not given in full") as mistyped:
        await core.resolve(seen.id, "abandoned", "ana", story.now, claim=again.token[:-1])
    made = datetime.fromtimestamp(again.rows[0].handed_over_at, UTC).isoformat(timespec="seconds")
    assert mistyped.value.reason == "anew" and f"made at {made}" in str(mistyped.value)
    row = await core.resolve(seen.id, "abandoned", "ana", story.now, claim=again.token)
    assert (row.state, row.claim) == (S.RESOLVED, again.token)


async def test_two_hand_overs_never_have_the_same_claim(core, story):
    """What a resolution is bound to: also for one leg, one row and one instant."""
    (row,) = (await story.claimed()).rows
    tokens = [row.claim]
    for _ in range(20):
        await core.give_back(tokens[-1], 1.0)
        tokens.append((await core.claim_all(row.session_id, "leg-1", 1.0)).token)
    assert len(set(tokens)) == len(tokens)


@pytest.mark.parametrize("claim", ["", "  ", 5, b"leg-1:a", False, float("nan")])
async def test_a_claim_that_is_none_never_widens_a_resolution_to_whatever_stands(core, story, claim):
    held = (await story.claimed()).rows[0]
    with pytest.raises(ResolveRefusedError) as caught:
        await core.resolve(held.id, "abandoned", "ana", story.now, claim=claim)
    assert caught.value.reason == "claim" and await story.row(held) == held


@pytest.mark.parametrize(("outcome", "by", "reason"), [("rejected", "ana", "outcome"), ("applied", " ", "by")])
async def test_a_resolution_needs_an_outcome_and_a_name(core, story, outcome, by, reason):
    claim = await story.claimed()
    with pytest.raises(ResolveRefusedError) as caught:
        await core.resolve(claim.rows[0].id, outcome, by, story.now)
    assert caught.value.reason == reason and (await story.row(claim.rows[0])).state is S.DELIVERING


async def test_acting_on_an_unknown_control_is_refused(core, story):
    for act in (core.withdraw("nobody", "ana", story.now), core.resolve("nobody", "applied", "ana", story.now)):
        with pytest.raises(ResolveRefusedError) as caught:
            await act
        assert caught.value.reason == "unknown"


@pytest.mark.parametrize("odd", [5, None, b"x", False, "", "\0", "\ud83d", "x" * 10**6], ids=lambda v: repr(v)[:12])
async def test_what_can_be_no_id_is_the_id_of_no_control(core, story, odd):
    """h19: and widens no act to another row; nor does a refusal repeat a megabyte."""
    held = (await story.claimed()).rows[0]
    for act in (core.withdraw(odd, "ana", story.now), core.resolve(odd, "applied", "ana", story.now)):
        with pytest.raises(ResolveRefusedError) as caught:
            await act
        assert caught.value.reason == "unknown" and len(str(caught.value)) < 250
    assert await story.row(held) == held


# --- reading ----------------------------------------------------------------------------------------------------


async def test_controls_are_listed_in_order_of_one_run_of_several_or_all(core, story):
    one, two, three = [await story.running() for _ in range(3)]
    for sid in (two, one, two, three):
        await story.pending(sid)
    assert [row.session_id for row in await core.list_controls()] == [two, one, two, three]
    assert [row.session_id for row in await core.list_controls(two)] == [two, two]
    assert [row.session_id for row in await core.list_controls([one, three])] == [one, three]
    assert await core.list_controls([]) == [] and await core.list_controls("nobody") == []


async def test_open_controls_can_be_listed_alone(core, story):
    sid = await story.running()
    claim = await story.claimed(sid)
    gone = await story.pending(sid)
    await core.withdraw(gone.id, "ana", story.now)
    assert [row.id for row in await core.list_controls(sid, open_only=True)] == [claim.rows[0].id]


async def test_an_id_is_compared_to_the_letter(core, story):
    await story.pending(control_id="abc_1")
    for given in ("abc%", "abc_", "ABC_1", "abcx1", ""):
        assert await core.get_control(given) is None


# --- watching ---------------------------------------------------------------------------------------------------


async def test_watchers_hear_every_change_of_their_run_and_no_other(core, story, watchers):
    sid, other = await story.running(), await story.running()
    heard, all_heard = [], []
    watchers.add(sid, heard.append)
    watchers.add(None, all_heard.append)
    claim = await story.claimed(sid)
    await core.give_back(claim.token, story.now)
    again = await core.claim_all(sid, "leg-1", story.now)
    await core.resolve(again.rows[0].id, "abandoned", "ana", story.now)
    await story.report(again.token)
    await core.withdraw((await story.pending(sid)).id, "ana", story.now)
    await story.pending(sid)
    await story.report((await core.claim_all(sid, "leg-1", story.now)).token)
    await story.pending(sid)
    await story.pending(other)
    await core.end(sid, "leg-1", "completed", by=None, now=story.now)
    told = [(row.state.value, row.late_report is not None) for row in heard]
    assert told == [
        ("pending", False), ("delivering", False), ("pending", False), ("delivering", False),
        ("resolved", False), ("resolved", True), ("pending", False), ("withdrawn", False),
        ("pending", False), ("delivering", False), ("applied", False), ("pending", False), ("rejected", False),
    ]  # fmt: skip
    assert [row.session_id for row in all_heard].count(other) == 1


async def test_what_a_watcher_hears_has_been_committed(shared_location, opened, make_story, watchers):
    mine, elsewhere, seen = await opened(shared_location, watchers=watchers), await opened(shared_location), []
    watchers.add(None, seen.append)
    await make_story(mine).pending()
    assert seen == [await elsewhere.get_control(seen[0].id)]


async def test_nobody_hears_of_a_write_that_did_not_happen(core, story, watchers):
    sid, heard = await story.running(), []
    first = await story.pending(sid, key="k")
    watchers.add(sid, heard.append)
    await core.admit(sid, text=first.text, by="ana", key="k", now=story.now)
    await core.admit(sid, text="", by="ana", now=story.now)
    await story.report("leg-1:guessed")
    with pytest.raises(ResolveRefusedError):
        await core.resolve(first.id, "applied", "ana", story.now)
    assert heard == []


async def test_a_failing_watcher_breaks_neither_the_write_nor_the_others(core, story, watchers, caplog):
    sid, heard = await story.running(), []

    def broken(record):
        raise ValueError("a view that is gone")

    watchers.add(sid, broken)
    watchers.add(sid, heard.append)
    control = await story.pending(sid)
    assert heard == [control] == [await story.row(control)]
    assert "a view that is gone" in caplog.text


async def test_unwatching_is_idempotent_and_ends_only_its_own(core, story, watchers):
    sid, heard = await story.running(), []
    first, second = watchers.add(sid, heard.append), watchers.add(sid, heard.append)
    first()
    first()
    await story.pending(sid)
    assert len(heard) == 1
    second()
    await story.pending(sid)
    assert len(heard) == 1 and not watchers.watched()


# --- factories --------------------------------------------------------------------------------------------------


async def _in_state(core, story, state):
    """A control in *state*, by the protocol's own steps."""
    sid = await story.running()
    match state:
        case "pending":
            return await story.pending(sid)
        case "withdrawn":
            return await core.withdraw((await story.pending(sid)).id, "ana", story.now)
        case "rejected":
            control = await story.pending(sid)
            await core.end(sid, "leg-1", "completed", by=None, now=story.now)
            return await story.row(control)
    claim = await story.claimed(sid)
    if state == "resolved":
        await core.resolve(claim.rows[0].id, "abandoned", "ben", story.now)
    if state == "applied":
        await story.report(claim.token)
    return await story.row(claim.rows[0])
