"""A store that fails once under a real leg: the write is lost, or only its answer is, and no record becomes false.

The model's ``unanswered`` and ``the store fails`` steps, one by one, on the real thing.
"""

from __future__ import annotations

import pytest

import lionnb
from lionnb.errors import StoreError
from lionnb.records import ControlState, RunStatus
from lionnb.testing import Gate, Reply, calls_of, scripted_model
from tests.legs.story import HookedStore


@pytest.fixture
def store(tmp_path):
    made = HookedStore(tmp_path / "control.sqlite")
    yield made
    made.close()


def fails_once(store: HookedStore, name: str, *, lands: bool) -> list[str]:
    """Let the next *name* fail; *lands*: only its answer is lost. What failed is in the list that is returned."""
    failed: list[str] = []

    async def hook(operation, *args, **kwargs):
        if failed:
            return await operation(*args, **kwargs)
        failed.append(name)
        if lands:
            await operation(*args, **kwargs)
        raise StoreError("the server does not answer.")

    store.hooks[name] = hook
    return failed


@pytest.mark.parametrize("lands", [True, False], ids=["answer lost", "write lost"])
@pytest.mark.parametrize("name", ["claim_all", "report", "end"])
async def test_a_steer_is_delivered_once_and_reads_as_applied_whatever_answer_is_lost(store, name, lands):
    """S1, S2: one failure of the store, and the leg makes up for it. Also for a claim whose answer it never saw."""
    gate = Gate()
    model = scripted_model([Reply("first", gate=gate), "second", "third"])
    leg = lionnb.start_leg(lionnb.Branch(chat_model=model), "Survey X", store=store)
    await gate.reached()
    receipt = leg.steer("only sources after 2020")
    failed = fails_once(store, name, lands=lands)
    gate.open()
    result = await leg
    asked = [str(call.payload["messages"][-1]["content"]) for call in calls_of(model)]
    (row,) = store.ask(lambda core: core.list_controls(leg.session_id))
    delivered = sum("only sources after 2020" in text for text in asked)
    assert failed and result.status is RunStatus.COMPLETED
    assert (row.state, row.turn_outcome, delivered) == (ControlState.APPLIED, "completed", 1)
    assert (await receipt).record == row
