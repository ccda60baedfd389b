"""What the suite promises of every test: leaks fail it, its world is its own, parts and tiers are handled."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lionnb.testing import Resources, assert_no_leaks, leftover_tasks, scripted_model


def test_a_thread_a_socket_and_one_of_our_own_threads_are_leaks():
    before = Resources.now()
    stop = threading.Event()
    for name, daemon in (("worker", False), ("lionnb-x", True)):
        thread = threading.Thread(target=stop.wait, name=name, daemon=daemon)
        thread.start()
        with pytest.raises(AssertionError, match=name):
            assert_no_leaks(before, join_s=0.01)
        stop.set()
        thread.join()
        stop.clear()
    with socket.socket(), pytest.raises(AssertionError, match="socket"):
        assert_no_leaks(before)
    assert_no_leaks(before)


async def test_an_open_aiosqlite_connection_is_a_leak():
    import aiosqlite

    before = Resources.now()
    connection = await aiosqlite.connect(":memory:")
    with pytest.raises(AssertionError, match="threads were left running"):
        assert_no_leaks(before, join_s=0.01)
    await connection.close()
    assert_no_leaks(before)


async def test_a_running_task_is_left_over_but_lionagis_rate_limiter_is_not():
    model = scripted_model("x")
    assert [c async for c in model.stream(messages=[])]
    assert leftover_tasks() == []
    task = asyncio.create_task(asyncio.Event().wait())
    assert leftover_tasks() == [task]
    task.cancel()


def test_the_leak_fixture_fails_a_test_that_leaks(pytester_run):
    out = pytester_run(
        """
        import asyncio, threading
        async def test_task():
            globals()["t"] = asyncio.create_task(asyncio.Event().wait(), name="stray")
        def test_thread():
            globals()["stop"] = threading.Event()
            threading.Thread(target=stop.wait, name="stray-thread").start()
        def test_after():
            stop.set()
        def test_clean():
            pass
        """
    )
    assert "tasks were left running" in out and "stray-thread" in out
    assert "4 passed, 2 errors" in out


def test_slow_tests_are_left_out_with_fast_and_missing_parts_fail_in_ci(pytester_run):
    code = """
        import pytest
        @pytest.mark.slow
        def test_slow(): pass
        def test_part(need): need(False, "there is no moon")
        """
    assert "1 passed, 1 skipped" in pytester_run(code)
    assert "1 skipped, 1 deselected" in pytester_run(code, "--fast")
    assert "CI must have every part: there is no moon" in pytester_run(code, CI="1")


async def test_asyncio_debug_is_on_and_the_world_is_the_tests_own(world):
    assert asyncio.get_running_loop().get_debug()
    for name in ("HOME", "LIONNB_DB", "LIONAGI_HOME", "XDG_DATA_HOME"):
        assert Path(os.environ[name]).is_relative_to(world)
    assert Path.cwd().is_relative_to(world)


def test_importing_the_kit_loads_neither_lionagi_nor_pytest():
    code = "import sys, lionnb.testing; print({'lionagi', 'pytest', 'pandas'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
