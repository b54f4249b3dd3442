"""Three decoders in the world of three tokens, sampled and enumerated side by side.

The baseline draws token by token from the target. The exact decoder runs `verify.coupling`, the very function of the
engine. The third repairs a rejection with a draw from the whole target; it is WRONG, lives here alone, and shows that
the figures would tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import torch
from torch import Tensor

from constrained_spec.lab.speed import PRESETS, speedup
from constrained_spec.lab.world import DRAFT, GAMMA, LENGTH, TARGET, VOCAB, WORLD, rows
from constrained_spec.verify import (
    Coupling,
    Prefix,
    Verdict,
    coupling,
    expected_committed,
    inverse_cdf,
    law,
    overlap,
    residual,
    target_law,
    total_variation,
)

Json = dict[str, object]

TRIALS = 150_000  # of each decoder
FACES = 100
PAIRS = 20_000  # pairs of draws from the uniform law
SEEDS = {"baseline": 1, "exact": 2, "wrong_repair": 3, "uniform": 4}
# A sampled total variation is the exact one plus noise: for two samples of one law over 81 texts about .01.
EXACT_BELOW = 0.02
WRONG_ABOVE = 0.025


def full_p_repair(
    p: Tensor,
    first: Tensor,
    draft: Tensor,
    lengths: Tensor,
    q: Tensor | None,
    q_row: Tensor,
    accept_u: Tensor,
    draw_u: Tensor,
) -> Verdict:
    """WRONG, kept as a control: accepts as `coupling` does, and repairs from p instead of the residual."""
    accepted = coupling(p, first, draft, lengths, q, q_row, accept_u, draw_u).accepted
    return Verdict(accepted, inverse_cdf(p[first + accepted], draw_u))


def target_only(trials: int, seed: int) -> Tensor:  # -> [trials, LENGTH] int64
    """Texts drawn token by token from the target."""
    coins = _coins(seed)
    target = rows(TARGET)
    last = torch.full((trials,), VOCAB)
    texts = []
    for _ in range(LENGTH):
        last = inverse_cdf(target[last], coins(trials))
        texts.append(last)
    return torch.stack(texts, 1)


def speculative(verifier: Coupling, trials: int, seed: int) -> Tensor:  # -> [trials, LENGTH] int64
    """Texts decoded in rounds of ``GAMMA`` drafts, all trials at once, each at a place of its own."""
    coins = _coins(seed)
    target, proposal = rows(TARGET), rows(DRAFT)
    width = LENGTH + GAMMA + 1
    texts = torch.zeros(trials, width, dtype=torch.long)
    size = torch.zeros(trials, dtype=torch.long)
    last = torch.full((trials,), VOCAB)
    place = torch.arange(GAMMA + 1)
    while len(live := (size < LENGTH).nonzero().squeeze(1)):
        n = len(live)
        before = last[live].unsqueeze(1).repeat(1, GAMMA + 1)  # the token in front of each place of the block
        for j in range(GAMMA):
            before[:, j + 1] = inverse_cdf(proposal[before[:, j]], coins(n))
        draft = before[:, 1:]
        verdict = verifier(
            target[before].flatten(0, 1),
            torch.arange(n) * (GAMMA + 1),
            draft,
            torch.full((n,), GAMMA),
            proposal[before[:, :-1]].flatten(0, 1),
            torch.arange(n * GAMMA).view(n, GAMMA),
            coins(n, GAMMA),
            coins(n),
        )
        block = torch.cat((draft, verdict.token.unsqueeze(1)), 1)
        block[torch.arange(n), verdict.accepted] = verdict.token
        # What lies behind the committed tokens is overwritten by the next round, or trimmed at the end.
        texts[live.unsqueeze(1), size[live].unsqueeze(1) + place] = block
        size[live] += verdict.accepted + 1
        last[live] = verdict.token
    return texts[:, :LENGTH]


def frequencies(texts: Tensor) -> Tensor:  # [trials, LENGTH] -> [VOCAB ** LENGTH]
    """Share of each text, texts in the order of their digits."""
    return torch.bincount(_code(texts), minlength=VOCAB**LENGTH).double() / len(texts)


def exact_law(verifier: str) -> Tensor:  # -> [VOCAB ** LENGTH]
    """The same of the enumerated law of a verifier of `verify.law`."""
    return _dense(law(WORLD, verifier, GAMMA, LENGTH))


def simulate(trials: int = TRIALS) -> Json:
    """All figures, ready for JSON. Sampled ones come from fixed seeds, exact ones from enumeration."""
    baseline = frequencies(target_only(trials, SEEDS["baseline"]))
    sampled = {
        "exact": frequencies(speculative(coupling, trials, SEEDS["exact"])),
        "wrong_repair": frequencies(speculative(full_p_repair, trials, SEEDS["wrong_repair"])),
    }
    target = _dense(target_law(WORLD, LENGTH))
    enumerated = {"exact": exact_law("coupling"), "wrong_repair": exact_law("full-p-repair")}
    variation = {
        f"baseline_{name}": {
            "sampled": _round(total_variation(baseline, sampled[name])),
            "exact": _round(total_variation(target, enumerated[name])),
        }
        for name in sampled
    }
    return {
        "world": {"vocabulary": VOCAB, "length": LENGTH, "gamma": GAMMA, "trials": trials, "seeds": SEEDS},
        "first_step": first_step(),
        "total_variation": {
            "baseline_exact": {**variation["baseline_exact"], "below": EXACT_BELOW},
            "baseline_wrong_repair": {**variation["baseline_wrong_repair"], "above": WRONG_ABOVE},
        },
        "identical_uniform": identical_uniform(),
        "speed_model": speed_model(),
    }


def first_step() -> Json:
    """What the first step of the world is made of."""
    p, q = (torch.tensor(table[()], dtype=torch.float64) for table in (TARGET, DRAFT))
    return {
        "p": list(TARGET[()]),
        "q": list(DRAFT[()]),
        "total_variation": _round(total_variation(p, q)),
        "acceptance": _round(overlap(p, q)),
        "residual": [_round(r) for r in residual(p, q)],
    }


def identical_uniform() -> Json:
    """Two draws from one uniform law seldom agree by themselves; coupled they always do."""
    coins = _coins(SEEDS["uniform"])
    p = torch.full((2, FACES), 1 / FACES, dtype=torch.float64)
    faces = p[0].expand(PAIRS, -1)
    draft, other = inverse_cdf(faces, coins(PAIRS)), inverse_cdf(faces, coins(PAIRS))
    zeros = torch.zeros(PAIRS, dtype=torch.long)
    kept = coupling(
        p, zeros, draft.unsqueeze(1), zeros + 1, p[:1], zeros.unsqueeze(1), coins(PAIRS, 1), coins(PAIRS)
    ).accepted
    return {
        "faces": FACES,
        "trials": PAIRS,
        "independent_matches": {
            "sampled": _round((draft == other).double().mean()),
            "exact": _round((p[0] * p[0]).sum()),
        },
        "coupled_acceptance": {"sampled": _round(kept.double().mean()), "exact": _round(overlap(p[0], p[0]))},
    }


def speed_model() -> Json:
    """The cost model at the first preset."""
    preset = PRESETS[0]
    return {
        "preset": preset.name,
        "alpha": preset.alpha,
        "gamma": preset.gamma,
        "milliseconds": asdict(preset.costs),
        "expected_tokens": round(expected_committed(preset.alpha, preset.gamma), 5),
        "speedup": round(speedup(preset.alpha, preset.gamma, preset.costs), 5),
    }


def _coins(seed: int) -> Callable[..., Tensor]:
    """A source of coins in [0, 1) of its own: ``coins(n, ...)`` has that shape."""
    source = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.rand(*shape, generator=source, dtype=torch.float64)


def _dense(exact: dict[Prefix, float]) -> Tensor:
    chances = torch.tensor(list(exact.values()), dtype=torch.float64)
    return torch.zeros(VOCAB**LENGTH, dtype=torch.float64).index_add(0, _code(torch.tensor(list(exact))), chances)


def _code(texts: Tensor) -> Tensor:  # [n, LENGTH] -> [n]
    return (texts * VOCAB ** torch.arange(LENGTH)).sum(1)


def _round(value: Tensor) -> float:
    return round(float(value), 6)
