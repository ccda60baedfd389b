"""What a turn costs: lionnb.Branch against stock lionagi, on the cheapest provider there is.

    python tests/bench/turn_overhead.py [--quick]

Stock and turn-aware Branches run the same calls in one process, alternating (A B B A …), each batch on a fresh Branch, so
that other load on the machine hits both. Measured is CPU time of the process; each pair gives one ratio, and the table
shows the ratios' median and quartiles. A ratio of 1.00 is no overhead. The provider is scripted and in process: with a
real one, the milliseconds of the network make every ratio here 1.00.

Targets (README): communicate and operate at most 1.00, run of 100 chunks at most 1.02. Never asserted: shared machines
are what they are.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import platform
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

os.environ.setdefault("LIONAGI_HOME", tempfile.mkdtemp())
os.environ.setdefault("LOG_AUTO_SAVE_ON_EXIT", "false")

import lionagi
from pydantic import BaseModel

import lionnb
from lionnb.testing import calls_of, scripted_model
from lionnb.turns import TurnLog, run_in_turn

WORDS = " ".join(str(i) for i in range(100))
ANALYSIS = '{"analysis": "seen enough", "extension_needed": false}'
ANSWER = '{"answer": "yes"}'


class Answer(BaseModel):
    """What `parse` looks for."""

    answer: str


async def _drain(stream: Any) -> None:
    async for _ in stream:
        pass


# name -> (replies, one call, turns a batch)
CALLS: dict[str, tuple[Any, Callable[[Any], Awaitable[Any]], int]] = {
    "communicate": (ANSWER, lambda b: b.communicate("q"), 20),
    "operate": (ANSWER, lambda b: b.operate(instruction="q", skip_validation=True), 20),
    "run, 100 chunks": (WORDS, lambda b: _drain(b.run("q")), 5),
    "ReAct": ([ANALYSIS, ANSWER] * 3, lambda b: b.ReAct({"instruction": "q"}, extension_allowed=False), 3),
    "chat": (ANSWER, lambda b: b.chat("q"), 20),
    "parse": (ANSWER, lambda b: b.parse("no json", response_format=Answer), 20),
    "interpret": (ANSWER, lambda b: b.interpret("q"), 20),
}


def branch(kind: str, replies: Any, *, observed: bool) -> Any:
    """A fresh Branch, alone or in a Session with one observer of everything."""
    model = scripted_model(replies)
    made = (lionagi.Branch if kind == "stock" else lionnb.Branch)(chat_model=model)
    if observed:
        session = (lionagi.Session if kind == "stock" else lionnb.Session)(default_branch=made)
        session.observe(lionagi.session.signal.Signal, handler=lambda *_: None)
        made.metadata["session"] = session  # keeps it alive
    return made


async def batch(kind: str, name: str, *, observed: bool) -> float:
    """CPU seconds of one turn, over one batch."""
    replies, call, turns = CALLS[name]
    b = branch(kind, replies, observed=observed)
    await call(b) if name != "ReAct" else None  # the model's executor starts with the first call
    began = time.process_time()
    for _ in range(turns):
        await call(b)
    spent = time.process_time() - began
    b.metadata.pop("session", None)
    await b.chat_model.close()
    return spent / turns


async def compare(name: str, pairs: int, *, observed: bool) -> str:
    """One line of the table."""
    spent: dict[str, list[float]] = {"stock": [], "lionnb": []}
    for kind in spent:
        await batch(kind, name, observed=observed)
    for i in range(pairs):
        for kind in ("stock", "lionnb") if i % 2 == 0 else ("lionnb", "stock"):
            gc.collect(0)
            spent[kind].append(await batch(kind, name, observed=observed))
    ratios = [ours / stock for ours, stock in zip(spent["lionnb"], spent["stock"], strict=True)]
    q1, median, q3 = statistics.quantiles(ratios, n=4)
    stock, ours = (statistics.median(spent[k]) * 1e6 for k in ("stock", "lionnb"))
    who = "observer" if observed else "alone"
    return f"{name:16} {who:9} {stock:9.0f} {ours:9.0f}   {median:5.3f} [{q1:5.3f}, {q3:5.3f}]"


async def queued(n: int) -> str:
    """CPU time of a turn when *n* callers queue at once, beside a bare asyncio.Lock.

    Without the collector: a full collection walks all *n* tasks, whoever made them, and hides what a turn costs.
    """
    b, lock = branch("lionnb", ANSWER, observed=False), asyncio.Lock()

    async def body(scope: Any) -> None:
        await asyncio.sleep(0)

    async def bare() -> None:
        async with lock:
            await asyncio.sleep(0)

    async def each(one: Callable[[], Awaitable[None]]) -> float:
        gc.collect()
        gc.disable()
        try:
            began = time.process_time()
            await asyncio.gather(*(one() for _ in range(n)))
            return (time.process_time() - began) / n * 1e6
        finally:
            gc.enable()

    turn, locked = await each(lambda: run_in_turn(b, invoke=body)), await each(bare)
    return f"{n:6} queued turns {turn:9.1f} us each; a bare lock {locked:6.1f} us"


async def memory(kind: str, turns: int) -> str:
    """Bytes that a finished turn leaves once all that is bounded is full."""
    b = branch(kind, ANSWER, observed=False)
    model = b.chat_model
    if kind == "lionnb":
        b.turn_state.log = TurnLog(max_turns=50, max_events=200)

    async def some(n: int) -> None:
        for _ in range(n):
            await b.chat("q")
            calls_of(model).clear()  # the scripted model remembers every call; a provider does not

    tracemalloc.start()  # first: what fell out untraced, and came back traced, would look like growth
    await some(700)  # lionagi's own bounded caches included
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    await some(turns)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    await model.close()
    return f"{kind:6} {(after - before) / turns:+7.0f} bytes a finished turn, over {turns} turns of chat"


async def main(*, quick: bool) -> None:
    """Print the tables."""
    pairs = 7 if quick else 41
    print(
        f"Python {platform.python_version()}, lionagi {lionagi.__version__}, {os.cpu_count()} CPUs, {pairs} pairs a line"
    )
    print(f"\n{'':26} {'stock us':>9} {'lionnb us':>9}   ratio [quartiles]")
    for name in CALLS:
        for observed in (False, True):
            print(await compare(name, pairs, observed=observed), flush=True)
    print()
    for n in (100, 1_000, 10_000):
        print(await queued(n), flush=True)
    for kind in ("stock", "lionnb"):
        print(await memory(kind, 200 if quick else 1_000), flush=True)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    arguments.add_argument("--quick", action="store_true", help="few pairs: a look, no measurement")
    logging.disable(logging.WARNING)
    asyncio.run(main(quick=arguments.parse_args().quick))
