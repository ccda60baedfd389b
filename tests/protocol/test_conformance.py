"""The real store does what the model says, step by step, on both databases."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from lionnb.store import locate
from lionnb.store.core import StoreCore
from tests.protocol.walk import Walk

# Each of these must have happened, as by somebody who may and as by somebody who may not.
BOTH_WAYS = (
    "admit",
    "claim",
    "report",
    "give_back",
    "withdraw",
    "resolve",
    "resolve-seen",
    "end",
    "lost",
    "resume",
    "reopen",
    "beat",
)


async def walked(url: str, seed: int, steps: int) -> Walk:
    asyncio.get_running_loop().set_debug(False)  # it takes twice the time, and looks for what other tests look for
    async with AsyncExitStack() as stack:
        cores = []
        for _ in range(2):
            cores.append(await StoreCore.open(locate(url)))
            stack.push_async_callback(cores[-1].aclose)
        walk, from_ = Walk(cores, seed, f"walk-{seed}"), time.monotonic()
        await walk.walk(steps)
        print(f"\nseed {seed}: {steps:,} steps in {time.monotonic() - from_:.1f} s")
        return walk


@pytest.mark.parametrize("seed", [4, 7])
async def test_a_random_walk_of_the_store_is_a_walk_of_the_model(url, seed):
    walk = await walked(url, seed, 500)
    for what in BOTH_WAYS:
        assert walk.done[what, True] and walk.done[what, False], (what, walk.done)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_long_random_walk_of_the_store_is_a_walk_of_the_model(url):
    await walked(url, 2026, 14_000 if url.startswith("postgresql") else 7_000)
