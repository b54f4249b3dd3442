"""Budgets by name, and compilation that can be ended: time, memory, a crash, and a process that stays."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from constrained_spec.errors import (
    ConfigError,
    GrammarBudgetError,
    GrammarSyntaxError,
    RequestError,
    UnsatisfiableError,
)
from constrained_spec.grammars import automaton, choice, guard, json_schema, lark
from constrained_spec.grammars.budget import DEFAULT, Budget, check_text
from constrained_spec.grammars.compile import Choice, Constraint, JsonSchema, Lark, Regex, compile_constraint
from constrained_spec.grammars.guard import Worker, compile_guarded
from constrained_spec.types import Vocabulary

DEEP: dict[str, object] = {"type": "integer"}
for _ in range(20):
    DEEP = {"type": "array", "items": DEEP}


@pytest.fixture(scope="module", autouse=True)
def _no_process_stays() -> Iterator[None]:
    yield
    guard._WORKER.close()


def test_the_defaults_are_what_the_compilers_hold() -> None:
    assert DEFAULT.states == automaton.MAX_DFA_STATES
    assert DEFAULT.text_bytes == json_schema.MAX_SCHEMA_BYTES == lark.MAX_LARK_BYTES
    assert DEFAULT.choice_bytes == choice.MAX_CHOICE_BYTES
    assert DEFAULT.enum == json_schema.MAX_ENUM
    assert DEFAULT.depth == json_schema.MAX_SCHEMA_DEPTH
    assert DEFAULT.multiple_of == json_schema.MAX_MULTIPLE_OF


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enum", 20_001),
        ("states", 10**9),
        ("depth", 0),
        ("depth", -1),
        ("text_bytes", 1.5),
        ("text_bytes", True),
        ("compile_seconds", 0),
        ("compile_seconds", float("nan")),
        ("memory_bytes", "1"),
    ],
)
def test_a_budget_out_of_range_names_its_limit(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        Budget(**{name: value})  # type: ignore[arg-type]
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("constraint", "limit", "most", "param"),
    [
        (JsonSchema({"enum": list(range(11))}), "enum", 10, "/enum"),
        (JsonSchema({"properties": {"a/b": {"enum": list(range(11))}}}), "enum", 10, "/properties/a~1b/enum"),
        (JsonSchema({"multipleOf": 97}), "multiple_of", 96, "/multipleOf"),
        (JsonSchema({"multipleOf": 0.97}), "multiple_of", 96, "/multipleOf"),
        (JsonSchema(DEEP), "depth", 20, "schema"),
        (JsonSchema({"const": "é" * 50}), "text_bytes", 100, "schema"),
        (Regex("é" * 51), "text_bytes", 100, "regex"),
        (Lark('start: "' + "a" * 100 + '"'), "text_bytes", 100, "grammar"),
        (Choice(("a" * 50, "b" * 51)), "choice_bytes", 100, "choice"),
    ],
)
def test_a_text_beyond_its_budget_is_refused(constraint: Constraint, limit: str, most: int, param: str) -> None:
    check_text(constraint, DEFAULT)
    with pytest.raises(GrammarBudgetError) as caught:
        check_text(constraint, Budget(**{limit: most}))
    assert (caught.value.limit, caught.value.param) == (limit, param)


def test_what_just_fits_passes() -> None:
    check_text(JsonSchema({"enum": list(range(10))}), Budget(enum=10))
    check_text(JsonSchema({"multipleOf": 9700}), Budget(multiple_of=97))
    check_text(Regex("é" * 50), Budget(text_bytes=100))
    check_text(Choice(("a" * 50, "b" * 50, "a" * 50)), Budget(choice_bytes=100))
    check_text(JsonSchema({"type": "integer"}), Budget(depth=2))


def test_a_constraint_within_another_one_is_looked_at_too() -> None:
    from constrained_spec.grammars.constraints import All, Optional

    nested = All(Regex("a+"), Optional(Regex("b" * 101)))
    check_text(nested, DEFAULT)
    with pytest.raises(GrammarBudgetError) as caught:
        check_text(nested, Budget(text_bytes=100))
    assert caught.value.limit == "text_bytes"


def test_the_states_of_an_automaton_are_held_but_not_those_of_a_list(vocabulary: Vocabulary) -> None:
    assert compile_guarded(Regex("a{0,50}"), vocabulary, budget=Budget(states=51)) is not None
    with pytest.raises(GrammarBudgetError) as caught:
        compile_guarded(Regex("a{0,51}"), vocabulary, budget=Budget(states=51))
    assert caught.value.limit == "states"
    compile_guarded(Choice(("a" * 200,)), vocabulary, budget=Budget(states=51))


class Person(BaseModel):
    """A class that the other process cannot import."""

    name: str


def test_under_guard_a_constraint_compiles_to_the_same_grammar(vocabulary: Vocabulary) -> None:
    for constraint in (Regex("[a-c]+"), JsonSchema(Person), Choice(("é", "ab")), Lark('start: "a"')):
        assert compile_guarded(constraint, vocabulary) is compile_constraint(constraint, vocabulary)


def test_under_guard_errors_are_the_compilers_own(vocabulary: Vocabulary) -> None:
    with pytest.raises(GrammarSyntaxError) as caught:
        compile_guarded(Regex("a("), vocabulary)
    assert caught.value.position == 1
    with pytest.raises(UnsatisfiableError):
        compile_guarded(Choice(()), vocabulary)


def test_time_that_runs_out_ends_the_process_and_the_next_one_serves(vocabulary: Vocabulary) -> None:
    worker = Worker()
    try:
        worker.check(Regex("a"), vocabulary, DEFAULT, "any")
        first = worker.pid
        slow = JsonSchema({"multipleOf": 99_991})
        with pytest.raises(GrammarBudgetError) as caught:
            worker.check(slow, vocabulary, Budget(compile_seconds=0.01), "any")
        assert caught.value.limit == "compile_seconds" and caught.value.hint
        assert worker.pid is None
        worker.check(Regex("b"), vocabulary, DEFAULT, "any")
        assert worker.pid not in (None, first)
    finally:
        worker.close()


def test_memory_that_runs_out_is_typed(vocabulary: Vocabulary) -> None:
    worker = Worker()
    try:
        for constraint in (Regex("(a|b)*a(a|b){13}"), JsonSchema({"multipleOf": 99_991})):
            with pytest.raises(GrammarBudgetError) as caught:
                worker.check(constraint, vocabulary, Budget(memory_bytes=1 << 20, compile_seconds=300), "any")
            assert caught.value.limit == "memory_bytes"
        worker.check(Regex("(a|b)*a(a|b){13}"), vocabulary, DEFAULT, "any")
    finally:
        worker.close()


def test_the_process_stays_and_does_not_ask_twice(vocabulary: Vocabulary) -> None:
    worker = Worker()
    try:
        worker.check(Regex("a"), vocabulary, DEFAULT, "any")
        pid = worker.pid
        assert pid is not None
        for text in ("b", "c", "d"):
            worker.check(Regex(text), vocabulary, DEFAULT, "any")
        assert worker.pid == pid
        # A third vocabulary takes the place of the first, which is sent again when it is needed.
        for last in (b"one", b"two", b"three"):
            other = Vocabulary((*vocabulary.tokens, last), vocabulary.eos_ids, vocabulary.special, vocabulary.encode)
            worker.check(Regex("e"), other, DEFAULT, "any")
        worker.check(Regex("f"), vocabulary, DEFAULT, "any")
        assert worker.pid == pid
        os.kill(pid, signal.SIGKILL)
        worker.check(Regex("a"), vocabulary, DEFAULT, "any")  # known to pass: nobody is asked
        worker.check(Regex("g"), vocabulary, DEFAULT, "any")
        assert worker.pid not in (None, pid)
    finally:
        worker.close()


@pytest.mark.parametrize("crashes", [1, 2])
def test_a_crash_is_typed_if_it_repeats(crashes: int, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()
    ask = worker._ask
    killed: list[int] = []

    def deadly(request: tuple[object, ...], seconds: float) -> dict[str, object]:
        if request[0] == "compile" and len(killed) < crashes:
            assert worker.pid is not None
            killed.append(worker.pid)
            os.kill(worker.pid, signal.SIGSEGV)
        return ask(request, seconds)

    monkeypatch.setattr(worker, "_ask", deadly)
    try:
        if crashes == 1:
            worker.check(Regex("a"), vocabulary, DEFAULT, "any")
        else:
            with pytest.raises(RequestError) as caught:
                worker.check(Regex("a"), vocabulary, DEFAULT, "any")
            assert "signal 11" in caught.value.message and not isinstance(caught.value, GrammarBudgetError)
        worker.check(Regex("b"), vocabulary, DEFAULT, "any")
        assert len(killed) == crashes
    finally:
        worker.close()


def test_threads_take_turns(vocabulary: Vocabulary) -> None:
    faults: list[BaseException] = []

    def ask(i: int) -> None:
        try:
            compile_guarded(Regex(f"turn {i}"), vocabulary)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert faults == []


def test_what_cannot_be_sent_is_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(RequestError):
        compile_guarded(JsonSchema({"const": object()}), vocabulary)
    with pytest.raises(RequestError):
        compile_guarded(lambda: None, vocabulary)  # type: ignore[arg-type]


@pytest.mark.parametrize("through", ["properties", "reference"])
def test_a_long_chain_of_references_is_refused(through: str, vocabulary: Vocabulary) -> None:
    """The engine recurses along it until the process ends."""

    def chain(n: int) -> dict[str, object]:
        def link(i: int) -> object:
            ref = {"$ref": f"#/$defs/d{i + 1}"}
            return {"type": "object", "properties": {"a": ref}} if through == "properties" else ref

        return {"$ref": "#/$defs/d0", "$defs": {**{f"d{i}": link(i) for i in range(n)}, f"d{n}": {"type": "integer"}}}

    with pytest.raises(GrammarBudgetError, match="levels deep"):
        compile_constraint(JsonSchema(chain(5000)), vocabulary)
    assert compile_constraint(JsonSchema(chain(200)), vocabulary).matcher() is not None
    recursive = {"$ref": "#/$defs/t", "$defs": {"t": {"properties": {"t": {"$ref": "#/$defs/t"}}}}}
    assert compile_constraint(JsonSchema(recursive), vocabulary).matcher() is not None
