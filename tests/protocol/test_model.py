"""The protocol, searched whole: no interleaving breaks an invariant, and without any one of its guards some does."""

from __future__ import annotations

import time
from dataclasses import fields, replace

import pytest

from lionnb.records import ControlState
from lionnb.store.states import TRANSITIONS
from tests.protocol import rows as r
from tests.protocol.explore import Found, explore
from tests.protocol.model import Protocol
from tests.protocol.state import Bounds, Guards

MILLION = 1_000_000
PLAIN, MISTAKEN = Bounds(), Bounds(mistaken=True)
FAILING = Bounds(rows=1, failures=3)
INVARIANTS = {value for name, value in vars(r).items() if name[0] in "SV" and isinstance(value, str) and ": " in value}

# guard -> (the smallest of our instances in which it is missed, what breaks without it)
NEEDED = {
    "locked_admission": (PLAIN, {r.S4}),
    "cas_claim": (MISTAKEN, {r.S2, r.S3_AFTER, r.S3_READS, r.S5}),
    "owned_claim": (MISTAKEN, {r.S4_OWN}),
    "claim_is_fence": (PLAIN, {r.S3_AFTER, r.S3_READS}),
    "split_resolve": (PLAIN, {r.S3_AFTER, r.S3_READS}),
    "cas_person": (PLAIN, {r.S1_LATE, r.S3_AFTER, r.S3_READS, r.S5, r.V4}),
    "bound_resolve": (PLAIN, {r.V4}),
    "guarded_report": (PLAIN, {r.S5}),
    "guarded_give_back": (PLAIN, {r.S5}),
    "fresh_tokens": (FAILING, {r.S2, r.S3_READS}),
    "known_token": (FAILING, {r.S1_LEFT, r.S1_LATE}),
    "late_report": (PLAIN, {r.S1_LATE}),
    "report_after_call": (PLAIN, {r.S3_NEVER}),
    "report_on_raise": (PLAIN, {r.S1_LEFT, r.S1_LATE}),
    "give_back_uncalled": (PLAIN, {r.S2, r.S3_READS}),
    "atomic_sweep": (PLAIN, {r.S1, r.S4}),
    "guarded_sweep": (PLAIN, {r.S3_READS, r.S5}),
    "owned_end": (FAILING, {r.S4_OWN, r.S6}),
    "exclusive_attach": (PLAIN, {r.S6}),
}


def search(guards: Guards, bounds: Bounds) -> Found:
    from_ = time.process_time()
    found = explore(Protocol(guards, bounds))
    took = time.process_time() - from_
    print(f"\n{bounds}: {found.states:,} states, {found.steps:,} steps, {took:.1f} s of processor time")
    for invariant in found.broken:
        print(found.way(invariant))
    return found


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(rows=2, acts=2, failures=1),
        Bounds(rows=2, acts=2, failures=1, mistaken=True),
        Bounds(rows=1, acts=2, failures=3),
        Bounds(rows=3),
    ],
    ids=str,
)
def test_no_interleaving_breaks_an_invariant(bounds):
    """S1 to S6, for every order of statements, deaths, failures of the store, and acts of people."""
    assert not search(Guards(), bounds).broken


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "bounds",
    [Bounds(rows=4, acts=2, failures=2), Bounds(rows=3, acts=2, failures=1, mistaken=True)],
    ids=str,
)
def test_no_interleaving_of_a_larger_instance_breaks_an_invariant(bounds):
    found = search(Guards(), bounds)
    assert not found.broken and found.states > (MILLION if bounds.rows == 4 else MILLION // 2)


@pytest.mark.parametrize("guard", NEEDED)
def test_each_guard_is_needed(guard):
    """Exactly these invariants break without it, and the shortest way to each is printed."""
    bounds, broken = NEEDED[guard]
    assert not explore(Protocol(Guards(), bounds)).broken
    assert set(search(replace(Guards(), **{guard: False}), bounds).broken) == broken


def test_every_guard_and_every_invariant_has_its_counterpart():
    assert set(NEEDED) == {field.name for field in fields(Guards)}
    assert set().union(*(broken for _, broken in NEEDED.values())) == INVARIANTS


def test_the_shortest_way_to_a_false_record_is_told_step_by_step():
    """ADR-0108's open gap: a resolution that lands between the claim and the effect."""
    way = search(replace(Guards(), split_resolve=False), PLAIN).way(r.S3_AFTER)
    assert way.splitlines() == [
        "S3: closed as never delivered, and delivered afterwards",
        "   1. operator: admitted   [m0 not sent → pending]",
        "   2. leg A: asks, and something is pending",
        "   3. leg A: claims what is pending   [m0 pending → delivering]",
        "   4. person: reads it, decides to resolve",
        "   5. person: writes (resolve)   [m0 delivering → plainly abandoned]",
        "   6. leg A: CALLS THE BRANCH, which returns   [m0 reaches the model]",
    ]


def test_the_shortest_way_to_a_finding_about_the_wrong_hand_over_is_told_step_by_step():
    """A resolution by the control's id alone, when the row was given back and handed over anew since it was read."""
    way = search(replace(Guards(), bound_resolve=False), PLAIN).way(r.V4)
    assert way.splitlines() == [
        "V4: a person's finding about one hand-over closed another",
        "   1. operator: admitted   [m0 not sent → pending]",
        "   2. leg A: asks, and something is pending",
        "   3. leg A: claims what is pending   [m0 pending → delivering]",
        "   4. person: reads it, decides to resolve",
        "   5. leg A: cancelled before the Branch is called",
        "   6. leg A: give back   [m0 delivering → pending]",
        "   7. leg A: asks, and something is pending",
        "   8. leg A: claims what is pending   [m0 pending → delivering]",
        "   9. person: writes (resolve)   [m0 delivering → resolved]",
    ]


def test_every_fate_is_reached_and_no_other():
    """When nobody acts any more, each record is one of these; only what is open, or a person's word, leaves a doubt."""
    assert search(Guards(), Bounds(rows=2, failures=1)).fates == {
        (r.UNSENT, False),
        (r.REFUSED, False),
        (r.PENDING, False),
        (r.REJECTED, False),
        (r.WITHDRAWN, False),
        (r.APPLIED, True),
        (r.DELIVERING, False),
        (r.DELIVERING, True),
        (r.RESOLVED, False),
        (r.RESOLVED, True),
        (r.LATE, False),
        (r.LATE, True),
    }


def test_the_models_steps_are_the_stores():
    """The table that the store builds its statements from, and the one that the model judges writers by."""
    model = {(was, now) for _, was, now in r.LEGAL if was in set(ControlState) and now in set(ControlState)}
    assert model == {(was.value, now.value) for was, steps in TRANSITIONS.items() for now in steps}
