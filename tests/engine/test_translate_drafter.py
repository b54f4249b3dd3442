"""A draft model with another tokeniser: its text or its common tokens are drafts, exact whatever the way loses."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from constrained_spec.api import Engine
from constrained_spec.backends.base import Block
from constrained_spec.backends.toy import ToyModel
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.coins import Coins
from constrained_spec.config import Sampling
from constrained_spec.drafters.base import Drafter, Proposal
from constrained_spec.drafters.draft_context import DraftContext
from constrained_spec.drafters.mixture import MixtureDrafter
from constrained_spec.drafters.model import ModelDrafter
from constrained_spec.drafters.respell import Speller, without_partial
from constrained_spec.drafters.translate import Mode, TranslateDrafter, common_tokens
from constrained_spec.engine.round import Row, run_round
from constrained_spec.errors import ConfigError, VocabularyMismatchError
from constrained_spec.grammars.compile import Choice, Regex, compile_constraint
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.transaction import Transaction
from constrained_spec.types import Vocabulary
from tests.engine.drafter_laws import RUNS, assert_target_law
from tests.engine.test_round_law import Parrot, _Once, table

MODES: tuple[Mode, ...] = ("tokens", "text")
ALL_BYTES = tuple(bytes([b]) for b in range(256))
TARGET: tuple[bytes | None, ...] = (None, *ALL_BYTES, b"the ", b"cat", b" sat", b"on", b" mat", b"ca", b" the")
DRAFT: tuple[bytes | None, ...] = (None, b"he ", b"cat", b" s", b"at", b" on", b"mat", b"t", b" the", *ALL_BYTES)


class Writer(ToyModel):
    """Continues the text after the prompt "> " as ``script`` goes on, in its own longest tokens; then EOS."""

    def __init__(
        self, tokens: Seq[bytes | None], script: bytes, *, slots: int = 2, capacity: int = 256,
        encode: Callable[[str], str] = str,
    ) -> None:  # fmt: skip
        super().__init__(tokens, self._next, eos_ids=(0,), slots=slots, capacity=capacity)
        self._script = b"> " + script
        plain = self._vocabulary
        if encode is not str:
            changed = Vocabulary(plain.tokens, plain.eos_ids, plain.special, lambda text: self.encode(encode(text)))
            self._vocabulary = changed
        self.fed = 0

    def _next(self, prefix: tuple[int, ...]) -> Tensor:
        row = torch.full((self._vocabulary.size,), -10.0)
        text = self._vocabulary.bytes_of(prefix)
        rest = self._script[len(text) :] if self._script.startswith(text) else b""
        best = max(
            (i for i, t in enumerate(self._vocabulary.tokens) if t and rest.startswith(t)),
            key=lambda i: len(self._vocabulary.tokens[i] or b""),
            default=0,
        )
        row[best] = 10.0
        return row

    def score(self, blocks: Seq[Block]) -> Tensor:
        self.fed += sum(len(b.tokens) for b in blocks)
        return super().score(blocks)


TEXT = b"the cat sat on the mat, the mat sat on the cat; the end"


def request(
    target: ToyModel, drafter: Drafter | None, pattern: str | None = None, gamma: int = 8, prompt: str = "> "
) -> Sequence:  # fmt: skip
    grammar = None if pattern is None else compile_constraint(Regex(pattern), target.vocabulary)
    target.set_length(0, 0)
    s = Sequence(
        prompt=target.encode(prompt), sampling=Sampling(max_tokens=100), coins=Coins(5), vocabulary=target.vocabulary,
        target=target, slot=0, capacity=target.capacity, matcher=grammar.matcher() if grammar else None,
    )  # fmt: skip
    if drafter is not None:
        drafter.open(s)
    pipeline = Pipeline(target.vocabulary)
    while not s.finished:
        run_round(target, pipeline, [Row(s, drafter, gamma, "coupling")])
    if drafter is not None:
        drafter.close(s)
    return s


def translator(
    target: ToyModel, draft: ToyModel, mode: Mode, prefix: Seq[int] = (), sample: bool = False
) -> TranslateDrafter:
    pipeline = Pipeline(target.vocabulary)
    return TranslateDrafter(draft, pipeline, target.vocabulary, mode=mode, prefix=prefix, sample=sample)


# ---- the way between two vocabularies -------------------------------------------------------------------------------


def test_common_tokens_have_the_same_bytes_and_are_one_to_one() -> None:
    target = ToyModel([None, b"a", b"b", b"ab", b"a", None], lambda _: torch.zeros(6), eos_ids=(0, 5)).vocabulary
    draft = ToyModel([b"ab", b"a", b"a", None, b"x"], lambda _: torch.zeros(5), eos_ids=(3,)).vocabulary
    assert common_tokens(target, draft) == {1: 1, 3: 0, 0: 3}


@given(st.text(max_size=40), st.integers(0, 8), st.integers(0, 8))
def test_exact_spelling_stands_for_a_beginning_of_the_bytes(text: str, start: int, stop: int) -> None:
    vocabulary = ToyModel(DRAFT, lambda _: torch.zeros(len(DRAFT)), eos_ids=(0,)).vocabulary
    data = text.encode()[start:]
    data = data[: len(data) - stop] if stop < len(data) else data
    # This vocabulary has every byte, so the whole is spelled, characters cut in two included.
    assert vocabulary.bytes_of(Speller(vocabulary).exact(data)) == data
    assert vocabulary.bytes_of(Speller(vocabulary).loose(data)) == data
    assert data.startswith(without_partial(data)) and len(data) - len(without_partial(data)) <= 3
    whole = text.encode()
    assert without_partial(whole) == whole


_WORDS = st.sampled_from([b"word ", b"a", b"\n", b"\xc3", b"\xa9", b"\xf0\x9f", b"x" * 300, b" ", b"", None])


@given(st.lists(_WORDS, max_size=60), st.data())
def test_the_context_is_a_function_of_the_tokens(words: list[bytes | None], data: st.DataObject) -> None:
    pieces: tuple[bytes | None, ...] = (None, *dict.fromkeys(w for w in words if w is not None))
    target = Vocabulary(pieces, (0,), {"<0>": 0}, lambda _: [])
    draft = Vocabulary(tuple(DRAFT), (0,), {"<0>": 0}, ToyModel(DRAFT, lambda _: torch.zeros(1), eos_ids=(0,)).encode)
    tokens = [pieces.index(w) for w in words]
    context = DraftContext(target, Speller(draft), [0])
    for i, token in enumerate(tokens):
        mark, before = context.mark(), context.fingerprint()
        ahead = tokens[i : i + data.draw(st.integers(0, 5))]
        foreseen = context.tokens(ahead)
        assert context.fingerprint() == before
        for t in ahead:
            context.advance(t)
        assert context.tokens() == foreseen
        context.rollback(mark)
        assert context.fingerprint() == before
        context.advance(token)
    fresh = DraftContext(target, Speller(draft), [0])
    for token in tokens:
        fresh.advance(token)
    assert fresh.fingerprint() == context.fingerprint()
    # Nothing of the text is lost: this draft vocabulary can spell everything.
    assert draft.bytes_of(context.tokens()) == b"".join(w or b"" for w in words)


def test_the_beginning_token_of_the_draft_is_not_doubled() -> None:
    target = Vocabulary((None, b"a"), (0,), {"<s>": 0}, lambda _: [])
    draft = Vocabulary((b"a", None, None), (2,), {"<s>": 1, "</s>": 2}, lambda text: [0] * len(text))
    context = DraftContext(target, Speller(draft), [1])
    for token in (0, 1, 1):
        context.advance(token)
    assert context.tokens() == [1, 0, 0]
    context.advance(0)
    assert context.tokens([1]) == [1, 0, 0, 1, 0]  # in the middle of a text it is a token like any other


# ---- whole requests -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pattern", [None, r"[a-z ,;]+", r"the c[aeiou]t.*"])
def test_greedy_text_is_the_targets_and_needs_fewer_passes(mode: Mode, pattern: str | None) -> None:
    target, draft = Writer(TARGET, TEXT), Writer(DRAFT, TEXT)
    s, alone = request(target, translator(target, draft, mode), pattern), request(target, None, pattern)
    assert not s.disabled
    assert s.output == alone.output
    if pattern is None:
        assert s.text.finish() == TEXT.decode()
        # The common tokens stop the one where the draft's own pieces ("he ", " s") are what it wants to say.
        assert s.counts.rounds <= alone.counts.rounds / (3 if mode == "text" else 1.4)
        assert s.counts.accepted >= (0.8 if mode == "text" else 0.3) * len(s.output)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "change", [str.upper, lambda t: " " + t, lambda t: t.replace(" ", ""), lambda t: t * 2, lambda _: ""]
)
def test_a_tokeniser_that_changes_the_text_costs_acceptance_only(mode: Mode, change: Callable[[str], str]) -> None:
    target = Writer(TARGET, TEXT)
    for prefix in ([], [0], [5, 0]):
        draft = Writer(DRAFT, TEXT, encode=change)
        s = request(target, translator(target, draft, mode, prefix))
        assert not s.disabled
        assert s.text.finish() == TEXT.decode()


@pytest.mark.parametrize("mode", MODES)
def test_the_slot_keeps_what_still_holds(mode: Mode) -> None:
    target, draft = Writer(TARGET, TEXT), Writer(DRAFT, TEXT)
    s = request(target, translator(target, draft, mode), gamma=4)
    tokens = len(draft.encode("> " + TEXT.decode()))
    # Prompt and text once, and per round a few tokens that were rejected or are read in another way now.
    assert draft.fed <= tokens + 12 * s.counts.rounds


@pytest.mark.parametrize("mode", MODES)
def test_characters_of_several_bytes_are_crossed(mode: Mode) -> None:
    text = "caf\u00e9 \U0001f30a caf\u00e9 \U0001f30a!".encode()
    # The target takes the wave in two halves, the draft in four bytes or at once.
    target = Writer((*TARGET, b"\xf0\x9f", b"\x8c\x8a"), text)
    for extra in ((), ("\U0001f30a".encode(), "\u00e9 ".encode())):
        s = request(target, translator(target, Writer((*DRAFT, *extra), text), mode))
        assert not s.disabled
        assert s.text.finish().encode() == text
        if mode == "text":
            assert s.counts.accepted >= len(s.output) / 2


def test_the_draft_models_end_is_the_targets_end() -> None:
    target, draft = Writer(TARGET, b"cat"), Writer(DRAFT, b"cat")
    s = request(target, translator(target, draft, "text"))
    assert s.counts.rounds == 1 + (s.counts.accepted < 1)
    assert s.output == [TARGET.index(b"cat"), 0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cut", range(4))
def test_every_cut_leaves_the_state_of_a_replay(mode: Mode, cut: int) -> None:
    target, draft = Writer(TARGET, TEXT), Writer(DRAFT, TEXT)
    drafter = translator(target, draft, mode)

    def opened(slot: int) -> Sequence:
        target.set_length(slot, 0)
        s = Sequence(
            prompt=target.encode("> "), sampling=Sampling(max_tokens=40), coins=Coins(0), vocabulary=target.vocabulary,
            target=target, slot=slot, capacity=256,
        )  # fmt: skip
        drafter.open(s)
        return s

    def proposed(s: Sequence) -> list[int]:
        with Transaction(s) as tx:
            proposal = Proposal(tx, 6, "coupling")
            drafter.propose([proposal])
            return list(proposal.tokens)

    s = opened(0)
    wrong = TARGET.index(b"z")
    for i in range(5):
        with Transaction(s) as tx:
            proposal = Proposal(tx, 6, "coupling")
            drafter.propose([proposal])
            # The end of the text would end the request: an end among the drafts is rejected here.
            kept = min(cut, [*proposal.tokens, 0].index(0))
            # A wrong token now and then, else the draft's own next one or the text's.
            rest = TEXT[len(target.vocabulary.bytes_of(s.output)) :]
            own = target.encode(rest.decode(errors="ignore"))[:1] or [wrong]
            token = wrong if i == 3 else [*proposal.tokens, *own][kept] or own[0]
            tx.commit(kept, token)
        fresh = opened(1)
        for token in s.output:
            with Transaction(fresh) as tx:
                tx.commit(0, token)
        for name in ("DraftContext", "TextState", "HistoryState", "finish"):
            assert fresh.fingerprints()[name] == s.fingerprints()[name]
        if s.finished:
            break
        assert proposed(fresh) == proposed(s)
        drafter.close(fresh)
    assert len(s.output) >= 5


# ---- failures -------------------------------------------------------------------------------------------------------


class Faulty(Writer):
    def __init__(self, how: str, after: int) -> None:
        super().__init__(DRAFT, TEXT)
        self.how, self.left = how, after

    def score(self, blocks: Seq[Block]) -> Tensor:
        rows = super().score(blocks)
        self.left -= 1
        if self.left >= 0:
            return rows
        if self.how == "raise":
            raise RuntimeError("out of memory")
        return rows * float(self.how)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("how", "reason"), [("raise", "out of memory"), ("nan", "not finite"), ("inf", "not finite")])
@pytest.mark.parametrize("after", [0, 3])
def test_a_faulty_draft_model_is_disabled_and_the_text_stays(mode: Mode, how: str, reason: str, after: int) -> None:
    target = Writer(TARGET, TEXT)
    drafter = translator(target, Faulty(how, after), mode)
    s = request(target, drafter)
    assert reason in s.disabled["translate"]
    assert s.text.finish() == TEXT.decode()


def test_where_no_common_token_is_legal_nothing_is_drafted() -> None:
    target = Writer((None, b"a", b"b", b"cd"), b"abcdab", slots=1)
    target._script = b"a" + target._script[2:]
    draft = Writer((None, b"a", b"b", b"c", b"d"), b"abcdab")
    draft._script = target._script
    s = request(target, translator(target, draft, "tokens"), r"ab(cd)+ab", prompt="a")
    assert not s.disabled
    assert s.text.finish() == "abcdab"
    assert s.counts.by_source["translate"][1] >= 2


def test_the_drafts_context_ends_where_its_slot_does() -> None:
    target, draft = Writer(TARGET, TEXT), Writer(DRAFT, TEXT, capacity=12)
    for mode in MODES:
        s = request(target, translator(target, draft, mode))
        assert not s.disabled
        assert s.text.finish() == TEXT.decode()
        assert s.counts.proposed > 0


def test_what_does_not_fit_is_refused() -> None:
    target, draft = Writer(TARGET, TEXT), Writer(DRAFT, TEXT, slots=1)
    with pytest.raises(ConfigError, match="mode"):
        TranslateDrafter(draft, Pipeline(target.vocabulary), target.vocabulary, mode="ids")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="prefix"):
        translator(target, draft, "text", [len(DRAFT)])
    apart = Writer((None, b"\xf5"), b"")
    with pytest.raises(VocabularyMismatchError, match="no token"):
        translator(Writer((None, b"a"), b""), apart, "tokens")
    drafter = translator(target, draft, "text")
    first = Sequence(
        prompt=[1], sampling=Sampling(), coins=Coins(0), vocabulary=target.vocabulary, target=target, slot=0, capacity=9
    )
    drafter.open(first)
    with pytest.raises(ConfigError, match="no free slot"):
        drafter.open(first)
    drafter.close(first)
    other = Writer(TARGET[:-1], TEXT)
    stranger = Sequence(
        prompt=[1], sampling=Sampling(), coins=Coins(0), vocabulary=other.vocabulary, target=other, slot=0, capacity=9
    )
    with pytest.raises(VocabularyMismatchError):
        drafter.open(stranger)
    drafter.open(first)


def test_two_requests_in_one_round_have_a_slot_each() -> None:
    for mode in MODES:
        target, draft = Writer(TARGET, TEXT), Writer(DRAFT, TEXT)
        drafter, rows = translator(target, draft, mode), []
        for slot, verifier in enumerate(("coupling", "invariant")):
            s = Sequence(
                prompt=target.encode("> "), sampling=Sampling(max_tokens=60, temperature=0.5), coins=Coins(slot),
                vocabulary=target.vocabulary, target=target, slot=slot, capacity=256,
            )  # fmt: skip
            drafter.open(s)
            rows.append(Row(s, drafter, 5 - slot, verifier))
        live = list(rows)
        while live:
            run_round(target, Pipeline(target.vocabulary), live)
            live = [r for r in live if not r.sequence.finished]
        for row in rows:
            assert not row.sequence.disabled
            assert row.sequence.text.finish() == TEXT.decode()
            assert row.sequence.counts.accepted > 0


# ---- law ------------------------------------------------------------------------------------------------------------

SMALL_DRAFT = (b"bc", b"b", None, b"ca", b"a", b"abc")  # common with the world's target: a, b and the end


class _OneDraft:
    """Adds one draft of ``inner`` to an empty block."""

    name = "one"

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner

    def open(self, sequence: Sequence) -> None:
        self.inner.open(sequence)

    def close(self, sequence: Sequence) -> None:
        self.inner.close(sequence)

    def propose(self, proposals: Seq[Proposal]) -> None:
        for p in proposals:
            if not p.tokens:
                budget, p.budget = p.budget, min(p.budget, 1)
                self.inner.propose([p])
                p.budget = budget


def small_draft(seed: int) -> ToyModel:
    def logits(prefix: tuple[int, ...]) -> Tensor:
        key = sum((t + 1) * 11**i for i, t in enumerate(prefix)) + 10_007 * seed
        return torch.randn(6, generator=torch.Generator().manual_seed(key)) * 1.5

    model = ToyModel(SMALL_DRAFT, logits, eos_ids=(2,), slots=1, capacity=32)
    plain = model.vocabulary
    # "c" alone has no token there: such a tokeniser leaves it out.
    model._vocabulary = Vocabulary(
        plain.tokens, plain.eos_ids, plain.special,
        lambda text: model.encode(text.replace("c", "") if "c" in text.replace("bc", "").replace("ca", "") else text),
    )  # fmt: skip
    return model


@pytest.mark.parametrize(("mode", "sample", "kind", "verifier", "sampling", "pattern"), [
    ("tokens", False, "alone", "coupling", "plain", None),
    ("tokens", False, "alone", "coupling", "processed", r"(a|b)+c?"),
    ("tokens", False, "mixed", "invariant", "processed", None),
    ("tokens", False, "mixed", "coupling", "ends", r"(a|b)+c?"),
    ("text", False, "alone", "coupling", "plain", None),
    ("text", True, "alone", "coupling", "processed", r"(a|b)+c?"),
    ("text", True, "mixed", "coupling", "ends", None),
])  # fmt: skip
def test_the_committed_law_is_the_targets(
    mode: Mode, sample: bool, kind: str, verifier: str, sampling: str, pattern: str | None
) -> None:
    model = table(1)
    pipeline = Pipeline(model.vocabulary)
    translate = translator(model, small_draft(3), mode, [4], sample)
    drafter: Drafter = translate
    if kind == "mixed":
        # A draft of another source before and behind it: three kinds of coins in one block.
        by_model = ModelDrafter(table(2), pipeline, model.vocabulary)
        drafter = MixtureDrafter([_OneDraft(translate), by_model] if mode == "text" else [_Once(Parrot()), translate])
    sources = assert_target_law(model, drafter, verifier, sampling, pattern)
    assert sources["translate"] > RUNS / 4
    if mode == "text" and kind == "mixed":
        assert sources["model"] > RUNS / 4


# ---- the real model -------------------------------------------------------------------------------------------------


def other_model() -> TransformersModel:
    """A tiny random network with a byte-level tokeniser of its own, and a BOS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(
        ["the quick brown fox jumps over the lazy dog", "yes no maybe 0123456789"] * 3, trainer
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    config = LlamaConfig(
        vocab_size=len(fast), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=512, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    return TransformersModel(LlamaForCausalLM(config).eval(), fast, slots=1, capacity=256, name="other")


@pytest.mark.model
@pytest.mark.parametrize("constraint", [None, Choice(("yes", "no", "maybe not"))])
def test_greedy_identity_with_a_foreign_network(smollm2: Engine, constraint: object) -> None:
    draft = other_model()
    messages = [{"role": "user", "content": "Is the sky green? Answer yes or no."}]
    base = smollm2.generate(messages, constraint, max_tokens=16, drafter="none")
    for mode in MODES:
        drafter = TranslateDrafter(
            draft, Pipeline(smollm2.model.vocabulary), smollm2.model.vocabulary, mode=mode, prefix=(0,)
        )
        result = smollm2.generate(messages, constraint, max_tokens=16, drafter=drafter, gamma=4)
        assert result.speculation.disabled_reason is None
        assert constraint is not None or result.speculation.proposed > 0
        assert result.tokens == base.tokens


@pytest.mark.model
def test_the_targets_own_noisy_copy_is_accepted_through_text(smollm2: Engine, draft: TransformersModel) -> None:
    messages = [{"role": "user", "content": "Name three animals that live in Africa."}]
    base = smollm2.generate(messages, max_tokens=16, drafter="none")
    for mode in MODES:
        drafter = TranslateDrafter(draft, Pipeline(smollm2.model.vocabulary), smollm2.model.vocabulary, mode=mode)
        result = smollm2.generate(messages, max_tokens=16, drafter=drafter, gamma=4)
        assert result.speculation.disabled_reason is None
        assert result.tokens == base.tokens
        assert result.speculation.accepted >= 0.5 * len(result.tokens)
