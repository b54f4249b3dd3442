"""The worked example of speculative sampling: why the token after a rejection must come from the residual."""

from __future__ import annotations

import torch

from constrained_spec.verify import World, acceptance, law, overlap, residual, target_law, total_variation

P, Q = (0.5, 0.3, 0.2), (0.6, 0.1, 0.3)  # target and draft over the tokens A, B, C


def main() -> None:
    p, q = torch.tensor(P, dtype=torch.float64), torch.tensor(Q, dtype=torch.float64)
    keep = acceptance(p.expand(3, 3), q.expand(3, 3), torch.arange(3))
    print(f"total variation {total_variation(p, q):.2f}, overlap {overlap(p, q):.2f}")
    print("a drafted A, B, C is kept with chance", [round(a, 4) for a in keep.tolist()])
    print("after a rejection, draw from", residual(p, q).tolist())

    world = World(vocab=3, target=lambda _: P, draft=lambda _: Q)
    for verifier in ("coupling", "full-p-repair"):
        got = law(world, verifier, gamma=1, length=1)
        chances = [round(got[token,], 6) for token in range(3)]
        exact = got.keys() == target_law(world, 1).keys() and all(abs(got[i,] - P[i]) < 1e-12 for i in range(3))
        print(f"{verifier}: A, B, C come out with chances {chances}, {'exactly p' if exact else 'NOT p'}")
        assert exact == (verifier == "coupling")
        assert verifier == "coupling" or chances == [0.6, 0.16, 0.24]


if __name__ == "__main__":
    main()
