"""What must hold on this machine before anything may speculate: the verifiers' law, and the slots' rollback."""

from __future__ import annotations

import torch

from constrained_spec.backends.base import Block, LanguageModel
from constrained_spec.errors import AuditFailure
from constrained_spec.verify import World, distance, law, target_law

_TARGET = ((0.5, 0.3, 0.2), (0.1, 0.0, 0.9))
_DRAFT = ((0.6, 0.1, 0.3), (0.7, 0.3, 0.0))
_TOLERANCE = 1e-9
_LENGTH, _CUTS = 24, 8


def self_check(model: LanguageModel) -> None:
    """Raises ``AuditFailure``. Uses slot 0, which must be free, and leaves it empty."""
    check_law()
    check_rollback(model)


def check_law() -> str:
    """The enumerated law of each exact verifier on a small world. Returns what was found; raises ``AuditFailure``."""
    world = World(3, lambda prefix: _TARGET[len(prefix) % 2], lambda prefix: _DRAFT[len(prefix) % 2])
    worst = max(distance(law(world, rule, 2, 3), target_law(world, 3)) for rule in ("coupling", "point", "invariant"))
    if not worst < _TOLERANCE:
        raise AuditFailure(f"the enumerated law is off by {worst:.3g}")
    wrong = distance(law(world, "full-p-repair", 2, 3), target_law(world, 3))
    if not wrong > 1e-3:
        raise AuditFailure("a wrong repair was not noticed")
    return f"largest error {worst:.1e}; a planted wrong repair shows {wrong:.3f}"


def check_rollback(model: LanguageModel) -> str:
    """A slot cut back after blocks of every length is the slot it was. Raises ``AuditFailure``."""
    size = model.vocabulary.size
    n = min(_LENGTH, model.capacity)
    base = max(1, n - _CUTS)
    ids = [i * 7919 % size for i in range(1, n + 1)]
    model.set_length(0, 0)
    model.score([Block(0, ids[:base], want=1)])
    before = model.fingerprint(0)
    first = model.score([Block(0, ids[base:], want=1)])
    for cut in range(n - base):
        model.set_length(0, base)
        model.score([Block(0, ids[base : base + 1 + cut], want=1)])
    model.set_length(0, base)
    if model.fingerprint(0) != before:
        raise AuditFailure("the slot does not return to its state")
    again = model.score([Block(0, ids[base:], want=1)])
    model.set_length(0, 0)
    if not torch.equal(first, again):
        raise AuditFailure("the same block after rollbacks gives other logits")
    return f"{n - base} cuts, slot and logits bit-identical"
