"""What a turn that did not complete left in the history: a question without an answer, a tool call without a result.

The specification rolls nothing back, and neither does this: nothing is removed or reworded by itself. The turn's log
names it at its end, the next turn warns of it, once, and `mend` closes it when a person asks.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lionagi.protocols.messages import ActionRequest, ActionResponse, AssistantResponse, Instruction

from lionnb.errors import TurnActiveError
from lionnb.taps import as_text
from lionnb.turns.log import clip

if TYPE_CHECKING:
    from collections.abc import Callable

    from lionnb.branch import Branch
    from lionnb.turns.log import TurnRow
    from lionnb.turns.turn import Turn

__all__ = ("LooseEnd", "log_loose_ends", "loose_ends", "mend", "warn_of_loose_ends")

_SHOWN = 200  # characters of a question or of arguments in a sentence


@dataclass(frozen=True, slots=True)
class LooseEnd:
    """One message of the history that waits for its counterpart."""

    message: Any

    @property
    def is_question(self) -> bool:
        """A question without an answer; else a tool call without a result."""
        return isinstance(self.message, Instruction)

    def __str__(self) -> str:
        content = self.message.content
        if self.is_question:
            return f"a question without an answer: {clip(as_text(content.instruction or ''), _SHOWN)!r}"
        arguments = clip(as_text(content.arguments), _SHOWN)
        return f"a tool call without a result: {content.function}({arguments})"


def loose_ends(branch: Any) -> list[LooseEnd]:
    """What the newest question left open: that question, and the tool calls after it. Oldest first.

    Only the newest, because only that can be closed by a message at the end of the history.
    """
    answered, results, found = False, set[str](), list[LooseEnd]()
    for msg in reversed(list(branch.messages)):
        if isinstance(msg, AssistantResponse):
            answered = True
        elif isinstance(msg, ActionResponse):
            results.add(str(msg.content.action_request_id))
        elif isinstance(msg, ActionRequest):
            if str(msg.id) not in results:
                found.append(LooseEnd(msg))
        elif isinstance(msg, Instruction):
            if not answered:
                found.append(LooseEnd(msg))
            break
    return found[::-1]


def log_loose_ends(branch: Any, turn: Turn) -> None:
    """At the end of a *turn* that did not complete: name in its log what it leaves open, while it can be mended."""
    found = loose_ends(branch)
    if found:
        text = f"this turn leaves {_said(found)}. lionnb.mend(branch) closes it with a message that says what happened."
        branch.turn_state.log.event("warning", turn.row.turn_id, text=text)


def warn_of_loose_ends(branch: Any, left: TurnRow, tell: Callable[[str], None] | None = None) -> None:
    """At the start of the next turn: warn, once, of what is still open after turn *left*; or *tell* it."""
    found = loose_ends(branch)
    if not found:
        return
    text = (
        f"turn {(left.turn_id or '')[:8]} ({left.operation}, {left.outcome.value}) left {_said(found)}. The model will "
        "see the history like that."
    )
    if tell is not None:  # nobody is there who could act between two turns
        tell(text)
    else:
        warnings.warn(
            f"{text} lionnb.mend(branch), before the next turn, closes it.",
            # the caller of the operation: host, entry, driver and method (or step of a stream) stand between, for an
            # awaited coroutine runs on top of whoever awaits it; a task's first coroutine has no caller
            stacklevel=6,
        )


def _said(found: list[LooseEnd]) -> str:
    return "; ".join(map(str, found))


def mend(branch: Branch) -> list[LooseEnd]:
    """Append a closing message for each loose end; nothing is removed or reworded. Twice is harmless.

    Returns:
        What was closed; empty when there was nothing.

    Raises:
        TypeError: It is no turn-aware Branch.
        TurnActiveError: A turn is active on the Branch: its question is not loose but at work.
    """
    if not hasattr(branch, "turn_state"):
        raise TypeError(
            f"mend() takes a lionnb.Branch (lionnb.wrap makes one of lionagi's), not {type(branch).__name__}."
        )
    state = branch.turn_state
    if (turn := state.turn) is not None:
        raise TurnActiveError(
            "mend", turn.row.branch_name or f"Branch {turn.row.branch_id[:8]}", turn.row.turn_id or ""
        )
    how = "was interrupted" if state.left is None else f"ended ({state.left.outcome.value})"
    found = loose_ends(branch)
    for end in found:
        if not end.is_question:
            said = {"error": f"no result: the turn {how} before this call returned"}
            branch.msgs.add_message(action_request=end.message, action_output=said)
    if any(end.is_question for end in found):
        branch.msgs.add_message(
            assistant_response=f"(no answer: the turn {how} before the model had answered)",
            sender=branch.id,
            recipient=branch.user or "user",
        )
    state.left = None
    return found
