"""The target's own first layers and its head draft (self-speculation: Zhang et al. 2024, Elhoushi et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

from torch import Tensor

from constrained_spec.backends.base import Block, LanguageModel
from constrained_spec.drafters.own_slots import OwnDrafter, OwnSlots
from constrained_spec.errors import ConfigError
from constrained_spec.processors.pipeline import Pipeline


class Shallow(LanguageModel, Protocol):
    """A model that can stop after some of its layers."""

    @property
    def depth(self) -> int:
        """Number of layers."""
        ...

    def score_ahead(self, blocks: Seq[Block], starts: Seq[int], layers: int) -> Tensor:
        """As ``score``, of the first ``layers`` only, with block b written from place ``starts[b]`` on.

        No length changes: what lies behind a slot's length is invisible, and the next full forward overwrites it.
        """
        ...


class EarlyExitDrafter(OwnDrafter):
    """Drafts with the target's first layers: no weights and no slots of its own.

    Of these layers the target's forward writes the same keys and values again.
    """

    name = "early-exit"

    def __init__(self, target: Shallow, pipeline: Pipeline, layers: int | None = None) -> None:
        """``layers``: default a quarter of the target's. Raises ``ConfigError``."""
        n = max(1, target.depth // 4) if layers is None else layers
        if not 1 <= n < target.depth:
            raise ConfigError(f"an early exit lies after 1 to {target.depth - 1} layers, not {n}", param="exit_layers")

        def ahead(blocks: Seq[Block], starts: Seq[int]) -> Tensor:
            return target.score_ahead(blocks, starts, n)

        super().__init__(OwnSlots(target, ahead, f"{target.name}, first {n} layers"), pipeline)
