"""Event loops: a Branch goes from one to the next, never into two at once."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import textwrap
import threading

import pytest
from turnkit import Host, Watched, drain, outcome_of, until

from lionnb.errors import WrongLoopError
from lionnb.testing import Gate, scripted_model
from lionnb.turns import run_in_turn, stream_in_turn


async def nothing(scope):
    return scope.owns_lifecycle


def count(host, n):
    async def body(scope):
        for i in range(n):
            yield i

    return stream_in_turn(host, invoke=body)


def in_thread(make):
    """Run a coroutine in a loop and thread of their own, in an empty context."""
    box = []
    thread = threading.Thread(target=lambda: box.append(contextvars.Context().run(asyncio.run, outcome_of(make()))))
    thread.start()
    thread.join()
    return box[0]


@pytest.fixture
def loop():
    made = asyncio.new_event_loop()
    yield made
    made.close()


def test_a_branch_may_be_used_in_one_loop_after_another():
    """An asyncio.Lock stays bound to the first loop in which somebody had to wait for it."""
    host = Host()

    async def contend():
        await asyncio.gather(*(run_in_turn(host, invoke=nothing) for _ in range(3)))

    for _ in range(3):
        asyncio.run(contend())
    host.check(*["RunEnd"] * 9)


async def test_a_call_from_another_live_loop_is_refused_naming_both():
    host, gate = Host("the branch"), Gate()

    async def held(scope):
        await gate.wait()

    turn = asyncio.create_task(run_in_turn(host, invoke=held))
    await gate.reached()
    exc = await asyncio.to_thread(in_thread, lambda: run_in_turn(host, invoke=nothing))
    assert isinstance(exc, WrongLoopError)
    assert "the branch is in a turn on another event loop" in str(exc) and str(exc).count("EventLoop at 0x") == 2
    gate.open()
    await turn
    host.check("RunEnd")
    assert await asyncio.to_thread(in_thread, lambda: run_in_turn(host, invoke=nothing)) is None


async def test_callers_that_wait_keep_their_loop_too():
    """Between two turns the lock is free for a moment; a call from elsewhere must not slip in before the next waiter."""
    host, gate, refused = Host(), Gate(), []

    async def held(scope):
        await gate.wait()

    def from_elsewhere():
        refused.append(in_thread(lambda: run_in_turn(host, invoke=nothing)))

    first = asyncio.create_task(run_in_turn(host, invoke=held))
    await gate.reached()
    second = asyncio.create_task(run_in_turn(host, invoke=nothing))
    await until(lambda: host.turn_state.waiters)
    host.turn_state.turn.after(from_elsewhere)  # the lock is free, the next waiter has not run yet
    gate.open()
    await asyncio.gather(first, second)
    assert isinstance(refused[0], WrongLoopError)
    host.check("RunEnd", "RunEnd")


async def test_a_call_from_elsewhere_between_anothers_lock_and_its_pointer_is_refused():
    host, refused, model = Host(), [], object()

    def resolve():  # asked with the lock held and the pointer not yet set
        if not refused:
            refused.append(in_thread(lambda: run_in_turn(host, invoke=nothing)))
        return model

    host.turn_model = resolve
    assert await run_in_turn(host, invoke=nothing) is True
    assert isinstance(refused[0], WrongLoopError)
    host.check("RunEnd")


def test_a_stream_that_is_left_open_ends_with_asyncio_run():
    host, keep = Host(), []

    async def leave():
        keep.append(count(host, 3))
        await anext(keep[0])

    asyncio.run(leave())
    host.check("RunEnd")
    asyncio.run(run_in_turn(host, invoke=nothing))
    host.check("RunEnd", "RunEnd")


def test_a_turn_that_asyncio_run_ends_in_the_middle_leaves_the_branch_free():
    host = Host()

    async def held(scope):
        await asyncio.Event().wait()

    async def leave():
        asyncio.create_task(run_in_turn(host, invoke=held))
        asyncio.create_task(run_in_turn(host, invoke=nothing))
        await until(lambda: host.turn_state.waiters)

    asyncio.run(leave())
    host.check("RunFailed")
    assert asyncio.run(run_in_turn(host, invoke=nothing)) is True
    assert [r.outcome.value for r in host.turns.records()] == ["cancelled", "cancelled while waiting", "completed"]


@pytest.mark.parametrize("stream", [False, True], ids=["coroutine", "stream"])
def test_asyncio_run_may_end_at_any_step_of_a_turn(stream):
    """It cancels every task at once, the one that finalizes too, also before that one's first step."""
    ended_within = set()
    for k in range(40):
        host = Host()
        host.on_signal = lambda kind, ctx: asyncio.sleep(0)

        async def nested(scope):
            await asyncio.Event().wait()

        async def body(scope, host=host, nested=nested):
            asyncio.create_task(run_in_turn(host, invoke=nested))
            await asyncio.sleep(0)

        async def items(scope, body=body):
            yield await body(scope)
            yield 2

        async def main(k=k, host=host, body=body, items=items):
            if stream:
                call = asyncio.ensure_future(drain(stream_in_turn(host, invoke=items)))
            else:
                call = asyncio.ensure_future(run_in_turn(host, invoke=body))
            for _ in range(k):
                await asyncio.sleep(0)
            ended_within.add(call.done())

        asyncio.run(main())
        host.check(*[kind for kind in host.kinds if kind != "RunStart"])
        assert asyncio.run(run_in_turn(host, invoke=nothing)) is True
    assert ended_within == {False, True}


def test_a_turn_of_a_loop_that_was_closed_under_it_is_dropped_and_the_log_says_so(loop, caplog):
    """No terminal signal is possible."""
    host, keep = Host(), []

    async def leave():
        keep.append(count(host, 3))
        await anext(keep[0])
        keep.append(asyncio.ensure_future(run_in_turn(host, invoke=nothing), loop=loop))
        keep.append(contextvars.Context().run(asyncio.ensure_future, run_in_turn(host, invoke=nothing)))
        await until(lambda: host.turn_state.waiters)

    loop.run_until_complete(leave())
    loop.close()
    assert asyncio.run(run_in_turn(host, invoke=nothing)) is True
    assert host.kinds == ["RunStart", "RunStart", "RunEnd"]
    assert host.turns.records()[0].outcome == "abandoned"
    assert "its event loop has closed" in caplog.text
    assert host.turn_state.waiters == {} and not host.turn_state.lock.locked()
    asyncio.run(outcome_of(keep[0].aclose()))  # what is left of the stream is closed quietly
    for task in keep[1:]:
        task._log_destroy_pending = False  # it was left on purpose
    del task
    keep.clear()
    gc.collect()


async def test_a_step_from_another_live_loop_is_refused_and_the_stream_lives_on():
    """A generator that raises is finished: its turn could then be ended by nobody."""
    host = Host()
    stream = count(host, 3)
    assert await anext(stream) == 0
    for step in (stream.__anext__, stream.aclose, lambda: stream.athrow(ValueError())):
        assert isinstance(await asyncio.to_thread(in_thread, step), WrongLoopError)
    assert await anext(stream) == 1
    await stream.aclose()
    host.check("RunEnd")


def test_a_stream_of_a_closed_loop_can_be_stepped_no_more_and_closed_anywhere(loop):
    for finish in ("step", "close"):
        host, keep = Host(), []
        home = asyncio.new_event_loop()

        async def leave(host=host, keep=keep):
            keep.append(count(host, 3))
            await anext(keep[0])

        home.run_until_complete(leave())
        home.close()
        if finish == "step":
            with pytest.raises(RuntimeError, match="event loop has closed"):
                asyncio.run(keep[0].__anext__())
        else:
            asyncio.run(keep[0].aclose())
        assert not host.turn_state.lock.locked() or host.turn_state.loop is home
        assert asyncio.run(run_in_turn(host, invoke=nothing)) is True


def test_a_call_that_was_destroyed_with_its_loop_leaves_the_branch_free(loop):
    host, gate = Host(), Gate()

    async def held(scope):
        await gate.wait()

    task = loop.create_task(run_in_turn(host, invoke=held))
    loop.run_until_complete(gate.reached())
    loop.close()
    task._log_destroy_pending = False
    del task
    gc.collect()
    assert asyncio.run(run_in_turn(host, invoke=nothing)) is True
    assert host.kinds == ["RunStart", "RunStart", "RunEnd"]


def test_two_threads_that_race_for_a_branch_are_never_in_it_together():
    """Each either has it or is refused; nobody enters between another's lock and pointer."""
    host, inside, worst, refused = Host(), [], [], []

    async def body(scope):
        inside.append(1)
        worst.append(len(inside))
        await asyncio.sleep(0)
        inside.pop()

    async def many():
        for _ in range(200):
            try:
                await run_in_turn(host, invoke=body)
            except WrongLoopError:
                refused.append(1)

    threads = [threading.Thread(target=lambda: asyncio.run(many())) for _ in range(3)]
    switch, _ = sys.getswitchinterval(), sys.setswitchinterval(1e-5)
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(switch)
    assert max(worst) == 1
    assert len(host.kinds) == 2 * (600 - len(refused))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
async def test_eager_tasks_run_nested_calls_queue_contenders_and_drain_signals():
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    from lionagi.session.signal import MessageAdded

    w, seen = Watched(scripted_model("r")), []

    async def on_message(signal, _):
        seen.append("begun")
        await asyncio.sleep(0)
        seen.append("ended")

    w.observe(MessageAdded, on_message)

    async def middle(branch, *_, **__):
        return await asyncio.create_task(branch.communicate("kid"))

    assert await w.branch.operate(instruction="q", middle=middle, skip_validation=True) == "r"
    w.check("RunEnd")
    assert seen.count("begun") == seen.count("ended") > 0
    assert await asyncio.gather(*(w.branch.chat(str(i)) for i in range(3))) == ["r"] * 3
    w.check(*["RunEnd"] * 4)
    async for _ in w.branch.run("q"):
        break
    with pytest.warns(UserWarning, match="a question without an answer"):
        assert await w.branch.chat("z") == "r"
    w.check(*["RunEnd"] * 6)


def test_a_synchronous_tool_may_call_its_branch_where_the_loop_can_be_nested(tmp_path):
    """lionagi runs synchronous tools on the loop; the nested run's task has the turn's context. In a process of its own,
    for the patch is for the whole interpreter.
    """
    code = """
        import asyncio, nest_asyncio2
        import lionnb
        from lionnb.testing import scripted_model
        nest_asyncio2.apply()

        async def main():
            branch = lionnb.Branch(chat_model=scripted_model("r"))
            def tool():
                return asyncio.get_event_loop().run_until_complete(branch.communicate("in tool"))
            async def middle(*_, **__):
                return tool()
            print(await branch.operate(instruction="q", middle=middle, skip_validation=True))
            async for _ in branch.run("q"):
                print(tool())
                break
            print(await branch.chat("after"), branch.current_turn, len(branch.turns.records()))
        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split("\n")[:3] == ["r", "r", "r None 3"], done.stdout + done.stderr
