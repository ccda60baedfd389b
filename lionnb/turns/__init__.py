"""Turn-scoped execution state (ADR-0018): phases, context, driver, streams, log. Knows nothing of lionagi."""

from lionnb.turns.context import TurnExecutionContext, TurnScope
from lionnb.turns.driver import run_in_turn
from lionnb.turns.log import TurnLog
from lionnb.turns.phases import Phase
from lionnb.turns.state import TurnState
from lionnb.turns.stream import TurnStream, stream_in_turn
from lionnb.turns.turn import TurnHost

__all__ = (
    "Phase",
    "TurnExecutionContext",
    "TurnHost",
    "TurnLog",
    "TurnScope",
    "TurnState",
    "TurnStream",
    "run_in_turn",
    "stream_in_turn",
)
