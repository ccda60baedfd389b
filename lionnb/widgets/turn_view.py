"""The live view of a Branch or a leg.

Threads, which is the whole difficulty here (measured on ipykernel 6.31 and 7.0 to 7.4):

- The main loop is the only writer: `TurnView.push` numbers events, changes the state and sends batches from there.
- A message from the browser arrives on a thread that nobody chooses: the main one, or a subshell's with a loop of its
  own, and it can change from click to click. So the handler creates no task and touches no loop's objects: it hands a
  person's intent to a callback as it is. A page that missed events is answered there and then, from a copy made under
  a lock, so that it catches up while a cell keeps the main loop busy; whatever comes out of order, its number sorts it.
- Sending is safe from any thread, and an acknowledgement is nothing but a send. That is how a receipt reaches the page
  while a cell keeps the main loop busy.

Nothing goes from browser to kernel through a synced trait: on ipykernel 7.4 a trait that changes while a cell awaits
freezes its widget for good.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import anywidget
import traitlets

from lionnb.records import FeedEvent
from lionnb.widgets import assets, intents, twin
from lionnb.widgets.feed import Feed
from lionnb.widgets.state import fresh
from lionnb.widgets.wire import line

__all__ = ("OnIntent", "Reply", "TurnView")

log = logging.getLogger(__name__)

Reply = Callable[[dict[str, Any]], None]
OnIntent = Callable[[dict[str, Any], Reply], None]

BATCH_S = 0.05  # 20 messages a second: one costs 600 bytes of envelope and 0.3 ms, whatever is in it


class TurnView(anywidget.AnyWidget):
    """Shows what a feed tells, survives a page reload, and hands what a person presses to *on_intent*.

    Outside a kernel it works too: it keeps its state and its static form, and its messages go nowhere.

    Args:
        title: What is shown until a leg says its name.
        can_steer: Whether the steer panel is there. Without it every intent is refused.
        on_intent: Called with ``(intent, reply)`` on whatever thread the browser's message arrived; it must only hand
            over. *reply* may be called from any thread, more than once (the last word stands), with
            ``{"ok": bool, "sentence": str, "control_id": str | None}``. What it raises is shown in the view.
        seed: Events that happened before, oldest first.
        max_entries: Lines of transcript kept, at least 1; what falls out is counted, and the view says so.
        max_signals: Signals kept, at least 1, likewise.
        beat_s: Seconds (more than 0) between two signs of life while something goes on; ``None`` sends none. The page
            says since when it has heard nothing. An idle view sends none either: a message counts as activity, and a
            kernel that is never idle is never culled.

    Raises:
        ValueError: A limit that means nothing.
    """

    _esm = assets.esm()
    _css = assets.css()
    # Never assigned: serialised only when a comm opens or a page asks for the state, so that appending stays free.
    snapshot = traitlets.Any().tag(sync=True, to_json=lambda _, self: self.feed.snapshot())

    # Here, because ipywidgets closes what is collected, and also what was refused below before it had any of them.
    _flusher: asyncio.TimerHandle | None = None
    _beater: asyncio.TimerHandle | None = None
    _closed = False

    def __init__(
        self,
        *,
        title: str,
        can_steer: bool,
        on_intent: OnIntent,
        seed: Iterable[FeedEvent] = (),
        max_entries: int = 2_000,
        max_signals: int = 10_000,
        beat_s: float | None = 2.0,
    ) -> None:
        if max_entries < 1 or max_signals < 1:
            raise ValueError(f"a view keeps at least one line and one signal, not {max_entries} and {max_signals}")
        if beat_s is not None and not beat_s > 0:
            raise ValueError(f"beat_s is {beat_s!r}: give seconds between two signs of life, or None for none")
        limits = {"entries": max_entries, "signals": max_signals}
        self._can_steer, self._on_intent, self._beat_s = can_steer, on_intent, beat_s
        self._thread, self._context = threading.get_ident(), contextvars.copy_context()
        self._loop = _running_loop()
        # Before super().__init__: that opens the comm, and the opening carries the snapshot.
        beats, uid = beat_s is not None, uuid.uuid4().hex
        self.feed = Feed(fresh(uid=uid, title=line(title, 120), can_steer=can_steer, beats=beats, limits=limits))
        for event in seed:
            self.feed.add(event)
        self.feed.take()
        super().__init__()
        self.on_msg(self._on_browser)
        # ipykernel 7.4 sends a view's messages to the subshell or to the main thread, depending on what the view sent
        # last. With this hook off the front end's subshell gets them, so that a click is handled while a cell computes.
        # Private, and only in 7.4 (7.0 to 7.3 behave so anyway; before, there are no subshells).
        if hasattr(self.comm, "_reply_subshell_for"):
            self.comm._reply_subshell_for = None  # noqa: SLF001
        self._keep_beating()

    # ------------------------------------------------------------------ towards the page
    def push(self, event: FeedEvent) -> None:
        """Take one event in and show it within 50 ms; without a running loop, at once.

        Meant for the main loop; from another thread it hands itself over to that loop, in order.
        """
        home = self._loop
        if threading.get_ident() != self._thread and home is not None and not home.is_closed():
            # A copy of the context each time, for one context cannot be entered twice: what is sent belongs to the cell
            # that made the view, not to whichever cell runs.
            home.call_soon_threadsafe(self.push, event, context=self._context.copy())
            return
        if self._closed:
            return
        self.feed.add(event)
        loop = _running_loop()
        if loop is None:
            self.flush()
            return
        if loop is not home:  # asyncio.run, again: timers of the loop before will never fire
            self._loop, self._flusher, self._beater = loop, None, None
        if self._flusher is None:
            self._flusher = loop.call_later(BATCH_S, self.flush)

    def flush(self) -> None:
        """Show now what was pushed. The main loop's, like `push`; harmless when nothing waits."""
        if self._flusher is not None:
            self._flusher.cancel()
            self._flusher = None
        batch = self.feed.take()
        if batch is not None:
            self._say(batch)
            self._keep_beating()

    def publish(self) -> None:
        """Send the whole state again, from the cell that calls this.

        A runner without a browser (nbclient, papermill) drops what a task of an earlier cell sends; the cell that
        awaits the end calls this, and the saved notebook holds the end.
        """
        self.flush()
        self.send_state("snapshot")

    def ack(self, n: int, *, ok: bool, sentence: str, control_id: str | None = None) -> None:
        """Tell the page what became of its message *n*. Any thread; it only sends."""
        self._say({"ack": n, "ok": bool(ok), "sentence": line(sentence), "control_id": control_id})

    def stands(self, seconds: float, cause: str) -> None:
        """Tell the page that the main loop stands still, since *seconds* ago. Any thread; it only sends."""
        if not self._closed:
            self._say({"starved": {"s": round(seconds, 1), "by": line(cause, 120)}})

    def close(self) -> None:
        """End the view: timers stop, the page's copy becomes static. Idempotent."""
        self._closed = True
        for timer in (self._flusher, self._beater):
            if timer is not None:
                timer.cancel()
        self._flusher = self._beater = None
        super().close()

    def _say(self, message: dict[str, Any]) -> None:
        """Send, and never let a dead front end or kernel reach whoever told us something."""
        try:
            self.send(message)
        except Exception:
            log.debug("a message of a view could not be sent", exc_info=True)

    # ------------------------------------------------------------------ signs of life
    def _keep_beating(self) -> None:
        """Begin when something goes on, and say at once when nothing does any more."""
        if self._beat_s is None or self._closed or self._loop is None or _running_loop() is not self._loop:
            return
        if self.feed.live != (self._beater is not None):
            self._beat()

    def _beat(self) -> None:
        """One sign of life, and the next one armed; the last one says that no more will come."""
        if self._beater is not None:
            self._beater.cancel()
            self._beater = None
        live = self.feed.live
        self._say({"beat": {"at": time.time(), "n": self.feed.sent, "next_s": self._beat_s if live else None}})
        if live and self._loop is not None and self._beat_s is not None:
            self._beater = self._loop.call_later(self._beat_s, self._beat)

    # ------------------------------------------------------------------ from the page (any thread)
    def _on_browser(self, _: Any, content: Any, __: Any) -> None:
        """Handle one custom message. Lets no exception out: the kernel would show it in no cell."""
        n = content.get("n") if isinstance(content, dict) else None
        try:
            said = intents.parse(content, can_steer=self._can_steer)
            if isinstance(said, intents.Since):
                self._say(self.feed.since(said.i))
            elif isinstance(said, intents.Refusal):
                self._refuse(said.n, said.sentence)
            else:
                self._on_intent(said.message, self._replier(said.n))
        except Exception as exc:
            log.exception("a message from the page could not be handled")
            self._refuse(n, f"this failed in the kernel: {type(exc).__name__}: {line(exc, 300)}")

    def _replier(self, n: int) -> Reply:
        def reply(answer: dict[str, Any]) -> None:
            sentence = answer.get("sentence") or ("done" if answer.get("ok") else "refused")
            self.ack(n, ok=bool(answer.get("ok")), sentence=str(sentence), control_id=answer.get("control_id"))

        return reply

    def _refuse(self, n: Any, sentence: str) -> None:
        if isinstance(n, int):
            self.ack(n, ok=False, sentence=sentence)
        else:
            self._say({"err": line(sentence)})

    # ------------------------------------------------------------------ the static form
    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The live view, and beside it the form that reads without a kernel."""
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        self.flush()
        state = self.feed.state()
        return {**data, "text/html": twin.html(state), "text/plain": twin.text(state)}, metadata


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
