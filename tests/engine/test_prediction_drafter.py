"""The expected text as a draft: it is followed by bytes, found again after every edit, and never changes the law."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from collections.abc import Sequence as Seq

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from constrained_spec.api import Engine
from constrained_spec.backends.toy import ToyModel
from constrained_spec.coins import Coins
from constrained_spec.config import Sampling
from constrained_spec.drafters.alignment import START, SURE, Alignment, follow
from constrained_spec.drafters.base import Drafter, Proposal
from constrained_spec.drafters.mixture import MixtureDrafter
from constrained_spec.drafters.model import ModelDrafter
from constrained_spec.drafters.prediction import PredictionDrafter, prediction_usage
from constrained_spec.engine.round import Row, run_round
from constrained_spec.errors import RequestError
from constrained_spec.grammars.compile import Regex, compile_constraint
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.transaction import Transaction
from constrained_spec.types import Vocabulary
from tests.engine.drafter_laws import RUNS, assert_target_law
from tests.engine.test_round_law import Parrot, _Once, table

# Words, word beginnings, indentation and single bytes: a text has many spellings, as with a byte-pair vocabulary.
_PIECES = (
    *(bytes([b]) for b in range(256)),
    *(b"    ", b"\n    ", b"def ", b"return ", b" = ", b"(self", b"):\n", b"value", b" val", b"ue", b"self.", b"total"),
    *(b", ", b"()\n", b"item", b" item", b"_", b"compute", b" + ", b"count", b"for ", b" in ", b"if ", b"s:\n", b"ult"),
    *(b"res", b"name", b"_name", b"old", b"new", b" #", b"the ", b"of ", b"\n\n", b"0)", b"10", b"12", b"1", b"handle"),
)
PIECES: tuple[bytes | None, ...] = (None, *dict.fromkeys(_PIECES))
EOS = 0


class Scripted(ToyModel):
    """Puts all its weight on the next token of ``script``, whatever the text before says; then on EOS."""

    def __init__(self, vocabulary: Vocabulary, script: Seq[int], prompt_length: int = 1) -> None:
        super().__init__([None], lambda _: torch.zeros(1), slots=2, capacity=1 << 14)
        self._vocabulary = vocabulary
        self._script = [*script, vocabulary.eos_ids[0]]
        self._prompt_length = prompt_length

    def _row(self, prefix: tuple[int, ...]) -> Tensor:
        row = torch.full((self._vocabulary.size,), -10.0)
        row[self._script[min(len(prefix) - self._prompt_length, len(self._script) - 1)]] = 10.0
        return row


@functools.cache
def toy_vocabulary() -> Vocabulary:
    return ToyModel(PIECES, lambda _: torch.zeros(len(PIECES)), eos_ids=(EOS,)).vocabulary


def run(
    prediction: str | bytes | Seq[int], script: Seq[int], vocabulary: Vocabulary, gamma: int = 16
) -> tuple[Sequence, PredictionDrafter]:
    """Greedy decoding of ``script`` with the prediction's drafts; the output is the script, whatever was drafted."""
    model = Scripted(vocabulary, script)
    s = Sequence(
        prompt=[1], sampling=Sampling(max_tokens=len(script) + 1), coins=Coins(0), vocabulary=vocabulary, target=model,
        slot=0, capacity=model.capacity,
    )  # fmt: skip
    drafter = PredictionDrafter(prediction)
    drafter.open(s)
    pipeline = Pipeline(vocabulary)
    while not s.finished:
        run_round(model, pipeline, [Row(s, drafter, gamma, "coupling")])
    assert not s.disabled
    assert s.output == [*script, vocabulary.eos_ids[0]]
    return s, drafter


def source_file(lines: int = 200) -> list[str]:
    """A text that looks like a program: blocks, indentation, words that come again and numbers that do not."""
    rng, out = random.Random(7), list[str]()
    words = ("value", "item", "total", "count", "result", "name", "handle", "compute")
    while len(out) < lines:
        a, b, c = (rng.choice(words) for _ in range(3))
        out += [
            f"def {a}_{b}(self, {c}):",
            f"    {c}s = self.{b}_{rng.randrange(1000)}({a}, {rng.randrange(100)})",
            f"    for {a} in {c}s:",
            f"        if {a} + {rng.randrange(100)}:",
            f"            return {b}_{c}({a}, {rng.randrange(1000)})",
            f"    # the {b} of the {c}",
            "    return self.total",
            "",
        ]
    return out[:lines]


EDITS: dict[str, Callable[[str, int], list[str]]] = {
    "words": lambda line, i: [line.replace("a", "old", 1).replace("e", "new", 1)],
    "replaced": lambda line, i: [f"    total = compute(first, second={i})"],
    "inserted": lambda line, i: [line, f"    inserted_{i}(self, name)"],
    "deleted": lambda line, i: [],
    "appended": lambda line, i: [line + "  # see the note"],
    "indented": lambda line, i: ["    " + line],
}


def edited(kind: str, seed: int = 3) -> tuple[str, str]:
    """A file of 200 lines, and the same with five of them changed."""
    before = source_file()
    after: list[str] = []
    changed = set(random.Random(seed).sample([i for i, line in enumerate(before) if line], 5))
    for i, line in enumerate(before):
        after += EDITS[kind](line, i) if i in changed else [line]
    return "\n".join(before) + "\n", "\n".join(after) + "\n"


def _meets_the_goal(s: Sequence) -> None:
    accepted, rejected = prediction_usage(s.counts)
    print(f"{accepted / len(s.output):.3f} of the output, {len(s.output) / s.counts.rounds:.2f} per pass, {rejected=}")
    assert accepted >= 0.85 * len(s.output)
    assert len(s.output) >= 8 * s.counts.rounds
    assert (accepted, accepted + rejected) == (s.counts.accepted, s.counts.proposed)


@pytest.mark.parametrize("kind", EDITS)
def test_an_edited_file_is_mostly_accepted_drafts(kind: str) -> None:
    vocabulary = toy_vocabulary()
    before, after = edited(kind)
    _meets_the_goal(run(before, vocabulary.encode(after), vocabulary)[0])


@pytest.mark.model
@pytest.mark.parametrize("kind", EDITS)
def test_an_edited_file_is_mostly_accepted_drafts_in_a_real_vocabulary(smollm2: Engine, kind: str) -> None:
    vocabulary = smollm2.model.vocabulary
    before, after = edited(kind)
    _meets_the_goal(run(before, vocabulary.encode(after), vocabulary)[0])


def test_a_moved_block_is_found() -> None:
    vocabulary = toy_vocabulary()
    lines = source_file()
    moved = [*lines[160:], *lines[:40], *lines[40:160]]
    _meets_the_goal(run("\n".join(lines), vocabulary.encode("\n".join(moved)), vocabulary)[0])


def test_text_in_front_of_the_file_is_an_insertion() -> None:
    vocabulary = toy_vocabulary()
    before, _ = edited("words")
    _meets_the_goal(run(before, vocabulary.encode("Here is the file:\n```python\n" + before + "```"), vocabulary)[0])


def test_another_spelling_of_the_text_is_the_same_place() -> None:
    vocabulary = toy_vocabulary()
    before, after = edited("words")
    script: list[int] = []
    for i, token in enumerate(vocabulary.encode(after)):
        piece = vocabulary.tokens[token]
        assert piece is not None
        # Every seventh token in single bytes.
        script += [PIECES.index(bytes([b])) for b in piece] if i % 7 == 0 else [token]
    s, _ = run(before, script, vocabulary)
    assert s.counts.accepted >= 0.6 * len(s.output)
    assert len(s.output) >= 3 * s.counts.rounds


def test_ids_bytes_and_text_are_the_same_prediction() -> None:
    vocabulary = toy_vocabulary()
    before, after = edited("appended")
    script = vocabulary.encode(after)
    counts = [run(p, script, vocabulary)[0].counts for p in (before, before.encode(), vocabulary.encode(before))]
    assert counts[0] == counts[1] == counts[2]


@pytest.mark.parametrize("prediction", ["", b"\xff\xfe\x80", "xyz", [EOS], "caf\u00e9 \U0001f30a " * 9])
def test_a_useless_prediction_costs_drafts_only(prediction: str | bytes | list[int]) -> None:
    vocabulary = toy_vocabulary()
    run(prediction, vocabulary.encode("def value(self):\n    return \u00e9\U0001f30a\n"), vocabulary)


def test_characters_of_several_bytes_are_followed_and_never_cut() -> None:
    vocabulary = toy_vocabulary()
    text = "".join(f"{i}: caf\u00e9 \U0001f30a \u65e5\u672c\u8a9e\n" for i in range(40))
    s, _ = run(text.replace("17: caf\u00e9", "17: th\u00e9"), vocabulary.encode(text), vocabulary)
    assert s.counts.accepted >= 0.85 * len(s.output)


def test_an_id_outside_the_vocabulary_is_the_callers_fault() -> None:
    vocabulary = toy_vocabulary()
    with pytest.raises(RequestError, match="prediction"):
        run([5, vocabulary.size], [3], vocabulary)


def test_few_tokens_are_drafted_from_a_doubtful_place() -> None:
    vocabulary = toy_vocabulary()
    before, _ = edited("words")
    s, _ = run(before, vocabulary.encode("".join(random.Random(1).choices("<>~^|", k=120))), vocabulary)
    assert s.counts.proposed <= 16 + 7 * s.counts.rounds


# ---- state ----------------------------------------------------------------------------------------------------------

_TEXT = "\n".join(source_file(40)).encode()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("copy"), st.integers(0, len(_TEXT)), st.integers(1, 30)),
            st.tuples(st.just("token"), st.integers(0, len(PIECES) - 1), st.just(0)),
            st.tuples(st.just("mark"), st.just(0), st.just(0)),
            st.tuples(st.just("rollback"), st.integers(0, 9), st.just(0)),
        ),
        max_size=40,
    )
)
def test_rollback_restores_the_place(steps: list[tuple[str, int, int]]) -> None:
    vocabulary = toy_vocabulary()
    alignment, taken = Alignment(_TEXT, vocabulary), list[int]()
    marks = [(alignment.mark(), 0, alignment.fingerprint())]
    for what, at, n in steps:
        if what == "mark":
            marks.append((alignment.mark(), len(taken), alignment.fingerprint()))
        elif what == "rollback":
            place, length, print_ = marks[at % len(marks)]
            # Only marks that are a prefix of what was taken are valid.
            if length <= len(taken):
                alignment.rollback(place)
                del taken[length:]
                marks = [m for m in marks if m[1] <= length]
                assert alignment.fingerprint() == print_
        else:
            tokens = [at] if what == "token" else [PIECES.index(bytes([b])) for b in _TEXT[at : at + n]]
            for token in tokens:
                alignment.advance(token)
                taken.append(token)
        assert 0 <= alignment.place.lost <= len(_TEXT) and 0 <= alignment.place.at <= len(_TEXT)
    fresh = Alignment(_TEXT, vocabulary)
    for token in taken:
        fresh.advance(token)
    assert fresh.fingerprint() == alignment.fingerprint()


@given(st.binary(max_size=60), st.lists(st.sampled_from([b"a", b"ab", b"\n", b"b ", b"\xc3", b"\xa9"]), max_size=30))
def test_what_the_place_claims_to_agree_does_agree(text: bytes, pieces: list[bytes]) -> None:
    place, output = START, b""
    for piece in pieces:
        place = follow(text, place, piece)
        output += piece
        n = min(place.trust, len(output), place.at)
        assert n == 0 or text[: place.at].endswith(output[-n:]) or place.lost == place.at <= SURE


class Cut:
    """The prediction's drafts, forced wrong at place ``cut`` of the block."""

    name = "prediction"

    def __init__(self, inner: PredictionDrafter, cut: int) -> None:
        self.inner, self.cut = inner, cut

    def open(self, sequence: Sequence) -> None:
        self.inner.open(sequence)

    def close(self, sequence: Sequence) -> None:
        self.inner.close(sequence)

    def propose(self, proposals: Seq[Proposal]) -> None:
        for p in proposals:
            budget = p.budget
            p.budget = min(budget, self.cut)
            self.inner.propose([p])
            p.budget = budget
            if p.room > 0 and len(p.tokens) == self.cut:
                wrong = next(t for t in range(3, 90) if p.tx.is_legal(t))
                p.point(wrong, self.name)
            self.inner.propose([p])


@pytest.mark.parametrize("cut", range(5))
def test_every_cut_leaves_the_state_of_a_replay(cut: int) -> None:
    vocabulary = toy_vocabulary()
    before, after = "def value(self):\n    return 12\n" * 3, "def value(self):\n    return 10\n" * 3
    script = vocabulary.encode(after)
    model, pipeline = Scripted(vocabulary, script), Pipeline(vocabulary)

    def open_sequence(slot: int) -> tuple[Sequence, PredictionDrafter]:
        model.set_length(slot, 0)
        s = Sequence(
            prompt=[1], sampling=Sampling(max_tokens=len(script) + 1), coins=Coins(0), vocabulary=vocabulary,
            target=model, slot=slot, capacity=model.capacity,
        )  # fmt: skip
        drafter = PredictionDrafter(before)
        drafter.open(s)
        return s, drafter

    s, drafter = open_sequence(0)
    while not s.finished:
        run_round(model, pipeline, [Row(s, Cut(drafter, cut), 6, "coupling")])
        fresh, _ = open_sequence(1)
        for token in s.output:
            with Transaction(fresh) as tx:
                tx.commit(0, token)
        for name in ("Alignment", "TextState", "StopState", "HistoryState", "finish"):
            assert fresh.fingerprints()[name] == s.fingerprints()[name]
    assert not s.disabled
    assert s.output[:-1] == script


# ---- law ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "verifier", "sampling", "pattern"), [
    ("alone", "coupling", "plain", None), ("alone", "coupling", "processed", r"(a|b)+c?"),
    ("mixed", "coupling", "processed", None), ("mixed", "coupling", "ends", r"(a|b)+c?"),
    ("mixed", "invariant", "plain", None),
])  # fmt: skip
def test_the_committed_law_is_the_targets(kind: str, verifier: str, sampling: str, pattern: str | None) -> None:
    model, draft = table(1), table(2)
    pipeline = Pipeline(model.vocabulary)
    prediction = PredictionDrafter("bacabcab")
    drafter: Drafter = prediction
    if kind == "mixed":
        by_model = ModelDrafter(draft, pipeline, model.vocabulary)
        drafter = MixtureDrafter([_Once(Parrot()), prediction, by_model])
    assert assert_target_law(model, drafter, verifier, sampling, pattern)["prediction"] > RUNS / 4


def test_an_illegal_prediction_is_cut_by_the_grammar() -> None:
    model = table(1)
    grammar = compile_constraint(Regex("a(b|c)*"), model.vocabulary)
    s = Sequence(
        prompt=[1], sampling=Sampling(max_tokens=6), coins=Coins(0), vocabulary=model.vocabulary, target=model, slot=0,
        capacity=16, matcher=grammar.matcher(),
    )  # fmt: skip
    drafter = PredictionDrafter("abcabc")
    drafter.open(s)
    with Transaction(s) as tx:
        proposal = Proposal(tx, 5, "coupling")
        drafter.propose([proposal])
        assert proposal.tokens == [1, 2, 3]


def test_a_failure_disables_the_drafter_and_keeps_the_text() -> None:
    broken = toy_vocabulary()

    def refuse(text: str) -> list[int]:
        raise ValueError("no tokeniser today")

    vocabulary = Vocabulary(broken.tokens, broken.eos_ids, broken.special, refuse)
    script = broken.encode("def value")
    model = Scripted(vocabulary, script)
    s = Sequence(
        prompt=[1], sampling=Sampling(max_tokens=20), coins=Coins(0), vocabulary=vocabulary, target=model, slot=0,
        capacity=64,
    )  # fmt: skip
    drafter = PredictionDrafter("def value")
    drafter.open(s)
    while not s.finished:
        run_round(model, Pipeline(vocabulary), [Row(s, drafter, 4, "coupling")])
    assert "no tokeniser today" in s.disabled["prediction"]
    assert s.output[:-1] == script


@pytest.mark.model
@pytest.mark.parametrize("constraint", [None, Regex(r"[A-Za-z ,']{20,80}\.")])
def test_greedy_identity_on_the_real_model(smollm2: Engine, constraint: object) -> None:
    messages = [{"role": "user", "content": "Repeat: The quick brown fox jumps over the lazy dog."}]
    base = smollm2.generate(messages, constraint, max_tokens=24, drafter="none")
    for prediction in (base.text, base.text.replace("e", "o", 2), "Something else entirely, said at length."):
        result = smollm2.generate(messages, constraint, max_tokens=24, drafter=PredictionDrafter(prediction))
        assert result.speculation.disabled_reason is None
        assert result.tokens == base.tokens
        if prediction == base.text:
            assert result.speculation.target_passes <= base.speculation.target_passes / 4
