"""The law of the verifier's own code, exactly: small worlds with adversarial targets and drafts.

`integrate` drives the very function that the engine calls, over all coins; nothing here is sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from constrained_spec.engine import judge
from constrained_spec.verify import Coupling, Distribution, Prefix, World, distance, integrate, law, target_law

LENGTH = 3
GAMMA = 2


@dataclass(frozen=True, slots=True)
class Case:
    """A target and a draft for even and odd places of a text, in whole parts of ``unit``."""

    name: str
    target: tuple[tuple[int, int, int], ...]
    draft: tuple[tuple[int, int, int], ...]
    unit: int = 6

    def code_gamma(self, verifier: str) -> int:
        """Drafts per block for which the coin grid holds every threshold. A whole block multiplies its fractions."""
        return 1 if verifier == "block" and self.unit > 2 else GAMMA

    @property
    def grid(self) -> int:
        """Denominators up to this one occur among the thresholds of its coins."""
        return 8 if self.unit == 2 else self.unit


CASES = (
    Case("ordinary", ((3, 2, 1), (1, 4, 1)), ((2, 1, 3), (3, 2, 1))),
    Case("disjoint supports", ((6, 0, 0), (0, 3, 3)), ((0, 3, 3), (6, 0, 0))),
    Case("zeros on both sides", ((3, 0, 3), (0, 6, 0)), ((0, 3, 3), (2, 4, 0))),
    Case("identical", ((1, 2, 3), (4, 1, 1)), ((1, 2, 3), (4, 1, 1))),
    Case("over-confident and wrong", ((1, 2, 3), (2, 2, 2)), ((6, 0, 0), (0, 0, 6))),
    Case("boundary of the first rejection", ((3, 3, 0), (0, 0, 6)), ((3, 0, 3), (1, 0, 5))),
    Case("halves", ((1, 1, 0), (0, 1, 1)), ((1, 0, 1), (1, 1, 0)), unit=2),
    Case("halves, one certain", ((2, 0, 0), (1, 0, 1)), ((1, 1, 0), (1, 0, 1)), unit=2),
)


def world(case: Case, *, guess: bool = False) -> World:
    """``guess``: the draft is its most probable token, a point mass."""

    def row(rows: tuple[tuple[int, int, int], ...], prefix: Prefix) -> Distribution:
        return tuple(x / case.unit for x in rows[len(prefix) % len(rows)])

    def draft(prefix: Prefix) -> Distribution | int:
        q = row(case.draft, prefix)
        return q.index(max(q)) if guess else q

    return World(3, lambda prefix: row(case.target, prefix), draft)


def small_worlds(verifier: str) -> dict[str, Any]:
    """Errors per case: of the rule by enumeration, of the running code over all coins, and of a wrong rule."""
    code = judge.CHAIN_JUDGES.get(verifier)
    rows = []
    for case in CASES:
        for guess in (False, True):
            w = world(case, guess=guess)
            wanted = target_law(w, LENGTH)
            row: dict[str, Any] = {"case": case.name, "draft": "guess" if guess else "sampled"}
            row["rule"] = distance(law(w, _rule(verifier), GAMMA, LENGTH), wanted)
            if code is not None:
                own = integrate(case.grid, code)
                row["code"] = distance(law(w, own, case.code_gamma(verifier), LENGTH), wanted)
            row["wrong_rule"] = distance(law(w, "full-p-repair", GAMMA, LENGTH), wanted)
            rows.append(row)
    return {
        "cases": rows,
        "max_rule_error": max(row["rule"] for row in rows),
        "max_code_error": max((row["code"] for row in rows if "code" in row), default=None),
        "wrong_rule_error": max(row["wrong_rule"] for row in rows),
        "extremes": None if code is None else extremes(code),
    }


def _rule(verifier: str) -> str:
    return {"tree": "coupling"}.get(verifier, verifier)  # a chain is a tree whose nodes have one child each


def extremes(code: Coupling) -> dict[str, int]:
    """Rows no table can hold: subnormal, equal up to an ulp, q = 0 at the draft. Counts what must never happen."""
    tiny = torch.finfo(torch.float32).tiny
    p = torch.tensor([
        [1 - 2 * tiny, tiny, tiny, 0.0],
        [0.5, 0.5, 0.0, 0.0],
        [1 / 3, 1 / 3, 1 / 3, 0.0],
        [0.0, 0.0, 0.0, 1.0],
    ])  # fmt: skip
    q = torch.tensor([
        [tiny, 1.0, 0.0, 0.0],
        [0.5, 0.5 - 2**-25, 2**-25, 0.0],
        [1 / 3 + 2**-25, 1 / 3, 1 / 3, 0.0],
        [0.0, 1.0, 0.0, 0.0],
    ])  # fmt: skip
    coins = torch.tensor([0.0, 2**-53, 0.25, 0.5, 1 - 2**-53], dtype=torch.float64)
    runs = torch.cartesian_prod(torch.arange(4), torch.arange(4), torch.arange(4), torch.arange(5), torch.arange(5))
    pick, source, token, a, b = runs.unbind(1)
    n = len(runs)
    rows = p[torch.stack((pick, (pick + 1) % 4), 1)].reshape(2 * n, 4)
    verdict = code(
        rows, torch.arange(0, 2 * n, 2), token.unsqueeze(1), torch.ones(n, dtype=torch.long), q, source.unsqueeze(1),
        coins[a].unsqueeze(1), coins[b],
    )  # fmt: skip
    final = rows[torch.arange(0, 2 * n, 2) + verdict.accepted]
    kept_impossible = (verdict.accepted == 1) & (p[pick, token] <= 0)
    drew_impossible = final.gather(1, verdict.token.unsqueeze(1)).squeeze(1) <= 0
    return {"runs": n, "kept_impossible": int(kept_impossible.sum()), "drew_impossible": int(drew_impossible.sum())}
