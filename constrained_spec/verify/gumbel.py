"""How often two choices that share Gumbel noise agree, in closed form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise


def gumbel_joint(p: Sequence[float], q: Sequence[float]) -> list[list[float]]:
    """Joint law J[i][j] = P(argmax(log p + g) = i and argmax(log q + g) = j), g standard Gumbel, shape [V][V].

    Derivation. With E = exp(-g), iid standard exponential, the choices are argmin E/p and argmin E/q. Write
    r_k = p_k / q_k and M(s) = sum_k max(p_k, s q_k).

    Equal, i = j: every other E_k must exceed E_i max(p_k/p_i, q_k/q_i); integrating over E_i gives p_i / M(r_i).
    Different: given E_i = a and E_j = t a, every k needs E_k > a max(p_k/p_i, t q_k/q_j), and i, j themselves need
    p_j/p_i < t < q_j/q_i. Integrating over a leaves 1 / (sum_k max(p_k/p_i, t q_k/q_j))^2, and s = t p_i/q_j turns it
    into p_i q_j * integral of ds / M(s)^2 from r_j to r_i, or zero if r_j >= r_i. M is linear between neighbouring
    ratios, where the integral from a to b is (b - a) / (M(a) M(b)), and 1 / (M(a) sum q) for b infinite.
    """
    total_q = math.fsum(q)
    ratio = [a / b if b > 0 else math.inf for a, b in zip(p, q, strict=True)]
    knots = sorted({r for r in ratio if r < math.inf})

    def envelope(s: float) -> float:
        return math.fsum(max(a, s * b) for a, b in zip(p, q, strict=True))

    def integral(low: float, high: float) -> float:
        ends = [low, *(s for s in knots if low < s < high), high]
        pieces = pairwise(ends)
        return math.fsum(
            1 / (envelope(a) * total_q) if b == math.inf else (b - a) / (envelope(a) * envelope(b)) for a, b in pieces
        )

    def cell(i: int, j: int) -> float:
        if p[i] <= 0 or q[j] <= 0:
            return 0.0
        if i == j:
            return p[i] / envelope(ratio[i])
        return p[i] * q[j] * integral(ratio[j], ratio[i]) if ratio[j] < ratio[i] else 0.0

    return [[cell(i, j) for j in range(len(q))] for i in range(len(p))]
