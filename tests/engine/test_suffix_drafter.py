"""Earlier outputs as drafts: counted exactly, bounded, apart by namespace, and without influence on the law."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Sequence as Seq
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from constrained_spec.backends.toy import ToyModel
from constrained_spec.coins import Coins
from constrained_spec.config import Sampling
from constrained_spec.drafters.base import Drafter, Proposal
from constrained_spec.drafters.mixture import MixtureDrafter
from constrained_spec.drafters.model import ModelDrafter
from constrained_spec.drafters.suffix import SuffixDrafter
from constrained_spec.drafters.suffix_automaton import SuffixAutomaton
from constrained_spec.drafters.suffix_store import SuffixStore, SuffixStoreError
from constrained_spec.engine.round import Row, run_round
from constrained_spec.errors import ConfigError, VocabularyMismatchError
from constrained_spec.grammars.compile import Regex, compile_constraint
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.transaction import Transaction
from tests.engine.drafter_laws import RUNS, assert_target_law
from tests.engine.test_round_law import table

BYTES: tuple[bytes | None, ...] = (None, *(bytes([b]) for b in range(32, 127)))


def scripted(script: Seq[int]) -> ToyModel:
    """After a prompt of one token, the tokens of ``script`` in turn, then EOS."""

    def logits(prefix: tuple[int, ...]) -> Tensor:
        row = torch.full((len(BYTES),), -10.0)
        at = len(prefix) - 1
        row[script[at] if at < len(script) else 0] = 10.0
        return row

    return ToyModel(BYTES, logits, eos_ids=(0,), slots=2, capacity=512)


VOCABULARY = scripted([]).vocabulary


def ids(text: str) -> list[int]:
    return VOCABULARY.encode(text)


def generate(drafter: SuffixDrafter, text: str, gamma: int = 8) -> Sequence:
    model = scripted(ids(text))
    s = Sequence(
        prompt=[1], sampling=Sampling(max_tokens=400), coins=Coins(0), vocabulary=model.vocabulary, target=model,
        slot=0, capacity=model.capacity,
    )  # fmt: skip
    drafter.open(s)
    while not s.finished:
        run_round(model, Pipeline(model.vocabulary), [Row(s, drafter, gamma, "coupling")])
    drafter.close(s)
    assert not s.disabled
    assert s.output == [*ids(text), 0]
    return s


def drafts(drafter: SuffixDrafter, output: str, pattern: str | None = None, prompt: str = "x") -> str:
    """What is proposed after ``output``."""
    model = scripted([])
    grammar = None if pattern is None else compile_constraint(Regex(pattern), model.vocabulary)
    s = Sequence(
        prompt=ids(prompt), sampling=Sampling(max_tokens=400), coins=Coins(0), vocabulary=model.vocabulary,
        target=model, slot=0, capacity=512, matcher=grammar.matcher() if grammar else None,
    )  # fmt: skip
    drafter.open(s)
    for token in ids(output):
        with Transaction(s) as tx:
            tx.commit(0, token)
    with Transaction(s) as tx:
        proposal = Proposal(tx, 8, "coupling")
        drafter.propose([proposal])
        found = VOCABULARY.bytes_of(proposal.tokens).decode()
    drafter.close(s)
    return found


def store_of(*texts: str, namespace: str = "", grammar_key: str | None = None) -> SuffixStore:
    store = SuffixStore(1 << 20, VOCABULARY)
    for text in texts:
        store.add(namespace, grammar_key, [*ids(text), 0])
    return store


# ---- the automaton --------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=5), st.lists(st.integers(0, 2)))
def test_matches_and_counts_are_those_of_a_plain_search(sequences: list[list[int]], tail: list[int]) -> None:
    automaton = SuffixAutomaton()
    for sequence in sequences:
        last = 0
        for token in sequence:
            last = automaton.extend(last, token)

    def occurrences(part: list[int]) -> int:
        n = len(part)
        return sum(s[i : i + n] == part for s in sequences for i in range(len(s) - n + 1))

    state, n = automaton.match(tail)
    assert n == max((k for k in range(len(tail) + 1) if k == 0 or occurrences(tail[-k:])), default=0)
    part = tail[len(tail) - n :]
    if n:
        assert automaton._count[state] == occurrences(part)
        for token in range(3):
            after = automaton._next[state].get(token)
            assert (0 if after is None else automaton._count[after]) == occurrences([*part, token])


def test_size_is_linear_and_counted() -> None:
    rng = random.Random(0)
    automaton, last = SuffixAutomaton(), 0
    tokens = [rng.randrange(5) for _ in range(2000)]
    for token in tokens:
        last = automaton.extend(last, token)
    assert len(automaton._next) <= 2 * len(tokens)
    assert automaton._edges == sum(map(len, automaton._next)) <= 3 * len(tokens)


# ---- what is proposed -----------------------------------------------------------------------------------------------


def test_the_most_frequent_continuation_is_proposed() -> None:
    store = store_of("the red box", "the red fox", "the red fox", "the red hen")
    assert drafts(SuffixDrafter(store, shortest=3), "a red ") == "fox"
    # Two of four at the first step: below a threshold of one half.
    assert drafts(SuffixDrafter(store, shortest=3, threshold=0.5), "a red ") == ""


def test_a_short_match_is_not_enough() -> None:
    store = store_of("alphabet")
    assert drafts(SuffixDrafter(store, shortest=4), "xlph") == ""
    assert drafts(SuffixDrafter(store, shortest=4), "alph").startswith("ab")


def test_a_path_goes_as_far_as_its_support() -> None:
    text = "abcdefghijklmnopqrstuvwxyz"
    drafter = SuffixDrafter(store_of(text), shortest=3, threshold=0.3)
    # One occurrence after n tokens promises n / (n + 2), and each step one more.
    lengths = [len(drafts(drafter, "0" + text[10 : 10 + n])) for n in (3, 6, 10)]
    assert lengths == sorted(lengths) and lengths[0] == 2 and lengths[-1] == 6


def test_the_beginning_of_an_output_is_known_within_its_grammar() -> None:
    store = store_of('{"name": "Ada"}', '{"name": "Bob"}', grammar_key="person")
    assert drafts(SuffixDrafter(store, grammar_key="person"), "").startswith('{"n')
    assert drafts(SuffixDrafter(store), "") == ""  # outputs without a grammar begin in any way
    assert drafts(SuffixDrafter(store, grammar_key="other"), "") == ""


def test_the_group_of_the_grammar_and_the_common_one_are_both_asked() -> None:
    store = store_of("the cat sat", "the cat sat", grammar_key="g")
    store.add("", "h", ids("the dog ran"))
    assert drafts(SuffixDrafter(store, grammar_key="h"), "a cat").startswith(" sat"[:3])
    assert drafts(SuffixDrafter(store, grammar_key="h"), "the ").startswith(("cat", "do"))


def test_the_first_illegal_continuation_gives_way_to_a_legal_one() -> None:
    store = store_of("xyzab", "xyzab", "xyzcd")
    assert drafts(SuffixDrafter(store, threshold=0.05), "xyz", r"xyz[c-e]+") == "cd"
    assert drafts(SuffixDrafter(store), "xyz", r"xyz[0-9]+") == ""


def test_own_text_is_searched_on_request() -> None:
    store = SuffixStore(1 << 16, VOCABULARY)
    assert drafts(SuffixDrafter(store, own=True), "say hello wor", prompt="hello world, ").startswith("ld")
    assert drafts(SuffixDrafter(store, own=True), "hello world, hello wor").startswith("ld")
    assert drafts(SuffixDrafter(store), "hello world, hello wor", prompt="hello world") == ""


def test_a_second_output_like_the_first_needs_few_passes() -> None:
    store = SuffixStore(1 << 20, VOCABULARY)
    texts = [json.dumps({"name": n, "age": a, "city": "Paris"}) for n, a in (("Ada", 36), ("Bob", 41), ("Cleo", 29))]
    passes = [generate(SuffixDrafter(store, grammar_key="g"), text).counts.rounds for text in texts]
    assert passes[0] > 35
    assert max(passes[1:]) <= passes[0] / 2


# ---- the store ------------------------------------------------------------------------------------------------------


def test_namespaces_share_nothing() -> None:
    store = store_of("the secret word is swordfish", namespace="a", grammar_key="g")
    for key in ("g", None):
        assert drafts(SuffixDrafter(store, namespace="a", grammar_key=key), "secret word is").startswith(" s")
        for other in ("b", "", "a\x00", "A"):
            assert drafts(SuffixDrafter(store, namespace=other, grammar_key=key), "secret word is") == ""
    store.clear("a")
    assert store.nbytes == 0
    assert drafts(SuffixDrafter(store, namespace="a", grammar_key="g"), "secret word is") == ""


def test_only_finished_outputs_are_learnt() -> None:
    store = SuffixStore(1 << 20, VOCABULARY)
    model = scripted(ids("unfinished business"))
    s = Sequence(
        prompt=[1], sampling=Sampling(), coins=Coins(0), vocabulary=VOCABULARY, target=model, slot=0, capacity=512
    )
    drafter = SuffixDrafter(store)
    drafter.open(s)
    for _ in range(9):
        run_round(model, Pipeline(VOCABULARY), [Row(s, drafter, 4, "coupling")])
    drafter.close(s)
    assert store.nbytes == 0
    generate(SuffixDrafter(store, learn=False), "finished business")
    assert store.nbytes == 0
    generate(SuffixDrafter(store), "finished business")
    assert store.nbytes > 0


def test_capacity_holds_and_the_least_recently_used_go_first() -> None:
    rng = random.Random(1)
    store = SuffixStore(100_000, VOCABULARY)
    store.add("kept", None, ids("a sentence that is used all the time"))
    for i in range(60):
        store.add(f"n{i % 7}", "g", [rng.randrange(1, len(BYTES)) for _ in range(rng.randrange(1, 60))])
        assert 0 < store.nbytes <= store.capacity_bytes
        assert drafts(SuffixDrafter(store, namespace="kept"), "a sentence").startswith(" that")
    store.add("huge", None, [rng.randrange(1, len(BYTES)) for _ in range(5000)])
    assert store.nbytes <= store.capacity_bytes
    store.add("after", None, ids("the store goes on working"))
    assert drafts(SuffixDrafter(store, namespace="after"), "the store").startswith(" goes")


def test_one_group_larger_than_the_capacity_keeps_its_newest_part() -> None:
    store = SuffixStore(60_000, VOCABULARY)
    for i in range(200):
        store.add("", None, ids(f"entry number {i:03d} says {i * 7919 % 1000:03d}."))
        assert store.nbytes <= store.capacity_bytes
    assert drafts(SuffixDrafter(store), f"entry number 199 says {199 * 7919 % 1000:03d}"[:-3]).startswith("8")
    assert not drafts(SuffixDrafter(store), "entry number 003 says ").startswith("757")


def test_threads_may_add_search_save_and_clear(tmp_path: Path) -> None:
    store = SuffixStore(200_000, VOCABULARY)
    faults: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for i in range(30):
                text = ids(f"thread {seed} says {rng.randrange(50)} and {rng.randrange(50)}") * 3
                store.add(f"n{seed % 3}", "g", text)
                cut = rng.randrange(3, 20)
                found = store.find(
                    f"n{seed % 3}", "g", text[:cut], room=8, shortest=3, threshold=0.1, legal=lambda _: True
                )
                assert all(0 < t < len(BYTES) for t in found.tokens)
                if i % 10 == 0:
                    store.save(tmp_path / f"{seed}.npz")
                    store.clear(f"n{seed % 3}")
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert 0 <= store.nbytes == sum(s.nbytes for group in store._groups.values() for s in group)
    assert store.nbytes <= store.capacity_bytes


def test_a_saved_store_comes_back(tmp_path: Path) -> None:
    store = store_of("the cat sat on the mat", grammar_key="g")
    store.add("ten\u00e4nt", None, ids("something private here"))
    path = tmp_path / "store.npz"
    store.save(path)
    store.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["store.npz"]
    loaded = SuffixStore.load(path, 1 << 20, VOCABULARY)
    assert loaded.nbytes == store.nbytes
    for namespace, key, text in (("", "g", "the cat"), ("", None, "the cat"), ("ten\u00e4nt", None, "something")):
        drafter, again = (SuffixDrafter(s, namespace=namespace, grammar_key=key) for s in (store, loaded))
        assert drafts(drafter, text) == drafts(again, text) != ""
    small = SuffixStore.load(path, 12_000, VOCABULARY)
    assert small.nbytes <= 12_000
    assert drafts(SuffixDrafter(small, namespace="ten\u00e4nt"), "something").startswith(" priv")
    empty = SuffixStore(1 << 20, VOCABULARY)
    empty.save(path)
    assert SuffixStore.load(path, 1 << 20, VOCABULARY).nbytes == 0


def test_a_damaged_file_is_a_typed_error(tmp_path: Path) -> None:
    path = tmp_path / "store.npz"
    store_of("the cat sat on the mat", "and so on").save(path)
    whole = path.read_bytes()
    rng = random.Random(0)
    outcomes = set()
    for i in range(60):
        broken = bytearray(whole)
        if i % 2:
            del broken[rng.randrange(len(broken)) :]
        else:
            for _ in range(8):
                broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        path.write_bytes(broken)
        try:
            SuffixStore.load(path, 1 << 20, VOCABULARY)
            outcomes.add("same")  # a bit that no reader looks at
        except (SuffixStoreError, VocabularyMismatchError) as error:
            outcomes.add(type(error).__name__)
    assert "SuffixStoreError" in outcomes
    for data in (b"", b"no zip at all"):
        path.write_bytes(data)
        with pytest.raises(SuffixStoreError):
            SuffixStore.load(path, 1 << 20, VOCABULARY)
    with pytest.raises(SuffixStoreError):
        SuffixStore.load(tmp_path / "missing.npz", 1 << 20, VOCABULARY)
    with pytest.raises(SuffixStoreError):
        store_of("x").save(tmp_path / "missing" / "store.npz")


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    other = ToyModel(BYTES[:50], lambda _: torch.zeros(50), eos_ids=(0,)).vocabulary
    store = store_of("abc")
    store.save(tmp_path / "store.npz")
    with pytest.raises(VocabularyMismatchError):
        SuffixStore.load(tmp_path / "store.npz", 1 << 20, other)
    with pytest.raises(VocabularyMismatchError):
        drafts(SuffixDrafter(SuffixStore(1 << 20, other)), "abc")
    with pytest.raises(ConfigError):
        SuffixStore(1 << 20, other).add("", None, ids("xyz"))


@pytest.mark.parametrize("options", [{"shortest": 0}, {"shortest": True}, {"threshold": 0.0}, {"threshold": 1.0}])
def test_options_are_checked(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        SuffixDrafter(store_of("abc"), **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        SuffixStore(0, VOCABULARY)


# ---- state and law --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accepted", range(4))
def test_a_rejected_draft_leaves_no_trace(accepted: int) -> None:
    """What is proposed after a cut is what a fresh request proposes that committed the same tokens."""
    drafter = SuffixDrafter(store_of("the cat sat on the mat"), own=True, learn=False)
    model = scripted([])

    def opened(slot: int) -> Sequence:
        model.set_length(slot, 0)
        s = Sequence(
            prompt=ids("a cat sat; "), sampling=Sampling(), coins=Coins(0), vocabulary=VOCABULARY, target=model,
            slot=slot, capacity=512,
        )  # fmt: skip
        drafter.open(s)
        return s

    def proposed(s: Sequence) -> list[int]:
        with Transaction(s) as tx:
            proposal = Proposal(tx, 8, "coupling")
            drafter.propose([proposal])
            return list(proposal.tokens)

    s, fresh = opened(0), opened(1)
    for token in ids("the cat"):
        with Transaction(s) as tx:
            tx.commit(0, token)
    with Transaction(s) as tx:
        proposal = Proposal(tx, 8, "coupling")
        drafter.propose([proposal])
        kept = list(proposal.tokens[:accepted])
        assert len(kept) == accepted
        tx.commit(accepted, ids("z")[0])
    for token in [*ids("the cat"), *kept, *ids("z")]:
        with Transaction(fresh) as tx:
            tx.commit(0, token)
    assert fresh.fingerprints()["HistoryState"] == s.fingerprints()["HistoryState"]
    for token in ids(" cat sa"):
        for each in (s, fresh):
            with Transaction(each) as tx:
                tx.commit(0, token)
        assert proposed(s) == proposed(fresh)
    assert proposed(s) != []


def test_a_failure_disables_the_drafter_and_keeps_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of("abcabcabc")
    monkeypatch.setattr(SuffixStore, "find", lambda *_, **__: 1 / 0)
    model = scripted(ids("abcabc"))
    s = Sequence(
        prompt=[1], sampling=Sampling(), coins=Coins(0), vocabulary=VOCABULARY, target=model, slot=0, capacity=64
    )
    drafter = SuffixDrafter(store)
    drafter.open(s)
    while not s.finished:
        run_round(model, Pipeline(VOCABULARY), [Row(s, drafter, 4, "coupling")])
    assert "ZeroDivisionError" in s.disabled["suffix"]
    assert s.output == [*ids("abcabc"), 0]


@pytest.mark.parametrize(("kind", "verifier", "sampling", "pattern"), [
    ("alone", "coupling", "plain", None), ("alone", "coupling", "processed", r"(a|b)+c?"),
    ("mixed", "coupling", "ends", None), ("mixed", "invariant", "processed", r"(a|b)+c?"),
])  # fmt: skip
def test_the_committed_law_is_the_targets(kind: str, verifier: str, sampling: str, pattern: str | None) -> None:
    model, draft = table(1), table(2)
    store = SuffixStore(1 << 16, model.vocabulary)
    # It also learns while the texts are drawn, as it does in use: each text still has the target's law.
    suffix = SuffixDrafter(store, grammar_key="g", shortest=1, threshold=0.05, own=True)
    store.add("", "g", [1, 2, 1, 3])
    drafter: Drafter = suffix
    if kind == "mixed":
        drafter = MixtureDrafter([suffix, ModelDrafter(draft, Pipeline(model.vocabulary), model.vocabulary)])
    assert assert_target_law(model, drafter, verifier, sampling, pattern)["suffix"] > RUNS / 2
