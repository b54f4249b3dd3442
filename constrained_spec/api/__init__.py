"""The library's face."""

from constrained_spec.api.engine import Engine, Message, Prompt
from constrained_spec.api.request import Options
from constrained_spec.api.result import Piece, Result, SpeculationReport, Target, Timing, Usage
from constrained_spec.api.ticket import Ticket
from constrained_spec.engine.inspection import Inspection, Place
from constrained_spec.engine.snapshot import Snapshot
from constrained_spec.engine.worker import Health

__all__ = [
    "Engine",
    "Health",
    "Inspection",
    "Message",
    "Options",
    "Piece",
    "Place",
    "Prompt",
    "Result",
    "Snapshot",
    "SpeculationReport",
    "Target",
    "Ticket",
    "Timing",
    "Usage",
]
