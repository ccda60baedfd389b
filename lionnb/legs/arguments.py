"""What may be asked of a leg: a mistake is said where the leg is started, not by a failing run in the background.

lionagi's operations hand unknown arguments on to the provider, so nothing can tell a misspelt argument from a
provider's own but its likeness to a name that the operation knows.
"""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Any

from lionagi import iModel
from lionagi.ln.types import not_sentinel

from lionnb.legs.turn import OPERATIONS

if TYPE_CHECKING:
    from lionnb.branch import Branch

__all__ = ("check_arguments", "check_model")

# Arguments of lionagi's operations that their signatures do not list, and the leg's own.
_UNLISTED = frozenset(
    {"clear_messages", "snapshot_dir", "timeout", "liveness_timeout", "idle_timeout", "between_rounds"}
)
_OWN = frozenset(
    {"name", "timeout_s", "max_turns", "max_tokens", "on_existing", "store", "by", "heartbeat_s", "op"}
    | {"resume_on_timeout", "resend", "anyway", "snapshot"}
)
_LIKE = 0.8


def check_arguments(
    branch: Branch, instruction: Any, op: str, arguments: dict[str, Any], *, resumes: bool = False
) -> None:
    """Raise unless *op* can be called on *branch* like this.

    Raises:
        ValueError: Unknown ``op``, no instruction, or ``run`` on a model that does not stream like a command line.
        TypeError: An argument of another kind, one that the leg gives itself, or whose name is nearly that of one which
            the operation knows; and any unknown one, where the operation hands none on.
    """
    if isinstance(instruction, bool | int | float | bytes | list | tuple | set) or (
        isinstance(instruction, dict) and op == "operate"
    ):
        raise TypeError(f"the instruction is a text (or lionagi's Instruct or Instruction), not {instruction!r:.80}.")
    if op not in OPERATIONS:
        raise ValueError(f"op={op!r}: a leg runs {', '.join(OPERATIONS)}.")
    if instruction is None or (isinstance(instruction, str) and not instruction.strip()):
        raise ValueError("a leg needs an instruction: what should its first turn do?")
    for given in ("instruction", "instruct"):
        if given in arguments:
            raise TypeError(f"{given}: the instruction is start_leg's second argument; every continuation has its own.")
    model_argument = OPERATIONS[op][1]
    if (model := arguments.get(model_argument)) is not None and not_sentinel(model):
        check_model(model_argument, model)
    model = arguments.get(model_argument) or branch.mdls.chat
    if op == "run" and not getattr(model, "is_cli", False):
        raise ValueError(
            'op="run" needs a command-line endpoint (claude_code, codex, gemini-cli, pi): on this model use "operate" '
            'or "communicate".'
        )
    parameters = inspect.signature(getattr(branch, op)).parameters
    known = {name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if "timeout" in arguments and op != "run":  # lionagi hands it to the provider, and nobody would be told
        raise TypeError("timeout: did you mean 'timeout_s', the seconds for the whole leg?")
    unknown = set(arguments) - known - _UNLISTED - _of_provider(model)
    if own := sorted(unknown & _OWN):
        raise TypeError(_not_here(own[0], resumes))
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise TypeError(f"{op} takes no argument {sorted(unknown)[0]!r}.")
    for name in sorted(unknown):
        if like := difflib.get_close_matches(name, known | _OWN, n=1, cutoff=_LIKE):
            raise TypeError(f"{op} takes no argument {name!r}: did you mean {like[0]!r}?")


def check_model(argument: str, model: Any) -> None:
    """Raise TypeError unless *model* is one."""
    if not isinstance(model, iModel):
        raise TypeError(
            f"{argument} is a lionagi iModel, not {model!r:.80}: say {argument}=iModel(provider=…, model=…), or leave "
            "it out to take the Branch's own."
        )


def _not_here(name: str, resumes: bool) -> str:
    """The sentence for a leg's argument where it means nothing."""
    if not resumes:
        return f"{name} is an argument of lionnb.resume, not of start_leg."
    if name == "on_existing":
        return (
            "on_existing is start_leg's: a run is resumed once no leg lives on its Branch. Steer that leg, or stop it."
        )
    return f"{name} cannot be changed here: the run keeps the {name} that it has."


def _of_provider(model: Any) -> frozenset[str]:
    """The request's own fields, as far as the endpoint declares them."""
    options = getattr(getattr(getattr(model, "endpoint", None), "config", None), "request_options", None)
    return frozenset(getattr(options, "model_fields", None) or ())
