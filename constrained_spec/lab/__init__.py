"""The lab: a world small enough to enumerate, the cost model of speculation, and one interactive page.

The page stands alone: one file without a build step, and without anything fetched from elsewhere.
"""

from __future__ import annotations

from importlib.resources import files

from constrained_spec.lab.simulate import simulate
from constrained_spec.lab.speed import PRESETS, Costs, Preset, best_gamma, break_even, end_to_end, speedup

__all__ = [
    "PRESETS",
    "Costs",
    "Preset",
    "best_gamma",
    "break_even",
    "end_to_end",
    "page",
    "simulate",
    "speedup",
]


def page() -> str:
    """The lab page, a whole HTML document."""
    return files("constrained_spec.lab").joinpath("page.html").read_text("utf-8")
