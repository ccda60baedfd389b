"""The composition root of the notebook: gives Branches and legs their views, and a person's intents to their legs.

Threads: views are made and written in the main loop. An intent arrives on a thread that nobody chooses, so it is only
handed over here: to the store through the control thread, to the leg's loop by its own methods, which any thread may
call. An acknowledgement is a send, and sending is safe from everywhere.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from lionagi.session.control import LoopDirective

from lionnb.branch import Branch
from lionnb.errors import LionnbError
from lionnb.legs import Leg, Receipt
from lionnb.legs.leg import who
from lionnb.turns import TurnLog
from lionnb.widgets import TurnView, twin
from lionnb.widgets.state import fresh, reduce
from lionnb.widgets.wire import encode

__all__ = ("mimebundle", "show", "view_of")

Reply = Callable[[dict[str, Any]], None]


class _Shown:
    """One live view of a Branch or leg, and where it was displayed."""

    def __init__(self, view: TurnView) -> None:
        self.view = view
        self.handles: list[Any] = []

    def publish(self) -> None:
        """Say the state again from the cell that runs now, so that a runner without a browser saves it."""
        self.view.publish()
        for handle in self.handles:
            handle.update(self.view)


_shown: WeakKeyDictionary[Any, _Shown] = WeakKeyDictionary()


def view_of(shown: Branch | Leg) -> TurnView:
    """The one live view of *shown* in this kernel; displaying it twice shows the same thing twice. Main loop only."""
    return _entry(shown).view


def _entry(shown: Branch | Leg) -> _Shown:
    # A Branch by its log: Branches compare by id, which a restored snapshot shares.
    key: Any = shown if isinstance(shown, Leg) else shown.turns
    found = _shown.get(key)
    if found is None:
        found = _shown[key] = _leg_shown(shown) if isinstance(shown, Leg) else _Shown(_branch_view(shown))
    return found


def show(shown: Branch | Leg) -> None:
    """Display *shown*: live where there is a front end, and with a readable static form in any case."""
    from IPython.display import display

    entry = _entry(shown)
    handle = display(entry.view, display_id=True)
    if handle is not None:
        entry.handles.append(handle)


def mimebundle(shown: Branch | Leg | TurnLog, include: Any = None, exclude: Any = None) -> Any:
    """The mime bundle of the view; for front ends that ask for it instead of letting the object display itself.

    A turn log is shown as it stands: a static picture of its lanes, and the transcript.
    """
    if isinstance(shown, TurnLog):
        state = fresh(uid="", title="turns", can_steer=False, beats=False, limits={"entries": 2_000, "signals": 10_000})
        for event in shown.events():
            reduce(state, encode(event))
        return {"text/html": twin.html(state), "text/plain": repr(shown)}
    return view_of(shown)._repr_mimebundle_(include=include, exclude=exclude)  # IPython's protocol


def _branch_view(branch: Branch) -> TurnView:
    title = branch.name or f"Branch {str(branch.id)[:8]}"
    view = TurnView(title=title, can_steer=False, on_intent=_refuse, seed=branch.turns.events())
    branch.turns.listen(view.push, chunks=True)
    return view


def _leg_shown(leg: Leg) -> _Shown:
    """The leg's view: what its Branch does while the leg lives, and what the leg itself says."""
    own = leg.feed.events()
    # Turns after its end are not the leg's.
    until = math.inf if leg.live else max((e.at for e in own if e.kind == "leg"), default=0.0)
    seed = [e for e in leg.branch.turns.events() if leg.created_at <= e.at <= until] + own
    seed.sort(key=lambda e: e.at)  # stable: events of one source keep their order
    ref = weakref.ref(leg)  # the table of views must not keep an ended leg alive

    def on_intent(intent: dict[str, Any], reply: Reply) -> None:
        found = ref()
        if found is None:
            reply({"ok": False, "sentence": "this leg has ended, and nothing holds it any more"})
        else:
            _intent(found, intent, reply)

    view = TurnView(title=leg.name or leg.run_id, can_steer=True, on_intent=on_intent, seed=seed)
    shown = _Shown(view)
    leg.lag.when_standing(view.stands)  # from the control thread: the loop that `push` needs stands still
    leg.feed.listen(view.push)  # also after its end: a steer can still be resolved
    unfollow = leg.branch.turns.listen(view.push, chunks=True) if leg.live else None

    def published() -> None:
        shown.publish()
        if unfollow is not None:
            unfollow()

    leg.when_published(published)
    return shown


# ---------------------------------------------------------------------- intents (any thread)
def _refuse(intent: dict[str, Any], reply: Reply) -> None:
    reply({"ok": False, "sentence": "a Branch is not steered: start a leg on it with lionnb.start_leg(branch, ...)"})


def _intent(leg: Leg, intent: dict[str, Any], reply: Reply) -> None:
    """What a person pressed. Lets nothing out but what the view shows as a failure."""
    try:
        _ACTS[str(intent["intent"])](leg, intent, reply)
    except LionnbError as refusal:
        reply({"ok": False, "sentence": str(refusal)})


def _steer(leg: Leg, intent: dict[str, Any], reply: Reply) -> None:
    receipt = leg.steer(intent["text"], key=intent.get("key"))
    receipt.when_answered(lambda: reply(_answer(receipt)))


def _answer(receipt: Receipt) -> dict[str, Any]:
    refused = receipt.refusal is not None
    return {
        "ok": not refused,
        "sentence": receipt.sentence,
        "control_id": None if refused else receipt.control_id,
    }


def _cancel_turn(leg: Leg, intent: dict[str, Any], reply: Reply) -> None:
    done = leg.cancel_turn(intent["turn_id"])
    gone = "that turn is over already: nothing was cancelled"
    now = leg.branch.current_turn
    if now is not None and now.turn_id == intent["turn_id"]:
        gone = "that turn is not the leg's: the leg waits for it. Nothing was cancelled"
    reply({"ok": done, "sentence": "this turn is being cancelled; what is queued lands next" if done else gone})


def _break_turn(leg: Leg, intent: dict[str, Any], reply: Reply) -> None:
    stored = leg.branch.control(LoopDirective.BREAK, reason="pressed in the view", turn_id=UUID(intent["turn_id"]))
    said = "BREAK is stored on this turn; it takes effect where the operation polls"
    reply({"ok": stored, "sentence": said if stored else "that turn is over already: nothing was stored"})


def _stop(leg: Leg, intent: dict[str, Any], reply: Reply) -> None:
    live = leg.live
    leg.stop()
    reply({"ok": live, "sentence": "the leg is being stopped" if live else "the leg has ended already"})


def _withdraw(leg: Leg, intent: dict[str, Any], reply: Reply) -> None:
    control_id = str(intent["control_id"])
    work = leg.store.submit(lambda core: core.withdraw(control_id, who(), time.time()))
    work.add_done_callback(lambda done: reply(_outcome(done, "withdrawn: it will not be delivered")))


def _resolve(leg: Leg, intent: dict[str, Any], reply: Reply) -> None:
    control_id, outcome, by, claim = (str(intent[field]) for field in ("control_id", "outcome", "by", "claim"))
    work = leg.store.submit(lambda core: core.resolve(control_id, outcome, by, time.time(), claim=claim))
    work.add_done_callback(lambda done: reply(_outcome(done, f"recorded as {outcome} by {by}")))


def _outcome(done: Any, said: str) -> dict[str, Any]:
    error = done.exception()
    if error is None:
        return {"ok": True, "sentence": said}
    return {
        "ok": False,
        "sentence": str(error) if isinstance(error, LionnbError) else f"failed: {type(error).__name__}",
    }


_ACTS: dict[str, Callable[[Leg, dict[str, Any], Reply], None]] = {
    "steer": _steer,
    "cancel_turn": _cancel_turn,
    "break_turn": _break_turn,
    "stop": _stop,
    "withdraw": _withdraw,
    "resolve": _resolve,
}
