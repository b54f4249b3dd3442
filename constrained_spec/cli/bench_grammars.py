"""constrained-spec bench grammars: what a constraint costs to compile and at every token, against bare llguidance."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import typer
from llguidance import LLMatcher

from constrained_spec.backends.vocabulary_only import load_vocabulary
from constrained_spec.cli.console import exit_codes, loading, quiet_libraries
from constrained_spec.cli.environment import environment
from constrained_spec.errors import AuditFailure
from constrained_spec.grammars.base import Grammar, Matcher
from constrained_spec.grammars.compile import Choice, Constraint, JsonSchema, Lark, Regex, compile_constraint
from constrained_spec.grammars.dfa import DfaGrammar
from constrained_spec.grammars.tokens import TokenIndex, token_index
from constrained_spec.types import Vocabulary

T = TypeVar("T")
GAMMA = 8
_PURE = '%llguidance {"no_forcing": true}\n'
_COMPACT = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"}, "age": {"type": "integer"}, "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
    },
    "required": ["name", "age", "email", "tags"], "additionalProperties": False,
}  # fmt: skip
_TREE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": {
        "type": "object", "additionalProperties": False, "required": ["label", "children"],
        "properties": {"label": {"type": "string", "maxLength": 40},
                       "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
    }},
}  # fmt: skip
_IPV4 = r"((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_SENTENCE = r"[A-Z][a-z]{1,12}( [a-z]{1,12}){0,20}\."
_ANY = ".{0,400}"
_SQL = 'start: "SELECT " name (", " name)* " FROM " name (" WHERE " name " = " /[0-9]{1,9}/)?\nname: /[a-z_]{1,20}/'
_WORDS = tuple(f"{a} {b} {i * 7919 % 1000:03d}" for i, (a, b) in enumerate(
    (a, b) for a in ("red", "green", "blue", "small", "large", "round", "flat", "old", "new", "odd") for b in range(100)
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """A constraint, the same language for bare llguidance, and texts of it."""

    constraint: Constraint
    raw: str
    texts: tuple[str, ...]


def _json(schema: dict[str, Any], *texts: str) -> Case:
    raw = f"{_PURE}start: %json {json.dumps({**schema, 'x-guidance': _COMPACT})}\n"
    return Case(JsonSchema(schema, whitespace="compact"), raw, texts)


CASES: dict[str, Case] = {
    "json-person": _json(
        _PERSON,
        '{"name":"Ada Lovelace","age":36,"email":"ada@example.org","tags":["red","green","blue","red"]}',
        '{"name":"Jean-Luc Picard of the starship","age":59,"email":"jl.picard@fleet.example","tags":[]}',
    ),
    "json-recursive": _json(
        _TREE, '{"label":"root of it","children":[{"label":"left","children":[]},{"label":"right","children":[]}]}'
    ),
    "json-any-object": _json({"type": "object"}, '{"a":[1,2,{"b":"some text here"}],"c":null,"d":true,"e":1.25e3}'),
    "regex-ipv4": Case(Regex(_IPV4), f"{_PURE}start: /{_IPV4}/\n", ("192.168.100.254", "8.8.8.8")),
    "regex-sentence": Case(
        Regex(_SENTENCE),
        f"{_PURE}start: /{_SENTENCE}/\n",
        ("The quick brown fox jumps over the lazy dog and runs away.", "Nothing is as it seems."),
    ),
    "regex-any": Case(Regex(_ANY), f"{_PURE}start: /{_ANY}/\n", ("The quick brown fox; 27 über-foxes, \"jump\".",)),
    "choice-1000": Case(
        Choice(_WORDS), f"{_PURE}start: {' | '.join(map(json.dumps, _WORDS))}\n", _WORDS[::100]
    ),
    "lark-sql": Case(
        Lark(_SQL), f"{_PURE}{_SQL}\n", ("SELECT name, age, home_address FROM people WHERE customer_id = 1234",)
    ),
}  # fmt: skip


def grammars(
    model: str = typer.Option("smollm2-135m", help="Whose vocabulary: alias, hub id, folder or GGUF file."),
    tokenizer: list[str] | None = typer.Option(None, help="Also a tokenizer's folder; repeat it."),
    only: list[str] | None = typer.Option(None, help="Only these constraints; repeat it."),
    repeats: int = typer.Option(5, min=1, help="Interleaved fresh walks; every step counts with its quickest."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Compile, mask, rollback, fork and draft masks of typical constraints, against bare llguidance in the same run."""
    with exit_codes():
        names = only or list(CASES)
        for name in names:
            if name not in CASES:
                raise typer.BadParameter(f"unknown constraint {name!r}: one of {', '.join(CASES)}")
        quiet_libraries()
        report: dict[str, Any] = {"environment": environment(), "repeats": repeats, "gamma": GAMMA, "vocabularies": {}}
        for source in (model, *(tokenizer or ())):
            with loading(source) as progress:
                vocabulary = load_vocabulary(source, progress=progress)
            about: dict[str, Any] = {"size": vocabulary.size, "engines": load_times(vocabulary), "constraints": {}}
            report["vocabularies"][source] = about
            for name in names:
                about["constraints"][name] = figures = measure(CASES[name], vocabulary, repeats)
                if not as_json:
                    _print_row(vocabulary.size, name, figures)
        if as_json:
            typer.echo(json.dumps(report))


def load_times(vocabulary: Vocabulary) -> dict[str, float]:
    """Seconds until the engines know the vocabulary: never seen before, and with its trie on disk."""
    out = {}
    with tempfile.TemporaryDirectory() as folder, _environment("CONSTRAINED_SPEC_CACHE", folder):
        for name in ("first_s", "cached_s"):
            start = time.perf_counter()
            TokenIndex(vocabulary).engine  # noqa: B018
            out[name] = round(time.perf_counter() - start, 3)
    return out


def measure(case: Case, vocabulary: Vocabulary, repeats: int) -> dict[str, Any]:
    """Microseconds of each operation, and milliseconds of the compilation.

    Raises ``AuditFailure`` if a text is not in the language of either.
    """
    walks = [vocabulary.encode(text) for text in case.texts]
    engine = token_index(vocabulary).engine  # the vocabulary's own cost is not the constraint's
    compile_ms, grammar = _timed(lambda: compile_constraint(case.constraint, vocabulary))
    raw_ms, raw = _timed(lambda: LLMatcher(engine, case.raw, log_level=0))
    if raw.is_error():
        raise AuditFailure(f"bare llguidance refuses the constraint: {raw.get_error()}")
    cold: list[list[float]] = []
    warm: list[list[float]] = []
    bare: list[list[float]] = []
    for _ in range(repeats):
        bare.append([us for walk in walks for us in _raw_walk(raw.deep_copy(), walk, vocabulary)])
        if isinstance(grammar, DfaGrammar):
            fresh = DfaGrammar(grammar.automaton, grammar.index, grammar.key, "constraint")
            cold.append([us for walk in walks for us in _walk(fresh, walk, vocabulary)])
        warm.append([us for walk in walks for us in _walk(grammar, walk, vocabulary)])
    ours, theirs = _quickest(warm), _quickest(bare)
    out: dict[str, Any] = {
        "engine": "DFA" if isinstance(grammar, DfaGrammar) else "llguidance",
        "tokens": len(ours),
        "compile_ms": round(compile_ms, 3),
        "raw_llguidance_compile_ms": round(raw_ms, 3),
        "mask_us_median": _round(statistics.median(ours)),
        "mask_us_p99": _round(_p99(ours)),
        "raw_llguidance_us_median": _round(statistics.median(theirs)),
        "raw_llguidance_us_p99": _round(_p99(theirs)),
        "mask_ratio": round(statistics.median(ours) / statistics.median(theirs), 3),
    }
    if cold:
        first = _quickest(cold)
        out |= {"mask_us_median_cold": _round(statistics.median(first)), "mask_us_p99_cold": _round(_p99(first))}
    return out | _other_steps(grammar, walks[0], vocabulary, repeats)


def _raw_walk(matcher: LLMatcher, walk: Sequence[int], vocabulary: Vocabulary) -> Iterator[float]:
    row = np.empty(vocabulary.mask_words, np.int32)
    for token in walk:
        start = time.perf_counter_ns()
        matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        yield (time.perf_counter_ns() - start) / 1000
        if matcher.try_consume_tokens([token]) != 1:
            raise AuditFailure("bare llguidance refuses a token of the text")


def _walk(grammar: Grammar, walk: Sequence[int], vocabulary: Vocabulary) -> Iterator[float]:
    matcher = grammar.matcher()
    row = np.empty(vocabulary.mask_words, np.int32)
    for token in walk:
        start = time.perf_counter_ns()
        matcher.mask_into(row)
        yield (time.perf_counter_ns() - start) / 1000
        if not matcher.advance(token):
            raise AuditFailure("our grammar refuses a token of the text")


def _other_steps(grammar: Grammar, walk: Sequence[int], vocabulary: Vocabulary, repeats: int) -> dict[str, float]:
    """Rollback over one token and fork at every place of the walk, and the masks along a draft from its beginning."""
    rollbacks: list[list[float]] = []
    forks: list[list[float]] = []
    drafts: list[float] = []
    draft = list(walk[:GAMMA])
    rows = np.empty((len(draft) + 1, vocabulary.mask_words), np.int32)
    for _ in range(repeats):
        matcher: Matcher = grammar.matcher()
        start = time.perf_counter_ns()
        legal = matcher.draft_masks(draft, rows)
        drafts.append((time.perf_counter_ns() - start) / 1000)
        if legal != len(draft):
            raise AuditFailure("the draft is not legal as a whole")
        rollbacks.append([])
        forks.append([])
        for token in walk:
            mark = matcher.mark()
            matcher.advance(token)
            start = time.perf_counter_ns()
            matcher.rollback(mark)
            rollbacks[-1].append((time.perf_counter_ns() - start) / 1000)
            matcher.advance(token)
            start = time.perf_counter_ns()
            matcher.fork()
            forks[-1].append((time.perf_counter_ns() - start) / 1000)
    return {
        "rollback_us": _round(statistics.median(_quickest(rollbacks))),
        "fork_us": _round(statistics.median(_quickest(forks))),
        "draft_masks_us": _round(min(drafts)),
    }


def _quickest(runs: Sequence[Sequence[float]]) -> list[float]:
    """The least of every step over the runs: what a step costs, without the machine's interruptions."""
    return [min(step) for step in zip(*runs, strict=True)]


def _p99(values: Sequence[float]) -> float:
    return float(np.quantile(values, 0.99))


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    value = work()
    return (time.perf_counter() - start) * 1000, value


def _round(us: float) -> float:
    return round(us, 2)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _print_row(size: int, name: str, figures: dict[str, Any]) -> None:
    shown = {k: v for k, v in figures.items() if isinstance(v, float)}
    typer.echo(f"{size:7} {name:16} {figures['engine']:10} " + " ".join(f"{k} {v}" for k, v in shown.items()))
