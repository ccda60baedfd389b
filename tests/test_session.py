"""`lionnb.Session`: every Branch that comes in is turn-aware, however it comes."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
from lionagi import Branch as StockBranch
from lionagi import Session as StockSession
from lionagi.protocols.types import Pile

import lionnb
from lionnb.errors import AdoptionError
from lionnb.offline import QuietLogger
from lionnb.testing import scripted_model


def stock(**kw):
    return StockBranch(chat_model=scripted_model("fine"), **kw)


class Refused(StockBranch):
    async def run(self, *args, **kw):
        yield


def refused():
    return Refused(chat_model=scripted_model("x"))


def test_the_default_branch_is_turn_aware():
    assert type(lionnb.Session().default_branch) is lionnb.Branch


@pytest.mark.parametrize("how", ["default", "branches", "include", "include many"])
def test_stock_branches_that_are_given_are_wrapped_in_place(how):
    one, two = stock(), stock()
    if how == "default":
        session = lionnb.Session(default_branch=one)
        assert session.default_branch is one
    elif how == "branches":
        session = lionnb.Session(branches=Pile([one, two], item_type={StockBranch}, strict_type=False))
    else:
        session = lionnb.Session()
        session.include_branches(one if how == "include" else [one, two])
    assert one in session.branches
    assert all(type(b) is lionnb.Branch for b in session.branches)


def test_new_branch_takes_lionagis_arguments_by_position_and_by_name():
    session = lionnb.Session()
    branch = session.new_branch("be brief", name="A", as_default_branch=True, chat_model=scripted_model("x"))
    assert type(branch) is lionnb.Branch and branch.name == "A" and "be brief" in branch.system.rendered
    assert session.default_branch is branch


async def test_split_branches_are_turn_aware_with_a_state_of_their_own():
    session = lionnb.Session(default_branch=stock())
    await session.default_branch.communicate("q")
    for made in (session.split(session.default_branch), await session.asplit(session.default_branch)):
        assert type(made) is lionnb.Branch and made in session.branches
        assert made.turn_state is not session.default_branch.turn_state and made.turns.records() == []


async def test_a_stored_session_is_loaded_with_turn_aware_branches_and_stock_lionagi_loads_ours():
    session = lionnb.Session(default_branch=lionnb.Branch(chat_model=scripted_model("x"), name="A"))
    session.new_branch(name="B", chat_model=scripted_model("x"))
    data = session.to_dict()
    ours, theirs = lionnb.Session.from_dict(data), StockSession.from_dict(data)
    assert {b.name for b in ours.branches} == {b.name for b in theirs.branches} >= {"A", "B"}
    assert all(type(b) is lionnb.Branch for b in ours.branches)
    assert not any(isinstance(b, lionnb.Branch) for b in theirs.branches)
    assert type(ours) is lionnb.Session and type(theirs) is StockSession
    assert type(lionnb.Session.from_dict(theirs.to_dict())) is lionnb.Session


def test_lionagis_own_classes_are_what_lionagi_restores_also_where_lionnb_is_imported():
    from lionagi._class_registry import get_class

    assert get_class(StockSession.class_name(full=True)) is StockSession
    assert get_class(StockBranch.class_name(full=True)) is StockBranch
    assert lionnb.Session.class_name(full=True) == StockSession.class_name(full=True)


def test_a_branch_that_cannot_be_wrapped_is_refused_and_none_of_its_batch_is_taken_in_or_changed():
    session, fine, bad = lionnb.Session(), stock(), refused()
    before = list(session.branches)
    with pytest.raises(AdoptionError, match="Refused overrides run"):
        session.include_branches([fine, bad])
    assert list(session.branches) == before and type(fine) is StockBranch


def test_wrap_session_wraps_all_or_none():
    session = StockSession()
    session.include_branches([stock(), stock()])
    assert lionnb.wrap_session(session) is session
    assert all(type(b) is lionnb.Branch for b in session.branches)
    bad = StockSession()
    bad.include_branches([stock(), refused()])
    with pytest.raises(AdoptionError):
        lionnb.wrap_session(bad)
    assert not any(isinstance(b, lionnb.Branch) for b in bad.branches)
    with pytest.raises(AdoptionError, match="takes a lionagi Session"):
        lionnb.wrap_session(stock())


async def test_a_flow_over_a_session_runs_its_nodes_as_turns():
    """Flow nodes call the Branch's methods."""
    from lionagi.operations.builder import OperationGraphBuilder

    session = lionnb.Session(default_branch=lionnb.Branch(chat_model=scripted_model("fine")))
    builder = OperationGraphBuilder()
    first = builder.add_operation("communicate", instruction="one")
    builder.add_operation("communicate", instruction="two", depends_on=[first])
    await session.flow(builder.get_graph())
    rows = [r for b in session.branches for r in b.turns.records()]
    assert [r.operation for r in rows] == ["communicate", "communicate"]


async def test_a_session_that_is_loaded_writes_no_file_when_the_process_ends(world):
    """lionagi builds its Branches with loggers that write into the current folder."""
    session = lionnb.Session()
    await session.new_branch(chat_model=scripted_model("secret")).communicate("q")
    loaded = lionnb.Session.from_dict(session.to_dict())
    for branch in loaded.branches:
        assert isinstance(branch._log_manager, QuietLogger)
    code = f"""
    import json, lionnb
    lionnb.Session.from_dict(json.loads({json.dumps(json.dumps(session.to_dict()))}))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True)
    assert not list((world / "here").iterdir())
