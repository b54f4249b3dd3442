"""Verification: pure tensors in, values out. No host sync, no global state, no unguarded division.

The theorem, for every verifier here. Let p(. | s) be the target's distribution after prefix s. Whatever was drafted,
sampled from any q or guessed, the committed tokens have exactly the law of drawing them one by one from p:

- `coupling` keeps x ~ q with chance min(1, p(x)/q(x)) and otherwise draws from norm((p - q)+), so that token z comes
  out with chance min(p(z), q(z)) + (p(z) - q(z))+ = p(z); a guess is the case q = 1 at x;
- `block` judges the whole block by the same two weights, and keeps at least as much of it;
- `tree` judges several drafts of one place in turn, each by what the ones before it left of target and draft;
- `match` emits the target's own choice at every place: the largest logit (`greedy_choices`), or the largest
  log p + g with noise g keyed by position (`gumbel_choices`), which makes the text the same for every drafter;
  `walk` is the same on a tree.

`law` enumerates the theorem on small worlds, `integrate` proves it of the running code, over all coins exactly.
"""

from __future__ import annotations

from constrained_spec.verify.block import block, block_chances
from constrained_spec.verify.chi_square import chi_square
from constrained_spec.verify.coupling import coupling
from constrained_spec.verify.draws import inverse_cdf
from constrained_spec.verify.gumbel import gumbel_joint
from constrained_spec.verify.integrate import Coupling, coin_grid, integrate
from constrained_spec.verify.law import (
    RULES,
    Branch,
    Plan,
    Round,
    Rule,
    block_round,
    law,
    round_of,
    tree_round,
    walk_round,
)
from constrained_spec.verify.match import greedy_choices, gumbel_choices, match
from constrained_spec.verify.theory import (
    acceptance,
    estimated_speedup,
    excess,
    expected_committed,
    overlap,
    residual,
    total_variation,
)
from constrained_spec.verify.tree import TreeVerdict, children_table, tree, walk
from constrained_spec.verify.typical import typical, typical_threshold
from constrained_spec.verify.verdict import Verdict
from constrained_spec.verify.world import Distribution, Draft, Prefix, Siblings, World, distance, one_hot, target_law

__all__ = [
    "RULES",
    "Branch",
    "Coupling",
    "Distribution",
    "Draft",
    "Plan",
    "Prefix",
    "Round",
    "Rule",
    "Siblings",
    "TreeVerdict",
    "Verdict",
    "World",
    "acceptance",
    "block",
    "block_chances",
    "block_round",
    "chi_square",
    "children_table",
    "coin_grid",
    "coupling",
    "distance",
    "estimated_speedup",
    "excess",
    "expected_committed",
    "greedy_choices",
    "gumbel_choices",
    "gumbel_joint",
    "integrate",
    "inverse_cdf",
    "law",
    "match",
    "one_hot",
    "overlap",
    "residual",
    "round_of",
    "target_law",
    "total_variation",
    "tree",
    "tree_round",
    "typical",
    "typical_threshold",
    "walk",
    "walk_round",
]
