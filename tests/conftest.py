"""What every test gets: a world of its own, asyncio's debug mode, and a check that it left nothing behind.

Environment is set before lionagi is imported, because lionagi reads its settings once.
"""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest

_SESSION = tempfile.mkdtemp(prefix="lionnb-tests-")
os.environ["LIONAGI_HOME"] = f"{_SESSION}/lionagi"
os.environ["LIONNB_DB"] = f"{_SESSION}/controls.db"
os.environ["LOG_AUTO_SAVE_ON_EXIT"] = "false"  # a stock Branch writes ./data/logs when the process ends
# Debug mode is for the loops of the tests (pyproject.toml). The control thread's has it where it is the subject
# (tests/store/test_store_front.py); elsewhere it would take half of the suite's time. No user's kernel runs in it.
os.environ.pop("PYTHONASYNCIODEBUG", None)
os.environ["PYTHONPATH"] = os.pathsep.join(  # child processes run in folders of their own
    [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
)
for _key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "LIONNB_PASSWORD"):
    os.environ.pop(_key, None)

from lionnb.offline import ensure_token_data  # noqa: E402
from lionnb.testing import Gate, LoopbackServer, Resources, assert_no_leaks, leftover_tasks  # noqa: E402


def need(condition: object, sentence: str) -> None:
    """Skip, with a sentence, a test that this machine lacks a part for; where ``CI`` is set that is a failure."""
    if condition:
        return
    if os.environ.get("CI"):
        _missing(sentence)
    pytest.skip(sentence)


def _missing(sentence: str) -> NoReturn:
    pytest.fail(f"CI must have every part: {sentence}", pytrace=False)


@pytest.fixture(name="need", scope="session")
def _need() -> Callable[[object, str], None]:
    return need


# --- options -----------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out the tests marked slow")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "keeps: what it starts outlives the test (no leak check); say why")


def pytest_unconfigure() -> None:
    shutil.rmtree(_SESSION, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--fast"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]


# --- a world of its own, and nothing left of it ------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def _token_data() -> Iterator[None]:
    """tiktoken's data is unpacked once; the tests' own home folders would each get a copy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", f"{_SESSION}/cache")
        ensure_token_data()
    yield


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, a store and a working folder of the test's own. Returns the folder that holds them."""
    home, here = tmp_path / "home", tmp_path / "here"
    for folder in (home, here):
        folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("CACHE", "CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(home / f".{name.lower()}"))
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(home / name.lower()))
    monkeypatch.setenv("LIONAGI_HOME", str(tmp_path / "lionagi"))
    monkeypatch.setenv("LIONNB_DB", str(tmp_path / "controls.db"))
    monkeypatch.chdir(here)
    return tmp_path


def _close_default_stores() -> None:
    # A process has one default store for each database and keeps it; here every test has a database of its own.
    if (module := sys.modules.get("lionnb.store.store")) is not None:
        while module._stores:
            module._stores.popitem()[1].close()


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest, world: Path) -> Iterator[None]:
    """Fail a test that leaves a thread or a socket (``@pytest.mark.keeps`` says that it may).

    Set up first, so judged last: the end of the test's loop ends its executor's threads and closes its sockets.
    """
    before = Resources.now()
    yield
    _close_default_stores()
    if not request.node.get_closest_marker("keeps"):
        assert_no_leaks(before, allow=frozenset())


@pytest.fixture(autouse=True)
def _no_task_left_in_async_tests(request: pytest.FixtureRequest, _nothing_left: None) -> None:
    # The check runs in the test's own loop, before that is closed; a synchronous test has none and gets none.
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        request.getfixturevalue("_no_task_left")


@pytest.fixture
async def _no_task_left(request: pytest.FixtureRequest) -> Any:
    yield
    if request.node.get_closest_marker("keeps"):
        return
    left = leftover_tasks()
    assert not left, f"tasks were left running: {left}"


# --- the two roads -----------------------------------------------------------------------------------------------


@dataclass
class Road:
    """Makes models that answer alike on one of lionagi's two roads.

    ``cli``: the streaming road of command-line providers (scripted, in process). ``api``: lionagi's OpenAI code,
    over HTTP to a server on this machine.
    """

    name: str
    _servers: dict[int, LoopbackServer] = field(default_factory=dict)
    _models: list[Any] = field(default_factory=list)  # kept, so that no id is used twice

    def model(self, replies: Any, *, gate: Gate | None = None, model: str = "gpt-4o-mini", **how: Any) -> Any:
        """A model that gives *replies* in order (``gate_at``, ``pace_s``, ``repeat_last`` as in lionnb.testing)."""
        from lionnb.testing import scripted_model

        if self.name == "cli":
            made = scripted_model(replies, gate=gate, model=model, **how)
        else:
            server = LoopbackServer(replies, gate=gate, **how)
            made = server.model(model=model)
            self._servers[id(made)] = server
        self._models.append(made)
        return made

    def requests(self, model: Any) -> list[dict[str, Any]]:
        """The payloads of the calls that *model* and its copies have had, cancelled ones included."""
        from lionnb.testing import calls_of

        if self.name == "cli":
            return [call.payload for call in calls_of(model)]
        return self._servers[id(model)].requests

    def close(self) -> None:
        for server in self._servers.values():
            server.close()


@pytest.fixture(params=["cli", "api"])
def road(request: pytest.FixtureRequest) -> Iterator[Road]:
    """Both of lionagi's roads, one after the other."""
    made = Road(request.param)
    yield made
    made.close()


# --- tests about this file ---------------------------------------------------------------------------------------


@pytest.fixture
def pytester_run(tmp_path: Path) -> Callable[..., str]:
    """Run test code under this conftest and the project's configuration, in a process of its own; gives its output."""

    def run(code: str, *args: str, **env: str) -> str:
        folder = tmp_path / f"suite{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        shutil.copy(__file__, folder / "conftest.py")
        (folder / "test_it.py").write_text(textwrap.dedent(code))
        config = Path(__file__).parents[1] / "pyproject.toml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-c",
            str(config),
            "--rootdir",
            str(folder),
        ]
        environ = {k: v for k, v in os.environ.items() if k != "CI"} | env
        done = subprocess.run([*command, *args, str(folder)], cwd=folder, env=environ, capture_output=True, text=True)
        return done.stdout + done.stderr

    return run
