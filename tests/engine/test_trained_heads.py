"""Medusa and EAGLE: the law on a small world, their own state at every cut, failures, refusals, the shipped parts."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections import Counter
from collections.abc import Sequence as Seq
from pathlib import Path

import pytest
import torch
from torch import Tensor

from constrained_spec.api import Engine
from constrained_spec.backends.base import Block
from constrained_spec.backends.toy import ToyModel
from constrained_spec.coins import Coins
from constrained_spec.config import Sampling
from constrained_spec.drafters.base import Drafter, Proposal
from constrained_spec.drafters.eagle import EagleDrafter
from constrained_spec.drafters.heads import HeadDrafter
from constrained_spec.drafters.manifest import Manifest, Part, load_part, require_target, save_part, shipped_part
from constrained_spec.drafters.medusa import MedusaDrafter
from constrained_spec.engine.round import Row, run_round
from constrained_spec.errors import ModelError, VocabularyMismatchError
from constrained_spec.grammars.compile import Regex, compile_constraint
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Counts, Sequence
from constrained_spec.state.transaction import Commit, Transaction
from tests.engine.drafter_laws import assert_frequencies
from tests.engine.plain import commit_singly

TOKENS = (None, b"a", b"b", b"c")
SIZE, LENGTH, RUNS = 8, 4, 600
KINDS: dict[str, type[HeadDrafter]] = {"medusa": MedusaDrafter, "eagle": EagleDrafter}


class StateToy(ToyModel):
    """A world whose logits are a product of a state that the last tokens and their number decide."""

    def __init__(
        self,
        seed: int = 1,
        *,
        slots: int = 1,
        capacity: int = 24,
        shows: bool = True,
        tokens: Seq[bytes | None] = TOKENS,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._head = torch.randn(len(tokens), SIZE, generator=generator) * 0.6
        self._table = torch.randn(len(tokens), SIZE, generator=generator)
        self._seed, self._shows = seed, shows
        self._known: dict[int, Tensor] = {}
        super().__init__(tokens, lambda prefix: self._head @ self.state(prefix), eos_ids=(0,), slots=slots,
                         capacity=capacity)  # fmt: skip

    def state(self, prefix: tuple[int, ...]) -> Tensor:
        key = sum((t + 1) * 7**i for i, t in enumerate(prefix[-4:])) + 10_007 * self._seed + 99 * len(prefix)
        if key not in self._known:
            self._known[key] = torch.randn(SIZE, generator=torch.Generator().manual_seed(key))
        return self._known[key]

    @property
    def feature_size(self) -> int:
        return SIZE

    def weights_digest(self) -> str:
        return hashlib.blake2b(self._head.numpy().tobytes(), digest_size=16).hexdigest()

    def keep_features(self) -> None:
        pass

    def features(self, slot: int) -> Tensor | None:
        held = self._slots[slot]
        states = [self.state(tuple(held[: i + 1])) for i in range(len(held))]
        return torch.stack([torch.empty(SIZE), *states])[1:] if self._shows else None

    def embed(self, ids: Tensor) -> Tensor:
        return self._table[ids]

    def head_rows(self, ids: Tensor) -> Tensor:
        return self._head[ids]


def random_part(kind: str, model: StateToy, reduced: Seq[int] = range(4)) -> Part:
    """Heads of noise: they draft anything, mostly wrong."""
    generator = torch.Generator().manual_seed(5)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * 0.5

    if kind == "medusa":
        t = {"shared": noise(SIZE, 2 * SIZE), "up": noise(3, 6, 2 * SIZE), "down": noise(3, SIZE, 6)}
        t |= {name: torch.ones(SIZE) for name in ("norm_state", "norm_token")}
        shape = {"heads": 3.0, "hidden": SIZE, "inner": 6, "epsilon": 1e-6}
    else:
        norms = ("norm_state", "norm_token", "norm_attention", "norm_mlp", "norm_out")
        t = {name: 1 + noise(SIZE) * 0.1 for name in norms}
        t |= {"fuse": noise(SIZE, 2 * SIZE), "q": noise(8, SIZE), "k": noise(4, SIZE), "v": noise(4, SIZE)}
        t |= {"o": noise(SIZE, 8), "gate": noise(12, SIZE), "up": noise(12, SIZE), "down": noise(SIZE, 12)}
        shape = {"hidden": SIZE, "heads": 2, "kv_heads": 1, "head_dim": 4, "epsilon": 1e-6, "rope_theta": 10_000.0}
    manifest = Manifest(kind, model.name, model.weights_digest(), model.vocabulary.digest, shape)
    return Part(manifest, {**t, "reduced": torch.tensor(list(reduced))})


def heads(kind: str, model: StateToy, *, reduced: Seq[int] = range(4), least: float = 0.0) -> HeadDrafter:
    return KINDS[kind](model, Pipeline(model.vocabulary), random_part(kind, model, reduced), least=least)


def new_sequence(
    model: ToyModel, sampling: Sampling, seed: int = 0, pattern: str | None = None, prompt: Seq[int] = (1, 2)
) -> Sequence:
    grammar = None if pattern is None else compile_constraint(Regex(pattern), model.vocabulary)
    model.set_length(0, 0)
    return Sequence(
        prompt=prompt, sampling=sampling, coins=Coins(seed), vocabulary=model.vocabulary, target=model, slot=0,
        capacity=model.capacity, matcher=grammar.matcher() if grammar else None,
    )  # fmt: skip


# ---- law ------------------------------------------------------------------------------------------------------------

SAMPLINGS = {
    "plain": Sampling(temperature=1.0, max_tokens=LENGTH),
    "processed": Sampling(
        temperature=0.8, top_p=0.9, presence_penalty=0.6, repetition_penalty=1.2, logit_bias={2: 0.7}, max_tokens=LENGTH
    ),
}


def exact_law(model: ToyModel, sampling: Sampling, pattern: str | None) -> dict[tuple[int, ...], float]:
    def walk(path: tuple[int, ...]) -> dict[tuple[int, ...], float]:
        s = new_sequence(model, sampling, 0, pattern)
        for token in path:
            with Transaction(s) as tx:
                tx.commit(0, token)
        if s.finished:
            return {path: 1.0}
        with Transaction(s) as tx:
            logits = model.score([Block(0, s.pending, want=1)])
            p = Pipeline(model.vocabulary).process(logits, [tx.position]).probabilities()[0].double().tolist()
        return {k: v * c for t, c in enumerate(p) if c > 0 for k, v in walk((*path, t)).items()}

    return walk(())


def answers_follow_the_law(
    model: ToyModel, drafter: Drafter, gamma: int, verifier: str, sampling: Sampling, pattern: str | None, runs: int
) -> list[Counts]:
    """Frequencies of whole texts against the enumerated law; false-alarm rate 1e-6, fixed seeds. Counts of each run."""
    law = exact_law(model, sampling, pattern)
    assert sum(law.values()) == pytest.approx(1, abs=1e-6)
    seen: Counter[tuple[int, ...]] = Counter()
    counts = []
    for seed in range(runs):
        s = new_sequence(model, sampling, seed, pattern)
        drafter.open(s)
        while not s.finished:
            [outcome] = run_round(model, Pipeline(model.vocabulary), [Row(s, drafter, gamma, verifier)]).outcomes
            assert isinstance(outcome, Commit)
        assert not s.disabled, s.disabled
        drafter.close(s)
        counts.append(s.counts)
        seen[tuple(s.output)] += 1
    assert_frequencies(seen, law, runs)
    return counts


@pytest.mark.parametrize(("sampling", "pattern"), [("plain", None), ("processed", r"(a|b)+c?")])
@pytest.mark.parametrize(("kind", "reduced", "least", "verifier"), [
    ("medusa", range(4), 0.0, "coupling"), ("medusa", (1, 2), 0.2, "coupling"), ("medusa", range(4), 0.0, "invariant"),
    ("eagle", range(4), 0.0, "coupling"), ("eagle", (0, 2), 0.2, "coupling"), ("eagle", range(4), 0.0, "invariant"),
])  # fmt: skip
def test_the_committed_law_is_the_targets(
    kind: str, reduced: Seq[int], least: float, verifier: str, sampling: str, pattern: str | None
) -> None:
    model = StateToy()
    drafter = heads(kind, model, reduced=reduced, least=least)
    counts = answers_follow_the_law(model, drafter, 3, verifier, SAMPLINGS[sampling], pattern, RUNS)
    assert sum(c.accepted for c in counts) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_invariant_text_does_not_depend_on_the_drafter(kind: str) -> None:
    model = StateToy()
    drafter = heads(kind, model)
    for seed in range(25):
        texts = set()
        for use, gamma in ((None, 1), (drafter, 1), (drafter, 4)):
            s = new_sequence(model, Sampling(temperature=1.0, max_tokens=10), seed)
            if use is not None:
                use.open(s)
            while not s.finished:
                run_round(model, Pipeline(model.vocabulary), [Row(s, use, gamma, "invariant")])
            if use is not None:
                use.close(s)
            texts.add(tuple(s.output))
        assert len(texts) == 1, (seed, texts)


# ---- state ----------------------------------------------------------------------------------------------------------


class Cut:
    """Drafts with ``inner``; the test then commits at the cut it wants."""

    def __init__(self, inner: HeadDrafter) -> None:
        self.inner = inner

    def block(self, s: Sequence, gamma: int) -> tuple[Transaction, list[int]]:
        tx = Transaction(s)
        tx.__enter__()
        proposal = Proposal(tx, gamma, "coupling")
        self.inner.propose([proposal])
        return tx, list(proposal.tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_every_cut_leaves_the_state_of_a_fresh_replay(kind: str) -> None:
    sampling = Sampling(temperature=1.0, max_tokens=12, ignore_eos=True)
    for seed, cut in itertools.product(range(4), range(4)):
        model = StateToy(capacity=32)
        drafter = heads(kind, model)
        s = new_sequence(model, sampling, seed)
        drafter.open(s)
        run_round(model, Pipeline(model.vocabulary), [Row(s, drafter, 3, "coupling")])  # reads the prompt
        before = s.fingerprint()
        tx, drafts = Cut(drafter).block(s, 3)
        assert len(drafts) == 3
        tx.__exit__(None, None, None)
        assert s.fingerprint() == before, "a block that is abandoned leaves nothing"
        tx, again = Cut(drafter).block(s, 3)
        assert again == drafts, "the same coins, the same state: the same drafts"
        model.score([Block(0, s.history.tokens[s.kv.length :], want=1)])
        tx.commit(cut, 3)
        tx.__exit__(None, None, None)
        tx, now = Cut(drafter).block(s, 3)
        tx.__exit__(None, None, None)

        other = StateToy(capacity=32)
        fresh = heads(kind, other)
        r = new_sequence(other, sampling, seed)
        fresh.open(r)
        commit_singly(other, r, s.output)
        r.counts.rounds = s.counts.rounds
        tx, expected = Cut(fresh).block(r, 3)
        tx.__exit__(None, None, None)
        assert now == expected
        assert s.history.tokens == r.history.tokens


def test_eagles_cache_holds_true_states_only() -> None:
    model = StateToy(capacity=32)
    drafter = heads("eagle", model)
    assert isinstance(drafter, EagleDrafter)
    s = new_sequence(model, Sampling(temperature=1.0, max_tokens=14, ignore_eos=True), 7)
    drafter.open(s)
    while not s.finished:
        run_round(model, Pipeline(model.vocabulary), [Row(s, drafter, 3, "coupling")])
    assert s.counts.proposed > s.counts.accepted > 0
    held = drafter.slots.length(0)
    assert 0 < held < len(s.history)
    ours = drafter.slots.both[0, :, :, :held].clone()
    # The same text in one go: what rejected drafts wrote is nowhere.
    other = StateToy(capacity=32)
    fresh = heads("eagle", other)
    assert isinstance(fresh, EagleDrafter)
    r = new_sequence(other, Sampling(max_tokens=14), 7, prompt=s.history.tokens[: held + 1])
    fresh.open(r)
    other.score([Block(0, s.history.tokens[:held], want=1)])
    with Transaction(r) as tx:
        fresh.propose([Proposal(tx, 1, "coupling")])
        assert fresh.slots.length(0) == held
        torch.testing.assert_close(fresh.slots.both[0, :, :, :held], ours, rtol=1e-5, atol=1e-5)


def test_rows_of_a_batch_draft_as_if_alone() -> None:
    sampling = Sampling(temperature=1.0, max_tokens=10, ignore_eos=True)
    prompts = ((1, 2), (3, 1, 2, 2), (2,))
    for kind in KINDS:
        alone = []
        for seed, prompt in enumerate(prompts):
            model = StateToy()
            drafter = heads(kind, model)
            s = new_sequence(model, sampling, seed, prompt=prompt)
            drafter.open(s)
            while not s.finished:
                run_round(model, Pipeline(model.vocabulary), [Row(s, drafter, 3, "coupling")])
            alone.append((s.output, s.counts.accepted))
        model = StateToy(slots=3)
        drafter = heads(kind, model)
        rows = []
        for slot, prompt in enumerate(prompts):
            s = Sequence(
                prompt=prompt, sampling=sampling, coins=Coins(slot), vocabulary=model.vocabulary, target=model,
                slot=slot, capacity=model.capacity,
            )  # fmt: skip
            drafter.open(s)
            rows.append(Row(s, drafter, 3, "coupling"))
        while live := [row for row in rows if not row.sequence.finished]:
            run_round(model, Pipeline(model.vocabulary), live)
        assert [(row.sequence.output, row.sequence.counts.accepted) for row in rows] == alone, kind


# ---- a mixture, failures --------------------------------------------------------------------------------------------


class Behind:
    """A guess at the start of every block, then what the heads add to it."""

    name = "behind"

    def __init__(self, inner: HeadDrafter) -> None:
        self.inner = inner

    def open(self, sequence: Sequence) -> None:
        self.inner.open(sequence)

    def close(self, sequence: Sequence) -> None:
        self.inner.close(sequence)

    def propose(self, proposals: Seq[Proposal]) -> None:
        for p in proposals:
            if p.room > 0 and not p.tokens:
                p.point(1, self.name)
        self.inner.propose(proposals)


@pytest.mark.parametrize("kind", KINDS)
def test_the_heads_go_on_behind_other_drafts(kind: str) -> None:
    model = StateToy(capacity=64)
    drafter = Behind(heads(kind, model))
    s = new_sequence(model, Sampling(temperature=1.0, max_tokens=30, ignore_eos=True), 3)
    drafter.open(s)
    kept = 0
    while not s.finished:
        before = s.counts.by_source.get(kind, [0, 0])[1]
        run_round(model, Pipeline(model.vocabulary), [Row(s, drafter, 5, "coupling")])
        kept += s.counts.by_source.get(kind, [0, 0])[1] > before
    assert not s.disabled
    # The first round has no final states; in every other one with room the heads speak behind the guess.
    assert s.counts.by_source[kind][0] > s.counts.rounds
    assert kept > 0


def test_eagle_keeps_silent_behind_more_drafts_than_it_bridges() -> None:
    model = StateToy()
    part = random_part("eagle", model)
    drafter = Behind(EagleDrafter(model, Pipeline(model.vocabulary), part, bridge=0))
    s = new_sequence(model, Sampling(temperature=1.0, max_tokens=8, ignore_eos=True), 3)
    drafter.open(s)
    while not s.finished:
        run_round(model, Pipeline(model.vocabulary), [Row(s, drafter, 5, "coupling")])
    assert "eagle" not in s.counts.by_source


@pytest.mark.parametrize("kind", KINDS)
def test_heads_that_are_not_finite_are_switched_off(kind: str) -> None:
    model = StateToy()
    part = random_part(kind, model)
    tensors = {**part.tensors, "down": part.tensors["down"] * float("nan")}
    drafter = KINDS[kind](model, Pipeline(model.vocabulary), Part(part.manifest, tensors))
    texts = []
    for use in (None, drafter):
        s = new_sequence(model, Sampling(max_tokens=8, ignore_eos=True))
        if use is not None:
            use.open(s)
        while not s.finished:
            run_round(model, Pipeline(model.vocabulary), [Row(s, use, 3, "coupling")])
        texts.append(s.output)
    assert "not finite" in s.disabled[kind]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("kind", KINDS)
def test_without_final_states_or_legal_ids_nothing_is_drafted(kind: str) -> None:
    blind = StateToy(shows=False)
    s = new_sequence(blind, Sampling(max_tokens=6, ignore_eos=True))
    drafter = heads(kind, blind)
    drafter.open(s)
    banned = StateToy()
    t = new_sequence(banned, Sampling(max_tokens=6, ignore_eos=True, suppress_tokens=(1, 2)))
    other = heads(kind, banned, reduced=(1, 2))
    other.open(t)
    for model, sequence, use in ((blind, s, drafter), (banned, t, other)):
        while not sequence.finished:
            run_round(model, Pipeline(model.vocabulary), [Row(sequence, use, 3, "coupling")])
        assert not sequence.disabled
        assert sequence.counts.proposed == 0


# ---- parts ----------------------------------------------------------------------------------------------------------


def test_a_part_survives_the_disk(tmp_path: Path) -> None:
    model = StateToy()
    part = random_part("eagle", model)
    path = save_part(part, tmp_path)
    back = load_part(path)
    assert back.manifest.weights_digest
    assert dataclasses.replace(back.manifest, weights_digest="") == part.manifest
    assert back.tensors.keys() == part.tensors.keys()
    for name, tensor in part.tensors.items():
        torch.testing.assert_close(back.tensors[name].to(tensor.dtype), tensor, rtol=1e-3, atol=1e-3)
    assert load_part(tmp_path).manifest == back.manifest
    data = bytearray(path.with_suffix(".safetensors").read_bytes())
    data[-1] ^= 1
    path.with_suffix(".safetensors").write_bytes(bytes(data))
    with pytest.raises(ModelError, match="not those of the manifest"):
        load_part(path)
    path.write_text("{}")
    with pytest.raises(ModelError, match="no manifest"):
        load_part(path)
    with pytest.raises(ModelError, match="no part"):
        load_part(tmp_path / "..")


def test_a_part_of_another_target_is_refused() -> None:
    part = random_part("medusa", StateToy(seed=1))
    other = StateToy(seed=2)
    with pytest.raises(ModelError, match=other.weights_digest()):
        MedusaDrafter(other, Pipeline(other.vocabulary), part)
    known = dataclasses.replace(part.manifest, variants={"int8": other.weights_digest()})
    with pytest.raises(ModelError, match="int8 variant"):
        require_target(Part(known, part.tensors), other)
    require_target(Part(known, part.tensors), other, allow_variants=True)
    strange = dataclasses.replace(part.manifest, vocabulary_digest="0" * 32)
    with pytest.raises(VocabularyMismatchError, match="0" * 32):
        require_target(Part(strange, part.tensors), StateToy(seed=1))
    with pytest.raises(ModelError, match="kind 'medusa'"):
        EagleDrafter(StateToy(seed=1), Pipeline(other.vocabulary), part)


@pytest.mark.model
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("constraint", [None, {"type": "object", "properties": {"name": {"type": "string"}, "n": {
    "type": "integer"}}, "required": ["name", "n"], "additionalProperties": False}])  # fmt: skip
def test_shipped_parts_keep_the_greedy_text(smollm2: Engine, kind: str, constraint: object) -> None:
    part = shipped_part(kind, smollm2.model)
    assert part is not None
    drafter = KINDS[kind](smollm2.model, Pipeline(smollm2.model.vocabulary), part)
    accepted = 0
    for text in ("List the colours of the Italian flag.", "Extract name and number: Ada ordered 36 bolts."):
        prompt = [{"role": "user", "content": text}]
        plain = smollm2.generate(prompt, constraint, max_tokens=32, drafter="none")
        result = smollm2.generate(prompt, constraint, max_tokens=32, drafter=drafter, gamma=4)
        assert result.tokens == plain.tokens
        assert result.speculation.disabled_reason is None
        accepted += result.speculation.accepted
    assert accepted > 0
