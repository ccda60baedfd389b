"""What the environment says about the keep-alive message. That it works is shown in tests/kernel/test_keep_alive.py."""

from __future__ import annotations

import asyncio
import logging

import pytest

from lionnb import keepalive
from lionnb.testing import scripted_model


@pytest.mark.parametrize(
    ("said", "means"), [("", 60.0), ("5", 5.0), (" 0.5 ", 0.5), ("0", None), ("off", None), ("OFF", None)]
)
def test_it_is_a_number_of_seconds_or_off(monkeypatch, said, means) -> None:
    monkeypatch.setenv(keepalive.VARIABLE, said)
    assert keepalive.interval_s() == means


@pytest.mark.parametrize("said", ["soon", "nan", "-1", "inf", "1e9"])
def test_what_is_no_interval_is_said_and_not_followed(monkeypatch, caplog, said) -> None:
    monkeypatch.setenv(keepalive.VARIABLE, said)
    with caplog.at_level(logging.WARNING):
        assert keepalive.interval_s() == keepalive.EVERY_S
    assert "LIONNB_KEEP_ALIVE_S" in caplog.text


async def test_several_legs_send_one_message(monkeypatch) -> None:
    """Each leg has its own clock; the second one finds that the message has just been sent."""
    sent: list[float] = []
    monkeypatch.setattr(keepalive, "in_kernel", lambda: True)
    monkeypatch.setattr(keepalive, "_send", lambda: sent.append(0))
    monkeypatch.setattr(keepalive, "_told_at", float("-inf"))
    turns = asyncio.Event()

    async def at_once(every_s: float) -> None:
        if turns.is_set():
            await asyncio.Event().wait()
        turns.set()

    monkeypatch.setattr(keepalive.asyncio, "sleep", at_once)
    first = asyncio.ensure_future(keepalive.tell(60.0))
    await turns.wait()
    assert sent == [0]
    turns.clear()
    second = asyncio.ensure_future(keepalive.tell(60.0))
    await turns.wait()
    assert sent == [0]
    for task in (first, second):
        task.cancel()
    await asyncio.wait((first, second))


async def test_outside_of_a_kernel_nothing_is_scheduled(world) -> None:
    import lionnb

    leg = lionnb.start_leg(lionnb.Branch(chat_model=scripted_model(["done"])), "Survey X")
    assert len(lionnb.default_store()._hearts) == 2  # the lease, and the look at the loop
    await leg
