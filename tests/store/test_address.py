"""What a typed id means: refused where two answers are possible, to the letter, and the same on every back end."""

from __future__ import annotations

import pytest

from lionnb.errors import AmbiguousIdError, UnknownIdError
from lionnb.store.address import EVERYWHERE, Space
from tests.store.conftest import session_spec

RUN = "20261130T101010-abcdef"
HEX = "20261130aaaabbbbccccddddeeeeffff"  # a session id that begins like a date: every digit is hexadecimal


@pytest.fixture
def runs(core, story):
    """Registers a run: ``await runs(id=…, run_id=…, branch_id=…)``."""

    async def register(**fields):
        await core.start_session(session(**fields), story.now)

    return register


def session(**fields):
    fields = {"id": "s" * 32, "leg": f"leg-{fields}"} | fields
    return session_spec(**fields)


async def found(core, given, *, acts=True, **how):
    target = await core.find(given, acts=acts, **how)
    return target.space.value, target.id, target.session.id


async def refused(core, given, *, acts=True, **how):
    with pytest.raises(AmbiguousIdError) as error:
        await core.find(given, acts=acts, **how)
    return list(error.value.candidates)


async def unknown(core, given, **how):
    with pytest.raises(UnknownIdError) as error:
        await core.find(given, acts=False, **how)
    return str(error.value)


async def test_each_kind_of_id_is_found_in_full_and_by_its_beginning(core, story, runs):
    await runs(id="aaaa1111", run_id=RUN, branch_id="bbbb-2222")
    control = await story.pending("aaaa1111", control_id="cccc3333")
    assert await found(core, "aaaa1111") == ("session", "aaaa1111", "aaaa1111") == await found(core, "a")
    assert await found(core, RUN) == ("run", RUN, "aaaa1111") == await found(core, RUN[:9])
    assert await found(core, "bbbb-2222") == ("branch", "bbbb-2222", "aaaa1111") == await found(core, "bb")
    assert await found(core, "cccc3333") == ("control", "cccc3333", "aaaa1111") == await found(core, "c")
    assert (await core.find("ccc", acts=True)).control == control and (await core.find("a", acts=True)).control is None


async def test_a_beginning_of_two_ids_of_one_space_is_refused_and_both_are_named(core, runs):
    """h17."""
    await runs(id="aaaa1111", run_id="20261130T101010-aaaaaa")
    await runs(id="aaaa2222", run_id="20261130T101010-bbbbbb")
    for acts in (True, False):
        assert await refused(core, "aaaa", acts=acts) == ["session aaaa1111", "session aaaa2222"]
        assert await refused(core, "20261130T10", acts=acts) == [
            "run 20261130T101010-aaaaaa",
            "run 20261130T101010-bbbbbb",
        ]


async def test_a_beginning_that_fits_two_spaces_is_refused_not_picked_by_precedence(core, story, runs):
    """ADR-0108: ordering the spaces is not keeping them apart."""
    await runs(id=HEX, run_id=RUN, branch_id="2026-branch")
    await story.pending(HEX, control_id="20-control")
    assert await refused(core, "2026113", acts=False) == [f"session {HEX}", f"run {RUN}"]
    assert len(await refused(core, "20")) == 4


async def test_an_id_in_full_that_begins_an_id_of_another_space_is_refused(core, runs):
    await runs(id="20261130", run_id=RUN)
    assert await refused(core, "20261130") == ["session 20261130", f"run {RUN}"]


async def test_an_id_in_full_that_begins_others_of_its_space_is_itself(core, story, runs):
    """Else it could not be addressed at all."""
    await runs(id="a")
    for cid in ("k", "k2", *(f"k-{i:02}" for i in range(20))):
        await story.pending("a", control_id=cid)
    assert await found(core, "k") == ("control", "k", "a")
    named = await refused(core, "k-")
    assert len(named) == 9 and named[-1] == "and more"


async def test_a_full_run_id_collides_with_nothing_whatever_others_chose_as_their_ids(core, story, runs):
    await runs(id="a", run_id=RUN, branch_id=f"{RUN}-branch")
    await story.pending("a", control_id=RUN)
    await story.pending("a", control_id=f"{RUN}x")
    assert await found(core, RUN) == ("run", RUN, "a")
    assert await found(core, RUN, spaces={Space.CONTROL}) == ("control", RUN, "a")


async def test_an_act_needs_a_run_id_as_far_as_its_t_and_a_look_does_not(core, runs):
    await runs(id="aaaa", run_id=RUN)
    assert await refused(core, "2026") == [RUN] == await refused(core, "20261130")
    assert await found(core, "20261130T") == ("run", RUN, "aaaa") == await found(core, "2026", acts=False)


async def test_a_run_id_of_several_sessions_is_the_most_recently_updated_one(core, runs):
    """ADR-0108: one run can persist more than one session; a row that was ended, or beat, was updated."""
    for sid in ("a1", "b2", "c3"):
        await runs(id=sid, run_id=RUN, leg=f"leg-{sid}", branch_id="branch")
    assert await found(core, RUN) == ("run", RUN, "c3") == await found(core, RUN[:12])
    await core.heartbeat("a1", "leg-a1", 2e9)
    assert await found(core, RUN) == ("run", RUN, "a1") and await found(core, "br") == ("branch", "branch", "a1")
    await core.end("b2", "leg-b2", "completed", by=None, now=3e9)
    assert await found(core, RUN) == ("run", RUN, "b2")


@pytest.mark.parametrize("given", ["%", "_", "a%", "a_1", "A", "aaaa111_", "\\a", "a*", "' OR 1=1 --", "a ", " a"])
async def test_what_is_typed_is_taken_to_the_letter(core, runs, given):
    """Neither a wildcard nor another case of a letter, on any back end."""
    await runs(id="aaaa1111", run_id=RUN)
    assert repr(given) in await unknown(core, given)


async def test_ids_may_hold_wildcards_themselves(core, story, runs):
    await runs(id="a", run_id="r%_")
    for cid in ("100%", "100x"):
        await story.pending("a", control_id=cid)
    assert await found(core, "100%") == ("control", "100%", "a") and await found(core, "r%", acts=False)


@pytest.mark.parametrize("given", ["", "   ", "\n", "a\x00", "\ud800", "x" * 10_000], ids=ascii)
async def test_what_can_be_no_id_is_unknown(core, runs, given):
    await runs(id="a" * 32, run_id=RUN)
    assert len(await unknown(core, given)) < 500


async def test_only_the_spaces_that_were_asked_for_are_looked_at(core, story, runs):
    await runs(id="aaaa", run_id=RUN, branch_id="ab")
    await story.pending("aaaa", control_id="abcd")
    assert await found(core, "ab", spaces={Space.CONTROL}) == ("control", "abcd", "aaaa")
    assert await found(core, "ab", spaces=EVERYWHERE - {Space.CONTROL}) == ("branch", "ab", "aaaa")
    await unknown(core, "aaaa", spaces={Space.CONTROL})
    assert len(await refused(core, "ab")) == 2


async def test_a_session_without_a_run_id_is_no_run(core, runs):
    await runs(id="aaaa", run_id="")
    assert await found(core, "a") == ("session", "aaaa", "aaaa")
