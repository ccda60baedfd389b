"""`lionnb demo`: the scene of the README, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

BLOCKED = """
import socket
def refuse(*a, **k): raise OSError("no network here")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = refuse
import lionnb.cli
lionnb.cli.main()
"""


def test_the_demo_applies_its_steer_without_network_or_file(world):
    """Exit status 0 only when the steer was applied; the folder and the home stay as they were but for the cache."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKED, "demo"],
        capture_output=True,
        text=True,
        timeout=90,
        cwd=world / "here",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The steer was applied in turn" in done.stdout and done.stderr == ""
    assert list((world / "here").iterdir()) == []


def test_the_demo_fails_when_the_steer_is_not_applied(monkeypatch):
    """The status is computed from the receipt, not printed by heart."""
    from lionnb import demo
    from lionnb.legs.receipt import Receipt
    from lionnb.records import Fate

    monkeypatch.setattr(demo, "PACE_S", 0.0)
    monkeypatch.setattr(Receipt, "fate", property(lambda self: Fate.REJECTED))
    assert demo.run_demo() == 1
