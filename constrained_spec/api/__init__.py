"""The library's face."""

from constrained_spec.api.engine import Engine, Message, Options
from constrained_spec.api.result import Piece, Result, SpeculationReport, Target, Timing, Usage

__all__ = ["Engine", "Message", "Options", "Piece", "Result", "SpeculationReport", "Target", "Timing", "Usage"]
