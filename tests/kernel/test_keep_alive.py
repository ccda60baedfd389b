"""A server that culls idle kernels, and a leg that works in one: real server, real culler, real kernels.

What the culler does is waited for, as the server tells it: a kernel without the message is culled in each period, and
the one with it outlives them. No front end is connected, so no view's sign of life counts.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jupyter_client.blocking import BlockingKernelClient

from tests.cells import SETUP, START
from tests.kernel.front import LIMIT_S
from tests.lab import KERNEL, LabServer


class Culled:
    """A kernel of a server that culls, with a leg at work on a provider that does not answer."""

    def __init__(self, server: LabServer) -> None:
        self._server = server
        self.id = server.api("kernels", "POST", {"name": KERNEL})["id"]
        self._client = BlockingKernelClient()
        self._client.load_connection_file(str(server.base / "runtime" / f"kernel-{self.id}.json"))
        self._client.start_channels()

    def begin(self, *first: str) -> None:
        """Start the leg."""
        self._wait_until_heard()
        self.run("\n".join([*first, SETUP, START, "await gate.reached()"]))

    def _wait_until_heard(self) -> None:
        # Not `wait_for_ready`: of a kernel that is somebody else's process it says that it died while it starts.
        end = time.monotonic() + LIMIT_S
        while True:
            self._client.kernel_info()
            try:
                self._client.get_iopub_msg(timeout=1)
            except queue.Empty:
                assert time.monotonic() < end, "the kernel did not answer"
            else:
                return

    def run(self, code: str) -> list[dict]:
        """Run a cell; gives the messages that the kernel sent for it."""
        seen: list[dict] = []
        reply = self._client.execute_interactive(code, timeout=LIMIT_S, output_hook=seen.append)
        assert reply["content"]["status"] == "ok", reply["content"]
        return seen

    def next_message(self) -> dict:
        """The next thing that it says without being asked."""
        return self._client.get_iopub_msg(timeout=LIMIT_S)

    @property
    def lives(self) -> bool:
        return self.id in [kernel["id"] for kernel in self._server.api("kernels")]

    def wait_until_culled(self, limit_s: float = LIMIT_S) -> None:
        end = time.monotonic() + limit_s
        while self.lives:
            assert time.monotonic() < end, f"kernel {self.id} was not culled"
            time.sleep(0.2)  # between two questions to the server: it tells nobody by itself

    def close(self) -> None:
        self._client.stop_channels()


Start = Callable[..., Culled]


@contextlib.contextmanager
def culling(folder: Path, timeout_s: int) -> Iterator[Start]:
    """A server that culls after *timeout_s*; gives what starts a kernel in it."""
    started: list[Culled] = []

    def start(*first: str) -> Culled:
        started.append(Culled(server))
        started[-1].begin(*first)
        return started[-1]

    manager = "--MappingKernelManager"
    how = (f"{manager}.cull_idle_timeout={timeout_s}", f"{manager}.cull_interval=1")
    with LabServer(folder / "server", arguments=how) as server:
        try:
            yield start
        finally:
            for each in started:
                each.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with culling(tmp_path, 6) as made:
        yield made


EACH_SECOND = 'import os\nos.environ["LIONNB_KEEP_ALIVE_S"] = "1"'
OFF = 'import os\nos.environ["LIONNB_KEEP_ALIVE_S"] = "0"'


def test_a_kernel_with_a_live_leg_is_not_culled_and_after_its_end_it_is(start) -> None:
    kept = start(EACH_SECOND)
    for _ in range(3):  # periods in which the culler has done its work
        start(OFF).wait_until_culled()
        assert kept.lives
    kept.run("gate.open()\nawait leg\nassert not leg.live")
    kept.wait_until_culled()


def test_the_message_is_no_output_and_belongs_to_no_widget(start) -> None:
    """One small message, of the one kind that counts and that nothing shows; switched off there is none."""
    kept = start(EACH_SECOND)
    for _ in range(2):
        message = kept.next_message()
        assert message["msg_type"] == "comm_msg"
        assert message["content"] == {"data": {}, "comm_id": "lionnb-keep-alive"}
    seen = kept.run("import comm\nassert 'lionnb-keep-alive' not in comm.get_comm_manager().comms")
    assert not [m for m in seen if m["msg_type"] in ("stream", "display_data", "execute_result", "error")]


def test_nothing_is_scheduled_while_no_leg_lives(kernel) -> None:
    count = "len(lionnb.default_store()._hearts)"
    assert kernel.value(count) == 0
    kernel.run(START)
    assert kernel.value(count) == 3  # the lease, the look at the loop, and the message
    kernel.run("gate.open()\nawait leg\nawait lionnb.default_store().run(lambda core: asyncio.sleep(0))")
    assert kernel.value(count) == 0


def test_a_minute_is_enough_for_a_culler_of_ninety_seconds(tmp_path) -> None:
    """The settings of a shared server, and lionnb as it comes."""
    with culling(tmp_path, 90) as start:
        kept, other = start(), start(OFF)
        other.wait_until_culled(150)
        assert kept.lives
