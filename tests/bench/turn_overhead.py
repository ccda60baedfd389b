"""What a turn costs: stock lionagi against lionnb, paired and alternating in one process.

    python tests/bench/turn_overhead.py [--quick]

Prints CPU time per call and the ratio lionnb / stock of each pair: median [first quartile, third quartile]. Both sides
run the same scripted model, on a Branch made anew for each measurement, so that history is equally long. 1.00 is no
overhead. ``chat``, ``parse`` and ``interpret`` gain two lifecycle signals that stock lionagi does not send.

Then: time per turn while 10,000 calls queue on one Branch, in quarters, and memory per finished turn once the turn log
is full; both should be flat.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

os.environ.setdefault("LIONAGI_HOME", tempfile.mkdtemp(prefix="lionnb-bench-"))
os.environ["LOG_AUTO_SAVE_ON_EXIT"] = "false"
logging.disable(logging.WARNING)  # lionagi says that a scripted answer is not the structure it asked for

from lionagi import Branch as StockBranch  # noqa: E402  # the environment is read at import
from lionagi import Session as StockSession  # noqa: E402
from lionagi.session.signal import RunEnd  # noqa: E402

import lionnb  # noqa: E402
from lionnb.offline import QuietLogger  # noqa: E402
from lionnb.testing import scripted_model  # noqa: E402

CHUNKS = 100
ROUND = ('{"analysis": "done", "extension_needed": false}', '{"answer": "done"}')  # one ReAct call: analysis, answer
Call = Callable[[Any], Awaitable[Any]]


async def _drain(stream: Any) -> None:
    async for _ in stream:
        pass


OPERATIONS: dict[str, tuple[Any, Call]] = {
    "communicate": ("an answer", lambda b: b.communicate("a question")),
    "operate": ("an answer", lambda b: b.operate(instruction="a question")),
    "run": ("word " * CHUNKS, lambda b: _drain(b.run("a question"))),
    "ReAct": (ROUND, lambda b: b.ReAct({"instruction": "a question"}, extension_allowed=False)),
    "chat": ("an answer", lambda b: b.chat("a question")),
    "parse": ("an answer", lambda b: b.parse('{"a": 1}', response_format={"a": 0})),
    "interpret": ("an answer", lambda b: b.interpret("a question")),
}
GAIN_SIGNALS = ("chat", "parse", "interpret")


def make(side: str, reply: Any, observed: bool) -> Any:
    """A new Branch of *side* (stock or lionnb); both keep their logs in memory, so that neither writes a file."""
    cls = StockBranch if side == "stock" else lionnb.Branch
    replies = [reply] if isinstance(reply, str) else list(reply) * 200
    branch = cls(chat_model=scripted_model(replies), system="You answer.")
    branch._log_manager = QuietLogger()
    if observed:
        session = (StockSession if side == "stock" else lionnb.Session)(default_branch=branch)
        session.observe(RunEnd, handler=lambda *_: None)
        _alive.append(session)
    return branch


_alive: list[Any] = []


async def per_call(side: str, operation: str, observed: bool, calls: int) -> float:
    """CPU microseconds per call of *operation*, over *calls* calls on one new Branch."""
    reply, call = OPERATIONS[operation]
    branch = make(side, reply, observed)
    await call(branch)  # what is made once (executor, caches) is not what is measured
    gc.collect()
    gc.disable()
    try:
        before = time.process_time()
        for _ in range(calls):
            await call(branch)
        return (time.process_time() - before) / calls * 1e6
    finally:
        gc.enable()
        await branch.mdls.chat.close()
        _alive.clear()


async def compare(operation: str, observed: bool, pairs: int, calls: int) -> None:
    """Print one line."""
    stock: list[float] = []
    ours: list[float] = []
    for i in range(pairs):
        order = ("stock", "lionnb") if i % 2 == 0 else ("lionnb", "stock")  # drift of the machine hits both alike
        for side in order:
            (stock if side == "stock" else ours).append(await per_call(side, operation, observed, calls))
    ratios = sorted(b / a for a, b in zip(stock, ours, strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4)
    note = "  (two signals more than stock)" if observed and operation in GAIN_SIGNALS else ""
    print(
        f"{operation:12s} {'observer' if observed else 'none':9s} {statistics.median(stock):9.0f} "
        f"{statistics.median(ours):9.0f}   {middle:5.3f} [{low:5.3f}, {high:5.3f}]{note}",
        flush=True,
    )


async def queued(total: int) -> None:
    """Time per turn of *total* calls that queue on one Branch at once, in quarters: flat is right."""
    branch = lionnb.Branch(chat_model=scripted_model(["x"]))
    marks: list[float] = []

    async def one() -> None:
        await branch.parse('{"a": 1}', response_format={"a": 0})  # needs no provider: the queue is what is measured
        marks.append(time.perf_counter())

    begin = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(total)))
    edges = [begin, *(marks[total * q // 4 - 1] for q in (1, 2, 3, 4))]
    each = [(b - a) / (total / 4) * 1e6 for a, b in pairwise(edges)]
    print(f"{total} queued turns: us per turn in each quarter " + " ".join(f"{e:.0f}" for e in each))


async def memory(turns: int) -> None:
    """Bytes per finished turn once the log is full: close to nothing is right."""
    branch = lionnb.Branch(chat_model=scripted_model(["x"]))
    call = lambda: branch.parse('{"a": 1}', response_format={"a": 0})  # noqa: E731
    tracemalloc.start()
    for _ in range(3_000):  # the log's bounds: 1,000 turns, 10,000 events
        await call()
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(turns):
        await call()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    print(f"memory per finished turn, log full: {grown / turns:.1f} bytes over {turns} turns")


async def main(quick: bool) -> None:
    """Everything, in order."""
    pairs, calls = (5, 20) if quick else (31, 100)
    print(f"Python {sys.version.split()[0]}, {pairs} alternating pairs of {calls} calls, CPU time")
    print(f"{'operation':12s} {'observer':9s} {'stock us':>9s} {'ours us':>9s}   ratio [q1, q3]")
    for operation in OPERATIONS:
        for observed in (False, True):
            few = max(3, calls // 5) if operation in ("run", "ReAct") else calls
            await compare(operation, observed, pairs, few)
    await queued(2_000 if quick else 10_000)
    await memory(1_000 if quick else 10_000)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="a few seconds, coarse figures")
    asyncio.run(main(options.parse_args().quick))
