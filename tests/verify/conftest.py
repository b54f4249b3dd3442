"""Small worlds shared by the tests of this folder."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from constrained_spec.verify import Distribution, Draft, Prefix, World

PAIRS: dict[str, tuple[Distribution, Draft]] = {
    "worked": ((0.5, 0.3, 0.2), (0.6, 0.1, 0.3)),
    "disjoint": ((0.25, 0.75, 0.0, 0.0), (0.0, 0.0, 0.5, 0.5)),
    "zeros": ((0.0, 0.5, 0.25, 0.0, 0.25), (0.25, 0.0, 0.5, 0.0, 0.25)),
    "identical": ((0.25, 0.25, 0.5), (0.25, 0.25, 0.5)),
    "identical-point": ((0.0, 1.0), (0.0, 1.0)),
    "spike-on-rare": ((1e-6, 0.5, 0.5 - 1e-6), (1 - 1e-9, 5e-10, 5e-10)),
    "spike-on-impossible": ((0.0, 0.5, 0.5), (1 - 1e-9, 5e-10, 5e-10)),
    "guess-likely": ((0.9, 0.06, 0.04), 0),
    "guess-rare": ((0.001, 0.499, 0.5), 0),
    "guess-impossible": ((0.0, 0.25, 0.75), 0),
    "guess-certain": ((0.0, 0.0, 1.0), 2),
    "six": ((0.1, 0.2, 0.3, 0.15, 0.05, 0.2), (0.3, 0.0, 0.1, 0.25, 0.3, 0.05)),
}


def constant_world(name: str) -> World:
    p, draft = PAIRS[name]
    return World(len(p), lambda _: p, lambda _: draft)


def random_row(key: str, vocab: int, n: int | None = None) -> Distribution:
    """A row that is a function of ``key``: with zeros, uneven; multiples of 1/n if ``n`` is given."""
    r = random.Random(key)
    if n is not None:
        drawn = r.choices(range(vocab), [r.random() ** 3 for _ in range(vocab)], k=n)
        return tuple(drawn.count(i) / n for i in range(vocab))
    weights = [r.random() ** 3 if r.random() < 0.8 else 0.0 for _ in range(vocab)]
    weights[r.randrange(vocab)] += 0.1
    return tuple(w / sum(weights) for w in weights)


def random_world(seed: int, vocab: int, *, n: int | None = None, mixed: bool = False, eos: int | None = None) -> World:
    """Rows differ by prefix. ``mixed``: a place is sampled, a guess, or not drafted, by prefix."""

    def draft(prefix: Prefix) -> Draft:
        r = random.Random(f"{seed} kind {prefix}")
        kind = r.random() if mixed else 0.0
        if kind < 0.5:
            return random_row(f"{seed} q {prefix}", vocab, n)
        return r.randrange(vocab) if kind < 0.85 else None

    return World(vocab, lambda prefix: random_row(f"{seed} p {prefix}", vocab, n), draft, eos)


@pytest.fixture(scope="session")
def make_constant_world() -> Callable[[str], World]:
    return constant_world


@pytest.fixture(scope="session")
def make_random_world() -> Callable[..., World]:
    return random_world


@pytest.fixture(params=sorted(PAIRS))
def pair_world(request: pytest.FixtureRequest) -> World:
    """Each adversarial pair of p and q, the same at every prefix."""
    return constant_world(request.param)
