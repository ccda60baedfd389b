"""The five faults that ADR-0018 names, side by side: a stock lionagi Branch, and a lionnb one.

``p1()`` to ``p5()`` each run one small scene on both and return a `Pair` that displays itself, for a lesson.
``python -m lionnb.hazards`` prints all five; its exit status is 0 only if each fault shows on stock and not here.

The scenes are held with gates, not with time. Each runs in an event loop of its own on a helper thread, so the
functions work in a notebook cell, where a loop is running already. No network, no key, no file.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import html
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from lionagi import Branch as StockBranch
from lionagi import Session as StockSession
from lionagi.session.control import LoopDirective
from lionagi.session.signal import MessageAdded, RunEnd, RunFailed, RunStart

from lionnb.branch import Branch
from lionnb.offline import ensure_token_data, quiet_log_config
from lionnb.session import Session
from lionnb.testing import Gate, Reply, scripted_model

__all__ = ("Finding", "Pair", "p1", "p2", "p3", "p4", "p5")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: what, what was seen, and whether that is the fault."""

    what: str
    seen: str
    fault: bool


@dataclass(frozen=True, slots=True)
class Pair:
    """What one scene showed on a stock Branch and on a lionnb one, finding by finding."""

    title: str
    stock: tuple[Finding, ...]
    lionnb: tuple[Finding, ...]

    @property
    def holds(self) -> bool:
        """Whether every finding is a fault on stock and none here."""
        return all(f.fault for f in self.stock) and not any(f.fault for f in self.lionnb)

    def __repr__(self) -> str:
        lines = [self.title]
        for theirs, ours in zip(self.stock, self.lionnb, strict=True):
            lines += [f"  {theirs.what}", f"    stock:  {_mark(theirs)}", f"    lionnb: {_mark(ours)}"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(_row(t.what, _mark(t), _mark(o)) for t, o in zip(self.stock, self.lionnb, strict=True))
        head = "<tr><th></th><th>stock lionagi</th><th>lionnb</th></tr>"
        return f"<table><caption>{html.escape(self.title)}</caption>{head}{rows}</table>"


def _row(*cells: str) -> str:
    return "<tr>" + "".join(f'<td style="text-align:left">{html.escape(c)}</td>' for c in cells) + "</tr>"


def _mark(finding: Finding) -> str:
    return f"{'✗' if finding.fault else '✓'} {finding.seen}"


class _Side:
    """One of the two: makes Branches of its kind, observed or not."""

    def __init__(self, ours: bool) -> None:
        self._ours = ours
        ensure_token_data()  # a stock Branch without a network records each provider as failed: not what is shown here
        self.sessions: list[Any] = []  # an observer lives as long as its session

    def branch(self, model: Any, **kw: Any) -> Any:
        return (
            Branch(chat_model=model, **kw)
            if self._ours
            else StockBranch(chat_model=model, log_config=quiet_log_config(), **kw)
        )

    def observe(self, branch: Any, *kinds: Any, handler: Callable[..., Any]) -> None:
        session = (Session if self._ours else StockSession)(default_branch=branch)
        self.sessions.append(session)
        for kind in kinds:
            session.observe(kind, handler=handler)


Scene = Callable[[_Side], Awaitable[list[Finding]]]


def _pair(title: str, scene: Scene) -> Pair:
    async def both() -> Pair:
        return Pair(title, tuple(await scene(_Side(False))), tuple(await scene(_Side(True))))

    with concurrent.futures.ThreadPoolExecutor(1, "lionnb-hazards") as pool:
        return pool.submit(asyncio.run, both()).result()


async def _settle(rounds: int = 100) -> None:
    """Let everything that can move, move."""
    for _ in range(rounds):
        await asyncio.sleep(0)


async def _consume(stream: Any) -> list[Any]:
    return [item async for item in stream]


# ---------------------------------------------------------------------- P1
class _Library:
    name = "library"

    async def provide(self, branch: Any, instruction: Any) -> str:
        return f"block for {instruction.content.instruction}"


async def _reports(side: _Side) -> list[Finding]:
    gate = Gate()
    branch = side.branch(scripted_model(["an answer"], gate=gate), system="You answer.")
    branch.providers.register(_Library())
    running = asyncio.create_task(branch.communicate("A"))
    await gate.reached()
    early = branch.last_context_report
    gate.open()
    await running
    await branch.communicate("B")
    await asyncio.create_task(branch.communicate("C"))
    last = branch.last_context_report
    seen = last.blocks[0] if last and last.blocks else "nothing"
    return [
        Finding("while the turn runs, its report is", "published already" if early else "not published", bool(early)),
        Finding("after turns A, B and C the last report is that of", seen, seen != "block for C"),
    ]


def p1() -> Pair:
    """Provider state: a report is published too early, and the last one is not the last turn's."""
    return _pair("P1  provider reports", _reports)


# ---------------------------------------------------------------------- P2
async def _controls(side: _Side) -> list[Finding]:
    branch = side.branch(scripted_model(["a whole answer"]))
    stored = branch.control(LoopDirective.CANCEL, reason="too late, nothing runs")
    texts = [m.response for m in await _consume(branch.run("go")) if getattr(m, "response", None)]
    said = "False, nothing kept" if stored is False else "accepted"
    return [
        Finding("a CANCEL while nothing runs is", said, stored is not False),
        Finding("the next, innocent run delivers", texts[0] if texts else "nothing", not texts),
    ]


def p2() -> Pair:
    """Loop control has no turn: a directive that came late stops whatever runs next."""
    return _pair("P2  control without a turn", _controls)


# ---------------------------------------------------------------------- P3
async def _signals(side: _Side) -> list[Finding]:
    gates, order, release = {"A": Gate(), "B": Gate()}, [], asyncio.Event()

    def answer(payload: Any) -> Any:
        who = "A" if "ask-A" in str(payload["messages"][-1]) else "B"
        return Reply(f"{who} answers", gate=gates[who])

    branch = side.branch(scripted_model([answer]))

    async def on_message(signal: Any, _: Any) -> None:
        text = getattr(signal.data.content, "instruction", None)
        if text == "ask-B":
            await release.wait()
            order.append("message of B")

    side.observe(branch, MessageAdded, handler=on_message)
    a = asyncio.create_task(_consume(branch.run("ask-A")))
    await gates["A"].reached()
    b = asyncio.create_task(_consume(branch.run("ask-B")))
    await _settle()
    a.add_done_callback(lambda _: order.append("end of A"))
    b.add_done_callback(lambda _: order.append("end of B"))
    gates["A"].open()
    await _settle()
    a_waits = not a.done()
    gates["B"].open()
    await _settle()
    b_early = "end of B" in order
    release.set()
    await asyncio.gather(a, b)
    return [
        Finding("A, which is done, waits for B's observer", "yes" if a_waits else "no", a_waits),
        Finding("B ends before its own message was observed", "yes" if b_early else "no", b_early),
    ]


def p3() -> Pair:
    """Draining is global: one turn waits for another's observers, which then ends before its own."""
    return _pair("P3  message signals", _signals)


# ---------------------------------------------------------------------- P4
async def _models(side: _Side) -> list[Finding]:
    base, other = scripted_model(["base"], model="base"), scripted_model(["other"], model="other")
    branch = side.branch(base)
    await _consume(branch.run("once with another model", chat_model=other))
    kept = branch.chat_model.model_name
    branch = side.branch(base)
    await branch.operate(instruction="once with another model", chat_model=other, skip_validation=True)
    after = branch.chat_model.model_name
    return [
        Finding("after run(chat_model=other) the Branch's model is", kept, kept != "base"),
        Finding("after operate(chat_model=other) it is", after, after != "base"),
    ]


def p4() -> Pair:
    """A model for one call becomes the Branch's."""
    return _pair("P4  a model for one call", _models)


# ---------------------------------------------------------------------- P5
async def _lifecycles(side: _Side) -> list[Finding]:
    def watched(*replies: str) -> tuple[Any, list[str]]:
        branch, log = side.branch(scripted_model(list(replies))), list[str]()
        side.observe(branch, RunStart, RunEnd, RunFailed, handler=lambda s, _: log.append(type(s).__name__))
        return branch, log

    chatty, of_chat = watched("an answer")
    await chatty.chat("a question")
    react, of_react = watched('{"analysis": "seen enough", "extension_needed": false}', '{"answer": "done"}')
    await _consume(react.ReActStream({"instruction": "x"}, extension_allowed=False))
    closing, of_close = watched("an answer")
    async with aclosing(closing.run("x")) as stream:
        await anext(stream)
    at_once = of_close.count("RunEnd")
    pair = ["RunStart", "RunEnd"]
    return [
        Finding("chat() tells its observers", " ".join(of_chat) or "nothing", of_chat != pair),
        Finding("one ReActStream() tells them", f"{of_react.count('RunStart')} starts", of_react != pair),
        Finding("after aclose() of a stream its end was told", f"{at_once} times", at_once != 1),
    ]


def p5() -> Pair:
    """The lifecycle has several owners: some operations tell nothing, some too much, some too late."""
    return _pair("P5  who tells start and end", _lifecycles)


def main() -> int:
    """Print all five; 0 only if each fault shows on stock and not here."""
    import logging

    logging.disable(logging.WARNING)
    pairs = [p() for p in (p1, p2, p3, p4, p5)]
    for pair in pairs:
        print(pair, end="\n\n")  # noqa: T201
    return 0 if all(pair.holds for pair in pairs) else 1


if __name__ == "__main__":
    sys.exit(main())
