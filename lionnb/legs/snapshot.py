"""A Branch's history as one JSON text, and a Branch made of it: what a run goes on with in a later kernel.

Kept are the messages, the name and the user. Models and tools are not, for a record holds no key and no function; nor
is the log of requests, each of which repeats the whole history before it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from lionagi.protocols.messages import System

from lionnb.branch import Branch

__all__ = ("restored", "snapshot_of")

log = logging.getLogger(__name__)

_NOT_KEPT = ("chat_model", "parse_model")


def snapshot_of(branch: Branch) -> str | None:
    """The history of *branch* as it stands; ``None``, with a warning, when it holds what JSON cannot. Raises nothing.

    In the Branch's loop, between turns: the text is whole, and nothing changes while it is made.
    """
    try:
        kept = {name: value for name, value in branch.to_dict(include_logs=False).items() if name not in _NOT_KEPT}
        return json.dumps(kept)
    except Exception as exc:  # a message of the user's own kind, say: no leg may fail for it
        log.warning("the history of Branch %s could not be kept: %s", str(branch.id)[:8], type(exc).__name__)
        return None


def restored(text: str, *, chat_model: Any, tools: Sequence[Any] = ()) -> Branch:
    """A Branch with the history that *text* holds, under the same id, on the model and with the tools given."""
    branch: Branch = Branch.from_dict(json.loads(text))
    # lionagi reads the system message back as one of the others, and would not send it first any more
    branch.msgs.system = next((msg for msg in branch.messages if isinstance(msg, System)), None)
    branch.chat_model = chat_model
    if tools:
        branch.register_tools(list(tools), update=True)
    return branch
