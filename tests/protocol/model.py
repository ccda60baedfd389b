"""The steering protocol as an explicit-state model: every step that anybody can take, from every state.

Who acts: operators (one for each steer), two legs, a person who reads a row, thinks, and then writes, and whoever
records a dead leg's run as lost. A step is one transaction of the store, or one thing in the world: the Branch is
called, a process dies. The store may fail, with the write lost or with only its answer lost.

Each rule that keeps a record true is a switch of `Guards`. With all of them on no invariant is broken by any
interleaving; with any one off some is, and `tests.protocol.explore` finds the shortest way there.

Source: ADR-0108. Two legs are enough to meet each other; a third adds no kind of meeting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.protocol import rows as r
from tests.protocol import state as st
from tests.protocol.rows import Row, Statement
from tests.protocol.state import NAMES, Bounds, Broken, Env, Guards, Leg, Result, Rows, Run, State, Step

__all__ = ("Protocol",)

_WISHES = {r.PENDING: "withdraw", r.CLAIMED: "withdraw", r.DELIVERING: "resolve"}
_UNTOLD = {r.DELIVERING: r.S1_LEFT, r.CLAIMED: r.S1_LEFT, r.RESOLVED: r.S1_LATE}


class Protocol:
    """All steps of one instance under some guards."""

    def __init__(self, guards: Guards, bounds: Bounds) -> None:
        self.guards, self.bounds = guards, bounds
        self._statements: dict[tuple[object, ...], Statement] = {}
        self._leg: dict[str, Callable[[State, int, Leg], Iterator[Step]]] = {
            st.ASK: self._ask,
            st.TAKE: self._take,
            st.LISTED: self._write_listed,
            st.HELD: self._held,
            st.BACK: self._give_back,
            st.REPORT: self._report,
            st.REPORT_RAISED: self._report,
            st.END: self._end,
            st.SWEEP: self._sweep,
            st.RETRY + st.ASK: self._retry,
            st.RETRY + st.END: self._retry,
        }

    def initial(self) -> State:
        """Leg A runs; nothing was sent."""
        b = self.bounds
        return State(Run(), (Leg(st.ASK), Leg()), Env(b.acts, b.failures, b.losses), (Row(),) * b.rows)

    def steps(self, s: State) -> Iterator[Step]:
        """Every step that somebody can take in *s*."""
        yield from self._operators(s)
        yield from self._person(s)
        yield from self._loss(s)
        for x, leg in enumerate(s.legs):
            if leg.pc == st.OFF:
                yield from self._attach(s, x)
            elif leg.pc not in st.GONE:
                yield f"leg {NAMES[x]}: KILLED", *st.to(s, x, Leg(st.DEAD), self._all(s, "leg", r.forget, x))
                yield from self._leg[leg.pc](s, x, leg)

    def broken(self, s: State) -> Broken:
        """What is wrong with *s* by itself."""
        out: Broken = ()
        well = {NAMES[x]: leg for x, leg in enumerate(s.legs) if leg.pc == st.DONE}
        for row in s.rows:
            if row.asked or row.rec == r.APPLIED:
                out += st.untrue(row)
            if row.rec in _UNTOLD and row.claim[:1] in well and not well[row.claim[0]].owes(row.claim):
                out += (_UNTOLD[row.rec],)
            if row.rec == r.PENDING and s.run.status == st.SWEPT:
                out += (r.S4,)
            if row.mem and row.rec == r.DELIVERING and not self.bounds.mistaken:
                out += (r.S6,) if any(st.works_elsewhere(s, x, row) for x in (0, 1)) else ()
        return out

    def _all(self, s: State, who: str, change: Callable[..., Row], *args: object, token: str = "") -> Rows:
        return self._statement(who, change, args, token).all(s.rows)

    def _one(self, s: State, who: str, change: Callable[..., Row], i: int, *args: object) -> Result:
        rows, broken = self._statement(who, change, args, "").one(s.rows, i)
        return State(s.run, s.legs, s.env, rows), broken

    def _statement(self, who: str, change: Callable[..., Row], args: tuple[object, ...], token: str) -> Statement:
        key = (change, args)
        found = self._statements.get(key)
        if found is None:
            found = self._statements[key] = Statement(who, lambda row: change(row, *args), token)
        return found

    # ------------------------------------------------------------------ operators and the person
    def _operators(self, s: State) -> Iterator[Step]:
        for i in st.distinct(s.rows):
            rec = s.rows[i].rec
            if rec == r.UNSENT and s.run.status != st.RUNNING:
                yield "operator: refused, the run has ended", *self._one(s, "operator", r.refuse, i)
            elif rec == r.UNSENT and self.guards.locked_admission:
                yield "operator: admitted", *self._one(s, "operator", r.admit, i)
            elif rec == r.UNSENT:
                yield "operator: sees the run running", *self._one(s, "operator", r.pass_admission, i)
            elif rec == r.PASSED:
                yield "operator: inserts the row", *self._one(s, "operator", r.admit, i)

    def _person(self, s: State) -> Iterator[Step]:
        """Reads a row and decides; writes later. One at a time."""
        thinking = next((i for i, row in enumerate(s.rows) if row.wish), None)
        if thinking is not None:
            row = s.rows[thinking]
            how = r.decided, thinking, *self._act(row)
            yield f"person: writes ({row.wish})", *self._one(s, "person", *how)
        elif s.env.acts:
            env = Env(s.env.acts - 1, s.env.failures, s.env.losses)
            for i in st.distinct(s.rows):
                if (wish := _WISHES.get(s.rows[i].rec)) is not None:
                    after, broken = self._one(s, "person", r.wish, i, wish)
                    yield f"person: reads it, decides to {wish}", State(s.run, s.legs, env, after.rows), broken

    def _act(self, row: Row) -> tuple[object, ...]:
        g = self.guards
        if not g.cas_person:
            return r.overwrite, r.WITHDRAWN if row.wish == "withdraw" else r.RESOLVED
        if row.wish == "withdraw":
            return (r.withdraw if g.claim_is_fence else r.withdraw_claimed,)
        act = r.resolve if g.split_resolve else r.resolve_plainly
        return (act, row.seen) if g.bound_resolve else (r.resolve_unbound, act)

    # ------------------------------------------------------------------ runs
    def _loss(self, s: State) -> Iterator[Step]:
        """Somebody records the run as lost: with proof, or (mistaken) without."""
        if s.env.losses and s.run.owner is not None and (self.bounds.mistaken or st.dead(s)):
            rows, broken = self._swept(s) if self.guards.atomic_sweep else (s.rows, ())
            yield (
                "the run is recorded as lost",
                State(Run(st.SWEPT, None), s.legs, st.one_loss_less(s.env), rows),
                broken,
            )

    def _attach(self, s: State, x: int) -> Iterator[Step]:
        name, mine = NAMES[x], Run(st.RUNNING, x)
        if s.run.status != st.RUNNING:
            yield f"leg {name}: resumes the run", *st.to(s, x, Leg(st.ASK), run=mine)
        elif st.dead(s):
            yield f"leg {name}: takes the run from a dead leg", *st.to(s, x, Leg(st.ASK), run=mine)
        elif self.bounds.mistaken and s.env.losses:
            after = State(mine, st.to(s, x, Leg(st.ASK))[0].legs, st.one_loss_less(s.env), s.rows)
            yield f"leg {name}: takes the run from a leg said to be dead", after, ()
        elif not self.guards.exclusive_attach:
            yield f"leg {name}: takes the run from a live leg", *st.to(s, x, Leg(st.ASK), run=mine)

    def _swept(self, s: State) -> Rows:
        return self._all(s, "end", r.sweep if self.guards.guarded_sweep else r.sweep_all)

    # ------------------------------------------------------------------ a leg, between turns
    def _ask(self, s: State, x: int, leg: Leg) -> Iterator[Step]:
        """Its turn has ended: end the run if nothing is pending. Or it is stopped, has failed, or has no time left."""
        name, ends, over = NAMES[x], st.then(st.END, leg), Run(st.SWEPT, None)
        done = Leg(st.DONE, "", leg.owed)
        yield f"leg {name}: stopped, failed or out of time", *st.to(s, x, ends)
        if s.env.failures:
            yield f"leg {name}: asks, the store fails, and it asks again", *st.to(s, x, leg, cost=1)
            yield f"leg {name}: asks, and the store fails for good", *st.to(s, x, ends, cost=1)
        if not st.owns(s, x):
            yield f"leg {name}: asks, and the run is not its own", *st.to(s, x, done)
        elif any(row.rec == r.PENDING for row in s.rows):
            yield f"leg {name}: asks, and something is pending", *st.to(s, x, Leg(st.TAKE, "", leg.owed))
        else:
            yield f"leg {name}: ends the idle run", *st.to(s, x, done, run=over)
            if s.env.failures:
                yield f"leg {name}: ends the idle run, unanswered, and asks again", *st.to(s, x, leg, run=over, cost=1)
                yield f"leg {name}: ends the idle run, unanswered", *st.to(s, x, ends, run=over, cost=1)

    def _take(self, s: State, x: int, leg: Leg) -> Iterator[Step]:
        """Claim everything pending, as the last step before the Branch is called."""
        g, name, token = self.guards, NAMES[x], self._token(s, x)
        yield f"leg {name}: out of time before the claim", *st.to(s, x, st.then(st.END, leg))
        if g.owned_claim and not st.owns(s, x):
            yield f"leg {name}: claims, and the run is not its own", *st.to(s, x, st.then(st.END, leg))
            return
        if not g.cas_claim:
            listed = self._all(s, "leg", r.list_pending, x)
            yield f"leg {name}: lists what is pending", *st.to(s, x, Leg(st.LISTED, token, leg.owed), listed)
            return
        rows, broken = self._all(s, "leg", self._claim(), token)
        if rows == s.rows:
            yield f"leg {name}: claims, and nothing is pending", *st.to(s, x, st.then(st.ASK, leg))
            return
        if not st.owns(s, x):
            broken += (r.S4_OWN,)
        held = st.returned(s.rows, rows, x)
        yield f"leg {name}: claims what is pending", *st.to(s, x, Leg(st.HELD, token, leg.owed), (held, broken))
        if s.env.failures:
            unsure = leg.now_owes("give back", token) if g.known_token else leg
            yield f"leg {name}: claims, unanswered", *st.to(s, x, st.then(st.ASK, unsure), (rows, broken), cost=1)
            yield f"leg {name}: claims, and the store fails", *st.to(s, x, st.then(st.ASK, unsure), cost=1)

    def _claim(self) -> Callable[..., Row]:
        if not self.guards.report_after_call:
            return r.claim_as_applied
        return r.claim if self.guards.claim_is_fence else r.claim_without_fence

    def _write_listed(self, s: State, x: int, leg: Leg) -> Iterator[Step]:
        rows = self._all(s, "leg", r.claim_listed, x, leg.token)
        yield f"leg {NAMES[x]}: claims what it listed", *st.to(s, x, leg._replace(pc=st.HELD), rows)

    def _token(self, s: State, x: int) -> str:
        """A token that no row bears, nobody owes anything under, and no person has in mind."""
        if not self.guards.fresh_tokens:
            return NAMES[x]
        used = {claim for row in s.rows for claim in (row.claim, row.seen)} | {token for _, token in s.legs[x].owed}
        return next(token for n in range(9) if (token := f"{NAMES[x]}{n}") not in used)

    # ------------------------------------------------------------------ a leg, with steers in its hands
    def _held(self, s: State, x: int, leg: Leg) -> Iterator[Step]:
        name, called = NAMES[x], self._all(s, "leg", r.call, x)
        yield f"leg {name}: cancelled before the Branch is called", *st.to(s, x, leg._replace(pc=st.BACK))
        yield f"leg {name}: CALLS THE BRANCH, which returns", *st.to(s, x, leg._replace(pc=st.REPORT), called)
        raised = leg._replace(pc=st.REPORT_RAISED if self.guards.give_back_uncalled else st.BACK)
        if not self.guards.report_on_raise:
            called = self._statement("leg", r.forget, (x,), "").all(called[0])[0], called[1]
            raised = st.then(st.END, leg)
        yield f"leg {name}: CALLS THE BRANCH, which raises", *st.to(s, x, raised, called)

    def _report(self, s: State, x: int, leg: Leg) -> Iterator[Step]:
        if not self.guards.guarded_report:
            rows = self._all(s, "leg", r.report_unguarded, x, token=leg.token)
        else:
            change = r.report if self.guards.late_report else r.report_without_late
            rows = self._all(s, "leg", change, leg.token, token=leg.token)
        yield from self._tells(s, x, leg, "report", rows, (st.END if leg.pc == st.REPORT_RAISED else st.ASK,))

    def _give_back(self, s: State, x: int, leg: Leg) -> Iterator[Step]:
        if self.guards.guarded_give_back:
            rows = self._all(s, "leg", r.give_back, leg.token, token=leg.token)
        else:
            rows = self._all(s, "leg", r.give_back_unguarded, x, token=leg.token)
        yield from self._tells(s, x, leg, "give back", rows, (st.ASK, st.END))

    def _tells(self, s: State, x: int, leg: Leg, what: str, made: Rows, nexts: tuple[str, ...]) -> Iterator[Step]:
        """A statement about the rows in its hands, which it then lets go of; what the store does not take is owed."""
        label, empty = f"leg {NAMES[x]}: {what}", self._statement("leg", r.forget, (x,), "")
        told, same = (empty.all(made[0])[0], made[1]), empty.all(s.rows)
        owes = leg.now_owes(what, leg.token)
        run = st.run_after(s.run, s.rows, told[0])
        for pc in nexts:
            yield label, *st.to(s, x, st.then(pc, leg), told, run)
            if s.env.failures:
                yield f"{label}, unanswered", *st.to(s, x, st.then(pc, owes), told, run, cost=1)
                yield f"{label}, and the store fails", *st.to(s, x, st.then(pc, owes), same, cost=1)

    def _retry(self, s: State, x: int, leg: Leg) -> Iterator[Step]:
        """What the store has not taken, each once more; then it goes on, whatever came of that."""
        (what, token), *rest = leg.owed
        label, pc = f"leg {NAMES[x]}: {what} again", leg.pc if leg.tries > 1 else leg.pc.removeprefix(st.RETRY)
        made = self._all(s, "leg", r.report if what == "report" else r.give_back, token, token=token)
        run = st.run_after(s.run, s.rows, made[0])
        still = Leg(pc, "", (*rest, (what, token)), leg.tries - 1)
        yield label, *st.to(s, x, Leg(pc, "", tuple(rest), leg.tries - 1), made, run)
        if s.env.failures:
            yield f"{label}, unanswered", *st.to(s, x, still, made, run, cost=1)
            yield f"{label}, and the store fails", *st.to(s, x, still, cost=1)

    # ------------------------------------------------------------------ a leg, at its end
    def _end(self, s: State, x: int, leg: Leg) -> Iterator[Step]:
        g, name, over, done = self.guards, NAMES[x], Run(st.SWEPT, None), Leg(st.DONE, "", leg.owed)
        if s.run.status != st.RUNNING or (g.owned_end and not st.owns(s, x)):
            yield f"leg {name}: ends nothing, the run is not its own", *st.to(s, x, done)
            return
        swept, broken = self._swept(s) if g.atomic_sweep else (s.rows, ())
        if not st.owns(s, x) and not st.dead(s):
            broken += (r.S4_OWN,)
        after = done if g.atomic_sweep else Leg(st.SWEEP, "", leg.owed)
        yield f"leg {name}: ends the run", *st.to(s, x, after, (swept, broken), over)
        if s.legs[1 - x].pc == st.OFF:  # somebody can resume the run, and takes its queue along
            yield f"leg {name}: ends the run, leaves the queue", *st.to(s, x, done, run=Run(st.LEFT, None))
        if s.env.failures:
            yield f"leg {name}: ends the run, unanswered", *st.to(s, x, after, (swept, broken), over, cost=1)
            yield f"leg {name}: ends, and the store fails", *st.to(s, x, done, cost=1)

    def _sweep(self, s: State, x: int, leg: Leg) -> Iterator[Step]:
        rows, broken = self._swept(s)
        if s.run.status == st.RUNNING and rows != s.rows:
            broken += (r.S1,)
        yield f"leg {NAMES[x]}: sweeps", *st.to(s, x, Leg(st.DONE, "", leg.owed), (rows, broken))
