"""Every notebook, executed from clean: an empty folder, an empty home, no network.

What it saves must read without a kernel, and running it again, in the same kernel or in a new one, must tell the same.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
TIMEOUT_S = 120

# Python imports it at every start: no kernel of these tests reaches anything but this machine.
NO_NETWORK = """
import ipaddress
import socket

_connect = {name: getattr(socket.socket, name) for name in ("connect", "connect_ex", "sendto")}
_getaddrinfo = socket.getaddrinfo


def _refuse(address):
    host = address[0] if isinstance(address, tuple) else None
    try:
        inside = host is None or host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        inside = False
    if not inside:
        raise PermissionError(f"this notebook must not reach {address!r}")


def _guarded(name):
    def method(self, *args):
        _refuse(args[-1])
        return _connect[name](self, *args)

    return method


for _name in _connect:
    setattr(socket.socket, _name, _guarded(_name))


def _resolve(host, *args, **kwargs):
    if host is not None:
        _refuse((host.decode() if isinstance(host, bytes) else host,))
    return _getaddrinfo(host, *args, **kwargs)


socket.getaddrinfo = _resolve
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


@pytest.fixture
def env(world: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of the kernels: nothing of this machine's user."""
    (world / "site").mkdir()
    (world / "site" / "sitecustomize.py").write_text(NO_NETWORK)
    drop = ("LOG_AUTO_SAVE_ON_EXIT", "LIONNB_DB", "LIONAGI_HOME")  # a user has none of them
    env = {k: v for k, v in os.environ.items() if k not in drop}
    return env | {"PYTHONPATH": f"{world / 'site'}{os.pathsep}{os.environ['PYTHONPATH']}"}


@asynccontextmanager
async def running(
    path: Path, folder: Path, env: dict[str, str], replace: Mapping[str, str] = {}
) -> AsyncIterator[NotebookClient]:
    """A client with a kernel of its own for a copy of the notebook, in which some patterns are replaced."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        for old, new in replace.items():
            cell.source = re.sub(old, new, cell.source)
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT_S,
        kernel_name="python3",
        coalesce_streams=True,  # where a print is flushed is the kernel's business
        resources={"metadata": {"path": str(folder)}},
    )
    async with client.async_setup_kernel(env=env):
        yield client


# The person who is waited for does not come: the notebook need not wait either.
NOBODY = {r"after_s=[\d.]+": "after_s=0"}


async def run_all(client: NotebookClient, upto: int | None = None) -> None:
    """Run all cells, as the menu does; a cell that raises fails the test."""
    for i, cell in enumerate(client.nb.cells[:upto]):
        await client.async_execute_cell(cell, i)


def outputs(notebook: Any) -> list[Any]:
    return [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]


def told(notebook: Any) -> list[list[str]]:
    """What each cell says, without what differs from run to run: ids, instants, durations, and how long things are."""
    return [[_same(text) for o in cell.outputs for text in _texts(o)] for cell in notebook.cells if "outputs" in cell]


def _texts(output: Any) -> list[str]:
    if output.output_type == "stream":
        return [output.text]
    return [output.data.get(kind, "") for kind in ("text/plain", "text/html")]


def _same(text: str) -> str:
    text = re.sub(r"waited [\d.]+ s · ", "", text)  # said only of a wait that is long enough to matter
    for pattern in (
        r"\b\d{8}T\d{6}-[0-9a-f]{6}\b",  # a run
        r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",  # a turn, a Branch, a control
        r"\b[0-9a-f]{8}\b",  # its beginning
        r"\b\d\d:\d\d:\d\d( UTC)?",
        r"\b\d+\.\d+(e-\d+)?\b",  # seconds
        r'(?<==")[\d.]+(?=")',  # what is drawn to scale
    ):
        text = re.sub(pattern, "·", text)
    return re.sub(r"[ -]{2,}", " ", text)


@each_notebook
async def test_it_runs_from_clean_and_leaves_nothing_but_itself(path, world, env) -> None:
    """And what it saved reads without a kernel: the end of each leg, not its start."""
    folder = world / "here"
    async with running(path, folder, env) as client:
        await run_all(client)
        notebook = client.nb
    assert list(folder.iterdir()) == []
    assert [o.text for o in outputs(notebook) if o.get("name") == "stderr"] == []
    assert "assert" in next(c.source for c in reversed(notebook.cells) if c.cell_type == "code")
    for output in outputs(notebook):
        if "application/vnd.jupyter.widget-view+json" in output.get("data", {}):
            assert_reads_as_ended(output.data)


def assert_reads_as_ended(data: Any) -> None:
    for kind in ("text/plain", "text/html"):
        assert "completed" in data[kind]
        assert "nothing has happened yet" not in data[kind]
    if "Steers" in data["text/html"]:
        assert "✓ applied" in data["text/plain"]
        assert "queued" not in re.sub("<[^>]*>", "", data["text/html"])


@each_notebook
async def test_running_it_again_tells_the_same(path, world, env) -> None:
    """Run All, Run All once more, Restart and Run All: the same outcome, and never a second live leg."""
    async with running(path, world / "here", env, NOBODY) as client:
        seen = []
        for _ in range(2):
            await run_all(client)
            seen.append(told(client.nb))
            await no_leg_lives(client)
        await client.km.restart_kernel()
        await client.kc.wait_for_ready(timeout=TIMEOUT_S)
        await run_all(client)
        seen.append(told(client.nb))
        await no_leg_lives(client)
    assert seen[0] == seen[1]
    assert seen[0] == seen[2]


@each_notebook
async def test_running_it_from_the_middle_of_a_run_tells_the_same(path, world, env) -> None:
    """Whoever starts over while a leg is live ends with one leg, and with the outcome of a clean run."""
    async with running(path, world / "here", env, NOBODY) as client:
        starts = [i for i, c in enumerate(client.nb.cells) if c.cell_type == "code" and "start_leg(" in c.source]
        if not starts:
            pytest.skip("no leg is started in this notebook")
        await run_all(client, upto=starts[-1] + 1)
        await run_all(client)
        assert [o.text for o in outputs(client.nb) if o.get("name") == "stderr"] == []
        await no_leg_lives(client)


# The line of a real model, as the notebook has it in a comment, and what makes it reach the provider on this machine.
REAL = re.compile(r"^# (model = lionagi\.iModel\(.*?)\)(  #.*)?$", re.MULTILINE)
HERE = {"base_url": "lionnb.testing.LoopbackServer({}).base_url", "api_key": '"test"', "allow_local_network": "True"}


@each_notebook
@pytest.mark.parametrize("server", ["answers, gate=gate", "answers"], ids=["gated", "quick"])
async def test_a_real_model_is_one_line(path, world, env, server) -> None:
    """lionagi's own OpenAI code down to the socket; once as slow as the notebook likes, once as quick as can be."""
    source = "\n".join(c.source for c in nbformat.read(path, as_version=4).cells)
    if not (line := REAL.search(source)):
        pytest.skip("this notebook has no line for a real model")
    given = "".join(f", {name}={value.format(server)}" for name, value in HERE.items())
    replace = {r"(?m)^model = scripted_model\(.*$": f"{line[1]}{given})"}
    async with running(path, world / "here", env, replace if server == "answers" else replace | NOBODY) as client:
        assert sum(given in c.source for c in client.nb.cells) == 1
        await run_all(client)
    assert [o.text for o in outputs(client.nb) if o.get("name") == "stderr"] == []


async def no_leg_lives(client: NotebookClient) -> None:
    code = "import lionnb\nassert not [leg for leg in lionnb.legs() if leg.live], lionnb.legs()"
    cell = nbformat.v4.new_code_cell(code)
    client.nb.cells.append(cell)
    try:
        await client.async_execute_cell(cell, len(client.nb.cells) - 1)
    finally:
        client.nb.cells.pop()


def test_the_guard_refuses_the_network_and_lets_this_machine_through(env) -> None:
    code = """
import asyncio, socket, urllib.request
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname()).close()
for attempt in (
    lambda: socket.create_connection(("192.0.2.1", 80), 1),
    lambda: urllib.request.urlopen("https://example.org", timeout=1),
    lambda: asyncio.run(asyncio.open_connection("example.org", 80)),
):
    try:
        attempt()
    except OSError as exc:
        assert "must not reach" in str(exc), exc
    else:
        raise SystemExit("it was let through")
"""
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
