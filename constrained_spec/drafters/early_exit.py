"""The target's own first layers and its head draft (self-speculation: Zhang et al. 2024, Elhoushi et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

import torch
from torch import Tensor

from constrained_spec.backends.base import Block, LanguageModel
from constrained_spec.drafters.model import ModelDrafter
from constrained_spec.errors import ConfigError
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from constrained_spec.types import Vocabulary


class Shallow(LanguageModel, Protocol):
    """A model that can stop after some of its layers."""

    @property
    def depth(self) -> int:
        """Number of layers."""
        ...

    def shallow(self, blocks: Seq[Block], starts: Seq[int], layers: int) -> Tensor:
        """As ``score``, of the first ``layers`` only, with block b written from place ``starts[b]`` on.

        No length changes: what lies behind a slot's length is invisible, and the next full forward overwrites it.
        """
        ...


class FirstLayers:
    """The first layers of a model as a model of its own, in the same slots, with the same keys and values.

    A slot is as long as the target's, or longer by what was drafted since; the target's forward writes the same values
    for these layers again.
    """

    def __init__(self, target: Shallow, layers: int) -> None:
        if not 1 <= layers < target.depth:
            raise ConfigError(
                f"an early exit lies after 1 to {target.depth - 1} layers, not {layers}", param="exit_layers"
            )
        self._target = target
        self._layers = layers
        self._ahead: dict[int, int] = {}  # per slot: its length here

    @property
    def vocabulary(self) -> Vocabulary:
        return self._target.vocabulary

    @property
    def name(self) -> str:
        return f"{self._target.name}, first {self._layers} layers"

    @property
    def device(self) -> torch.device:
        return self._target.device

    @property
    def slots(self) -> int:
        return self._target.slots

    @property
    def capacity(self) -> int:
        return self._target.capacity

    def score(self, blocks: Seq[Block]) -> Tensor:
        starts = [self.length(b.slot) for b in blocks]
        logits = self._target.shallow(blocks, starts, self._layers)
        for block, start in zip(blocks, starts, strict=True):
            self._ahead[block.slot] = start + len(block.tokens)
        return logits

    def length(self, slot: int) -> int:
        return max(self._target.length(slot), self._ahead.get(slot, 0))

    def set_length(self, slot: int, length: int) -> None:
        self._ahead[slot] = length

    def clear(self, slot: int) -> None:
        self._target.clear(slot)

    def copy(self, source: int, target: int, length: int) -> None:
        self._target.copy(source, target, length)

    def fingerprint(self, slot: int) -> bytes:
        return self._target.fingerprint(slot)


class EarlyExitDrafter(ModelDrafter):
    """A ``ModelDrafter`` whose model is the target's first layers: no weights and no slots of its own."""

    name = "early-exit"

    def __init__(self, target: Shallow, pipeline: Pipeline, layers: int | None = None) -> None:
        """``layers``: default a quarter of the target's. Raises ``ConfigError``."""
        first = FirstLayers(target, max(1, target.depth // 4) if layers is None else layers)
        super().__init__(first, pipeline, target.vocabulary)

    def _take(self, sequence: Sequence) -> int:
        return sequence.slot

    def _give(self, slot: int) -> None:
        """The slot is the target's."""
