"""A real ipykernel and a front end for it, without a browser: what JupyterLab would send, and all that it would see.

A test reads the kernel's messages one after the other and waits for the one that it means; nothing here waits for time.
"""

from __future__ import annotations

import json
import os
import queue
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from jupyter_client.manager import KernelManager

from tests.cells import rows

__all__ = ("LIMIT_S", "Cell", "Front", "View")

T = TypeVar("T")
LIMIT_S = 60.0


@dataclass(eq=False)
class Cell:
    """What came back for one request."""

    msg_id: str
    code: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False

    @property
    def printed(self) -> str:
        """What it printed to stdout."""
        return self._stream("stdout")

    @property
    def complained(self) -> str:
        """What it printed to stderr."""
        return self._stream("stderr")

    @property
    def error(self) -> str | None:
        """``Name: value`` of the exception that it ended with."""
        for m in self.messages:
            if m["msg_type"] == "error":
                return f"{m['content']['ename']}: {m['content']['evalue']}"
        return None

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """All that would be shown under it."""
        shown = ("stream", "error", "display_data", "execute_result", "update_display_data")
        return [m for m in self.messages if m["msg_type"] in shown]

    def _stream(self, name: str) -> str:
        return "".join(m["content"]["text"] for m in self.outputs if m["content"].get("name") == name)


class Front:
    """One kernel and its front end. A context manager; every method runs on the test's own thread.

    Args:
        folder: The kernel's working folder, and where its log goes.
        env: Added to the kernel's environment.
    """

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        self.log = folder / "kernel.log"
        self._env = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"} | env
        self.cells: dict[str, Cell] = {}
        self.views: dict[str, View] = {}
        self._before: set[str] = set()
        self._manager = KernelManager(kernel_name="python3")

    @property
    def database(self) -> Path:
        """The control database of this kernel."""
        return Path(self._env["LIONNB_DB"])

    def controls(self) -> list[dict[str, Any]]:
        """The controls on record, read from this process."""
        return [row for row in rows(self.database, "session_controls") if row["id"] not in self._before]

    def sessions(self) -> list[dict[str, Any]]:
        """The runs on record, read from this process."""
        return [row for row in rows(self.database, "sessions") if row["id"] not in self._before]

    def __enter__(self) -> Front:
        self._log = self.log.open("wb")
        self._manager.start_kernel(env=self._env, cwd=str(self.folder), stdout=self._log, stderr=self._log)
        self._connect()
        return self

    def _connect(self) -> None:
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=LIMIT_S)

    def __exit__(self, *exc: object) -> None:
        if self._manager.has_kernel:
            self.kill()
        self._client.stop_channels()
        self._manager.cleanup_resources()
        self._log.close()

    def forget(self) -> None:
        """Drop what earlier tests have seen and recorded."""
        self.cells.clear()
        self.views.clear()
        self._before = {row["id"] for table in ("sessions", "session_controls") for row in rows(self.database, table)}

    # ------------------------------------------------------------------ cells
    def begin(self, code: str) -> Cell:
        """Send a cell and return at once."""
        cell = self._cell(self._client.execute(code))
        cell.code = code
        return cell

    def run(self, code: str) -> Cell:
        """Send a cell and wait for its end; one that raises fails the test."""
        cell = self.wait(self.begin(code))
        assert cell.error is None, f"{cell.error}\n{code}"
        return cell

    def wait(self, cell: Cell) -> Cell:
        """Wait for the end of a cell."""
        self.until(lambda: cell.done, "the end of a cell")
        return cell

    def value(self, expression: str) -> Any:
        """What *expression* gives there, by way of JSON."""
        return json.loads(self.run(f"import json; print(json.dumps({expression}))").printed)

    def _cell(self, msg_id: str) -> Cell:
        return self.cells.setdefault(msg_id, Cell(msg_id))

    @property
    def view(self) -> View:
        """The newest live view."""
        return list(self.views.values())[-1]

    # ------------------------------------------------------------------ what comes from the kernel
    def until(self, condition: Callable[[], T], what: str) -> T:
        """Take in the kernel's messages until *condition* holds; returns what it returned."""
        end = time.monotonic() + LIMIT_S
        while not (held := condition()):
            try:
                self._take(self._client.get_iopub_msg(timeout=max(0.0, end - time.monotonic())))
            except queue.Empty:
                raise AssertionError(f"waited {LIMIT_S:.0f} s for {what}\n{self.log.read_text()[-3000:]}") from None
        return held

    def _take(self, message: dict[str, Any]) -> None:
        cell = self._cell(message["parent_header"].get("msg_id", ""))
        cell.messages.append(message)
        content = message["content"]
        if message["msg_type"] == "status":
            cell.done |= content["execution_state"] == "idle"
        elif message["msg_type"] == "comm_open":
            state = content["data"].get("state", {})
            if "snapshot" in state:  # one of ours; the others are layouts
                self.views[content["comm_id"]] = View(self, content["comm_id"], json.loads(state["snapshot"]))
        elif message["msg_type"] == "comm_msg" and (view := self.views.get(content["comm_id"])):
            view.take(content["data"])

    # ------------------------------------------------------------------ what goes to the kernel
    def subshell(self) -> str:
        """Make a subshell, as JupyterLab does for widgets."""
        session = self._client.session
        self._client.control_channel.send(session.msg("create_subshell_request", {}))
        while True:
            reply = self._client.get_control_msg(timeout=LIMIT_S)
            if reply["msg_type"] == "create_subshell_reply":
                return str(reply["content"]["subshell_id"])

    def send(self, msg_type: str, content: dict[str, Any], *, subshell: str | None = None) -> Cell:
        """Send one message on the shell channel, to a subshell if one is named."""
        message = self._client.session.msg(msg_type, content)
        message["header"]["subshell_id"] = subshell
        self._client.shell_channel.send(message)
        return self._cell(message["header"]["msg_id"])

    def interrupt(self) -> None:
        """What the stop square does."""
        self._manager.interrupt_kernel()

    def shutdown(self) -> None:
        """What closing a notebook, or a restart, does to the kernel: ask, and wait until it is gone."""
        self._manager.shutdown_kernel()

    def restart(self) -> None:
        """What Restart does: another process behind the same front end."""
        self._client.stop_channels()
        self._manager.restart_kernel()
        self._connect()

    def kill(self) -> None:
        """SIGKILL: nothing in the kernel runs any more."""
        self._manager.shutdown_kernel(now=True)

    @property
    def pid(self) -> int:
        """The kernel's process."""
        return int(self._manager.provisioner.pid)


class View:
    """The page's side of one live view: what it was told, and what a person presses in it."""

    def __init__(self, front: Front, comm_id: str, snapshot: dict[str, Any]) -> None:
        self._front, self.comm_id, self.snapshot = front, comm_id, snapshot
        self.events: list[dict[str, Any]] = []
        self.answers: dict[int, list[dict[str, Any]]] = {}
        self.bundle: dict[str, Any] = {}
        self.starved: list[dict[str, Any]] = []

    def take(self, data: dict[str, Any]) -> None:
        """One message of the kernel."""
        if data["method"] == "update" and "snapshot" in data["state"]:
            self.snapshot = json.loads(data["state"]["snapshot"])
        elif data["method"] == "custom":
            content = data["content"]
            self.events += content.get("ev", [])
            if "starved" in content:
                self.starved.append(content["starved"])
            if "ack" in content:
                self.answers.setdefault(content["ack"], []).append(content)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """What it was told of one kind, oldest first."""
        return [e["data"] for e in self.events if e["kind"] == kind]

    def chips(self, text: str) -> list[str]:
        """The chips that the steer with this text has had, in order."""
        seen = [s["chip"] for s in self.of_kind("steer") if s["text"] == text]
        return [chip for i, chip in enumerate(seen) if i == 0 or chip != seen[i - 1]]

    def press(self, intent: str, *, subshell: str | None = None, **fields: Any) -> int:
        """Send what a press sends; returns its number."""
        n = len(self.answers) + int(uuid.uuid4().int % 10**9)
        self._say({"method": "custom", "content": {"intent": intent, "n": n, **fields}}, subshell)
        return n

    def ask_for_state(self, *, subshell: str | None = None) -> None:
        """What a page does that is loaded again."""
        self._say({"method": "request_state"}, subshell)

    def resync(self, since: int) -> None:
        """What a page does that has the first *since* events and sees a gap."""
        self._say({"method": "custom", "content": {"since": since}}, None)

    def _say(self, data: dict[str, Any], subshell: str | None) -> None:
        self._front.send("comm_msg", {"comm_id": self.comm_id, "data": data}, subshell=subshell)

    def steer(self, text: str, *, subshell: str | None = None) -> int:
        """Type *text* and press Send."""
        return self.press("steer", text=text, key=uuid.uuid4().hex, subshell=subshell)

    def answer(self, n: int) -> dict[str, Any]:
        """Wait for the kernel's answer to press *n*."""
        return self._front.until(lambda: self.answers.get(n), f"the answer to message {n}")[-1]
