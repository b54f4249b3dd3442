"""Small worlds: a vocabulary of a few tokens with exact conditional tables, on which a law can be enumerated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

Prefix = tuple[int, ...]
Distribution = tuple[float, ...]
Draft = Distribution | int | None  # sampled from it | a point mass | no draft here: the block ends


@dataclass(frozen=True, slots=True)
class Siblings:
    """The children of one node of a tree: guesses, then ``drawn`` tokens from ``q`` without replacement.

    Neither a guess nor an earlier draw is drawn again; fewer are drawn where ``q`` has no more tokens.
    """

    guesses: Prefix = ()
    q: Distribution | None = None
    drawn: int = 0


@dataclass(frozen=True, slots=True)
class World:
    """``target(prefix)`` is p(. | prefix); ``draft(prefix)`` says what the drafter does there. ``eos`` ends a text."""

    vocab: int
    target: Callable[[Prefix], Distribution]
    draft: Callable[[Prefix], Draft]
    eos: int | None = None

    def ended(self, prefix: Prefix, length: int) -> bool:
        return len(prefix) >= length or (self.eos is not None and self.eos in prefix)

    def trim(self, prefix: Prefix, length: int) -> Prefix:
        """What is committed of ``prefix``: at most ``length`` tokens, none behind the first end token."""
        if self.eos is not None and self.eos in prefix:
            length = min(length, prefix.index(self.eos) + 1)
        return prefix[:length]

    def at_zero(self) -> World:
        """The temperature-0 limit: all mass on the most probable token, the lowest among equals."""
        target = self.target

        def limit(prefix: Prefix) -> Distribution:
            p = target(prefix)
            best = p.index(max(p))
            return tuple(float(i == best) for i in range(len(p)))

        return replace(self, target=limit)


def one_hot(token: int, vocab: int) -> Distribution:
    return tuple(float(i == token) for i in range(vocab))


def target_law(world: World, length: int) -> dict[Prefix, float]:
    """The law to be met: token by token from the target, until ``length`` tokens or the end token."""

    def walk(prefix: Prefix, weight: float) -> Iterator[tuple[Prefix, float]]:
        if world.ended(prefix, length):
            yield prefix, weight
            return
        for token, chance in enumerate(world.target(prefix)):
            if chance > 0:
                yield from walk((*prefix, token), weight * chance)

    return dict(walk((), 1.0))


def distance(a: dict[Prefix, float], b: dict[Prefix, float]) -> float:
    """Largest difference between two laws at any text."""
    return max((abs(a.get(k, 0.0) - b.get(k, 0.0)) for k in a.keys() | b.keys()), default=0.0)
