"""What lionnb relies on in lionagi beyond its documentation. Each assertion says what a maintainer has to look at.

When lionagi is updated, these tests are read first: they fail before anything else does, and nearer to the cause.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import lionagi
import pytest
from lionagi import Branch as StockBranch
from lionagi.session.signal import RunEnd, RunFailed, RunStart

import lionnb
from lionnb.branch import PRIVATE_HOOKS
from lionnb.operations import Operations
from lionnb.testing import scripted_model

MODEL_OPERATIONS = {
    "ReAct",
    "ReActStream",
    "chat",
    "chat_and_record",
    "communicate",
    "interpret",
    "operate",
    "parse",
    "run",
}
# Asynchronous, public, and no model turn: each was looked at.
OTHERS = {"aclone", "act", "adump_logs", "authorize", "drain_signals", "emit", "emit_and_log"}


def find(hook):
    """What a key of PRIVATE_HOOKS names: an attribute, a private field of the pydantic class, or a module's name."""
    owner, _, name = hook.rpartition(".")
    if owner == "Branch":
        fields = StockBranch.__private_attributes__
        return fields[name] if name in fields else vars(StockBranch).get(name)
    if owner == "DataLogger":
        from lionagi.protocols.generic import DataLogger

        return getattr(DataLogger(), name, None)
    return getattr(importlib.import_module(f"lionagi.{owner}"), name, None)


def positional(func):
    return [p.name for p in inspect.signature(func).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]


# What lionnb relies on of each hook, beyond its existence.
SHAPES = {
    "Branch._observed_run": lambda h: inspect.iscoroutinefunction(h) and positional(h) == ["self", "coro"],
    "Branch._schedule_emit": lambda h: not inspect.iscoroutinefunction(h) and positional(h) == ["self", "msg"],
    "Branch._last_context_report": lambda h: h.default_factory is not None,
    "Branch._last_context_report_fallback": lambda h: h.default is None,
    "Branch._observer": lambda h: h.default is None,
    "Branch._signal_tasks": lambda h: h.default_factory is list,
    "Branch._log_manager": lambda h: h.default is None,
    "DataLogger._config": lambda h: hasattr(h, "model_copy"),
    "operations._observe.StopStream": lambda h: issubclass(h, Exception),
    "operations._observe.emit_message": lambda h: inspect.iscoroutinefunction(h) and positional(h) == ["branch", "msg"],
    "operations.run.run.run": lambda h: (
        inspect.isasyncgenfunction(h) and positional(h) == ["branch", "instruction", "param"]
    ),
}


@pytest.mark.parametrize("hook", sorted(PRIVATE_HOOKS))
def test_each_hook_exists_and_has_the_shape_that_lionnb_relies_on(hook):
    version, why = PRIVATE_HOOKS[hook]
    found = find(hook)
    told = f"lionagi {lionagi.__version__}: {hook} (read in {version}) is "
    assert found is not None, f"{told}gone. lionnb used it because: {why}. Find what took its place, in branch.py."
    assert SHAPES[hook](found), f"{told}another shape now. lionnb used it because: {why}. Read it anew, then branch.py."


def test_every_hook_is_checked_and_every_private_name_in_branch_py_is_listed():
    assert set(SHAPES) == set(PRIVATE_HOOKS)
    tree = ast.parse(Path(inspect.getsourcefile(lionnb.Branch)).read_text())
    stock = set(StockBranch.__private_attributes__) | {n for n in vars(StockBranch) if n.startswith("_")}
    used = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr.startswith("_")}
    used = {n for n in used & stock if not n.startswith("__")}
    listed = {hook.rpartition(".")[2] for hook in PRIVATE_HOOKS}
    assert used <= listed, f"branch.py uses private names of lionagi that PRIVATE_HOOKS does not list: {used - listed}"


async def test_a_call_streams_through_what_hangs_on_its_endpoint():
    """Nothing private, and yet a seam: how a turn comes by the streams that it has to close (taps.py)."""
    model, begun = scripted_model(["one two"]), []
    theirs = model.endpoint.stream

    def watched(*args, **kw):
        begun.append(theirs(*args, **kw))
        return begun[-1]

    model.endpoint.stream = watched
    call = await model.create_event(messages=[{"role": "user", "content": "q"}], stream=True)
    async for _ in model.stream(api_call=call):
        pass
    told = f"lionagi {lionagi.__version__}: iModel.stream no longer iterates what endpoint.stream(…) returns"
    assert len(begun) == 1 and inspect.isasyncgen(begun[0]), f"{told}; read APICalling._core_stream, then taps.py."
    assert begun[0].ag_frame is None
    assert model.copy().endpoint.stream is not watched, "a copied endpoint carries the function of another one's turn"


# --- the facade ------------------------------------------------------------------------------------------------------


def test_the_public_asynchronous_methods_of_branch_are_exactly_those_that_were_looked_at():
    """A new model operation must not slip past the driver unnoticed."""
    found = {
        name
        for name, f in vars(StockBranch).items()
        if not name.startswith("_") and (inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f))
    }
    new, gone = found - MODEL_OPERATIONS - OTHERS, (MODEL_OPERATIONS | OTHERS) - found
    assert not new, (
        f"lionagi has new asynchronous methods: {new}. Does one call a model? Then it belongs in operations.py."
    )
    assert not gone, f"lionagi has them no more: {gone}. Take them out of operations.py."
    assert {n for n in vars(Operations) if not n.startswith("_")} == MODEL_OPERATIONS
    assert "act" not in vars(Operations) and "act" not in vars(lionnb.Branch)


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("chat", "imodel"),
        ("operate", "chat_model"),
        ("communicate", "chat_model"),
        ("interpret", "interpret_model"),
        ("ReAct", "analysis_model"),
        ("ReActStream", "analysis_model"),
        ("run", "chat_model"),
    ],
)
def test_the_model_argument_of_an_operation_has_the_name_that_the_driver_reads(name, argument):
    parameters = inspect.signature(getattr(StockBranch, name)).parameters
    assert argument in parameters, f"{name} has no {argument}: the call's own model would not be the turn's."


def test_chat_and_record_hands_its_arguments_to_chat():
    """It names no model argument itself."""
    assert "self.chat(" in inspect.getsource(StockBranch.chat_and_record)


def test_run_has_the_arguments_that_are_handed_to_its_operation():
    from lionagi.operations.types import RunParam

    same = {"guidance", "context", "sender", "recipient", "images", "image_detail", "stream_persist", "response_format"}
    want = same | {"instruction", "chat_model", "persist_dir", "snapshot_dir", "kwargs"}
    have = set(inspect.signature(StockBranch.run).parameters) - {"self"}
    assert have == want, f"run's arguments changed by {have ^ want}: hand them on in operations.py."
    missing = (same | {"persist_dir", "snapshot_dir", "imodel", "imodel_kw"}) - set(RunParam.field_names())
    assert not missing, f"RunParam has no {missing} any more."


def test_lionagis_own_run_still_hands_on_what_ours_does():
    """Compared where it can be: the facade's source names every argument of RunParam that ours passes."""
    source = inspect.getsource(StockBranch.run)
    for name in ("sender=", "stream_persist=", '"imodel"', '"persist_dir"', '"snapshot_dir"', '"imodel_kw"'):
        assert name in source, f"lionagi's run no longer passes {name}: compare it with operations.py."


# --- signals ------------------------------------------------------------------------------------------------------------


def test_the_message_hook_is_registered_once_when_a_branch_is_made():
    branch = lionnb.Branch(chat_model=scripted_model("x"))
    ours = [h for h in branch.on_message_added if getattr(h, "__func__", None) is lionnb.Branch._schedule_emit]
    assert len(ours) == 1, "lionagi registers the hook in another way now: messages would not belong to their turn."


@pytest.mark.parametrize("name", ["communicate", "operate", "ReAct", "ReActStream", "run"])
async def test_lionagis_own_lifecycle_goes_through_emit_with_the_exact_classes(name, monkeypatch):
    """There it is dropped inside a turn; another road would put a second pair on the bus."""
    kinds = []
    stock = StockBranch.emit

    async def spy(self, event):
        kinds.append(type(event).__name__)
        return await stock(self, event)

    monkeypatch.setattr(StockBranch, "emit", spy)
    session = lionagi.Session()
    replies = ['{"analysis": "x", "extension_needed": false}', '{"answer": "x"}']
    branch = StockBranch(chat_model=scripted_model(replies if "ReAct" in name else "x"))
    session.include_branches(branch)
    kw = {"instruct": {"instruction": "q"}, "extension_allowed": False} if "ReAct" in name else {"instruction": "q"}
    made = getattr(branch, name)(**kw)
    if name in ("run", "ReActStream"):
        async for _ in made:
            pass
    else:
        await made
    lifecycle = [i for i in session.observer.flow.items if isinstance(i, RunStart | RunEnd | RunFailed)]
    assert lifecycle and all(type(i) in (RunStart, RunEnd, RunFailed) for i in lifecycle)
    assert len([k for k in kinds if k.startswith("Run")]) == len(lifecycle), (
        f"{name} emits its lifecycle past Branch.emit"
    )


def test_the_fields_of_run_end_are_usage_and_duration():
    """A new field would be left out of ours, were it not usage."""
    from lionagi.session.signal import Signal, build_run_end

    fields = set(RunEnd.model_fields) - set(Signal.model_fields)
    assert "duration_ms" in fields and {"input_tokens", "output_tokens"} <= fields
    assert "turn_id" not in fields, "lionagi has turn ids of its own: look at ADR-0018 D5 and at signals.py."
    assert set(inspect.signature(build_run_end).parameters) == {"branch", "duration_ms", "result"}


# --- models -------------------------------------------------------------------------------------------------------------------


def test_only_run_assigns_the_branchs_model_and_it_does_so_through_the_property():
    """That is why an assignment inside a call is the call's own (P4)."""
    run = importlib.import_module("lionagi.operations.run.run").run
    assert "branch.chat_model = param.imodel" in inspect.getsource(run), "run assigns the model in another way now."
    writers = []
    for path in (Path(lionagi.__file__).parent / "operations").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else []
            writers += [
                path.name for t in targets if isinstance(t, ast.Attribute) and t.attr in ("chat_model", "parse_model")
            ]
    assert writers == ["run.py"], f"another operation assigns a model of the Branch: {writers}"


async def test_the_model_manager_is_behind_the_property():
    branch = StockBranch(chat_model=scripted_model("x"))
    other = scripted_model("y")
    branch.mdls.register_imodel("chat", other)
    assert branch.chat_model is branch.mdls.chat is other
    branch.chat_model = third = scripted_model("z")
    assert branch.mdls.chat is third


# --- control and providers -----------------------------------------------------------------------------------------------------


async def test_the_streaming_operation_polls_through_poll_control(monkeypatch):
    polls = []
    stock = lionnb.Branch.poll_control
    monkeypatch.setattr(lionnb.Branch, "poll_control", lambda self, **kw: polls.append(1) or stock(self, **kw))
    branch = lionnb.Branch(chat_model=scripted_model("x"))
    async for _ in branch.run("q"):
        pass
    assert polls, "lionagi polls for control in another way now: control() would never be consumed."


async def test_a_provider_report_is_published_through_the_slot():
    class Provider:
        name = "p"

        async def provide(self, branch, instruction):
            return "block"

    published = []
    branch = StockBranch(chat_model=scripted_model("x"), system="s")
    branch.providers.register(Provider())

    class Slot:
        def set(self, report):
            published.append(report)

        def get(self):
            return None

    branch._last_context_report = Slot()
    await branch.communicate("q")
    assert [r.blocks for r in published] == [["block"]]
    assert {"blocks", "fired", "skipped", "failed", "degraded"} <= set(dir(published[0]))
    assert published[0].fired[0]["provider_name"] == "p" and "tokens" in published[0].fired[0]


# --- wrap ------------------------------------------------------------------------------------------------------------------------


def test_the_class_of_a_branch_can_be_swapped_in_place():
    branch = StockBranch(chat_model=scripted_model("x"))
    keys = set(branch.__pydantic_private__)
    lionnb.wrap(branch)
    assert type(branch) is lionnb.Branch
    assert set(branch.__pydantic_private__) == keys | {"_turns"}
    fresh = set(lionnb.Branch(chat_model=scripted_model("x")).__pydantic_private__)
    assert set(branch.__pydantic_private__) == fresh, "a wrapped Branch lacks a private field that a made one has."


def test_the_version_is_the_one_that_was_read():
    assert lionagi.__version__.startswith("0.36."), "read lionagi's Branch, run and chat anew; then raise the bound."
