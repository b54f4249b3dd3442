"""What a constraint may cost. Every limit has a name, which the ``GrammarBudgetError`` it leads to carries."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from constrained_spec.errors import ConfigError, GrammarBudgetError
from constrained_spec.grammars.constraints import Choice, JsonSchema, Lark, Regex
from constrained_spec.grammars.json_schema import canonical_text
from constrained_spec.grammars.schema_walk import Json, nests_deeper, subschemas


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits on one constraint.

    The defaults are also the most: the compilers hold them whatever a caller asks for, so a budget can tighten a limit
    and not loosen it (``ConfigError``). ``compile_seconds`` and ``memory_bytes`` have no upper end; they hold where a
    constraint is compiled under guard.
    """

    compile_seconds: float = 10.0  # wall clock of one compilation
    memory_bytes: int = 1 << 30  # address space that one compilation may add
    states: int = 20_000  # of a token automaton; a regex beyond it is llguidance's
    text_bytes: int = 1 << 20  # UTF-8 of a schema, a grammar or a regex
    choice_bytes: int = 1 << 24  # UTF-8 of all distinct choices together
    enum: int = 20_000  # values of one enum
    depth: int = 200  # levels of a schema, as JSON
    multiple_of: int = 100_000  # residues that a multipleOf distinguishes: its numerator without factors of ten

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            most: Any = field.default
            whole = field.name != "compile_seconds"
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not value > 0:
                raise ConfigError(f"{field.name} must be a positive number, got {value!r}", param=field.name)
            if field.name not in ("compile_seconds", "memory_bytes") and value > most:
                raise ConfigError(
                    f"{field.name} can be at most {most}, got {value}",
                    param=field.name,
                    hint="the compilers hold this limit themselves",
                )


DEFAULT = Budget()


def check_text(constraint: object, budget: Budget) -> None:
    """What the text of ``constraint``, and of every constraint in it, already tells; it is not compiled.

    Raises ``GrammarBudgetError``, and ``RequestError`` for a schema that is no JSON.
    """
    for part in parts(constraint):
        if isinstance(part, JsonSchema):
            _check_schema(part, budget)
        elif isinstance(part, Regex):
            _hold("text_bytes", _size(part.pattern), budget.text_bytes, "the regex", "bytes", "regex")
        elif isinstance(part, Lark):
            _hold("text_bytes", _size(part.text), budget.text_bytes, "the grammar", "bytes", "grammar")
        elif isinstance(part, Choice):
            total = sum(_size(option) for option in set(part.options))
            _hold("choice_bytes", total, budget.choice_bytes, "the list of choices", "bytes", "choice")


def check_states(states: int, budget: Budget) -> None:
    """For a compiled token automaton. Raises ``GrammarBudgetError``."""
    _hold("states", states, budget.states, "the automaton", "states", None)


def parts(constraint: object) -> Iterator[object]:
    """``constraint`` and the constraints that its fields hold, outermost first."""
    yield constraint
    if isinstance(constraint, JsonSchema | Regex | Choice | Lark):
        return
    if isinstance(constraint, tuple | list):
        for item in constraint:
            yield from parts(item)
    elif dataclasses.is_dataclass(constraint) and not isinstance(constraint, type):
        for field in dataclasses.fields(constraint):
            yield from parts(getattr(constraint, field.name))


def _check_schema(constraint: JsonSchema, budget: Budget) -> None:
    text = canonical_text(constraint.schema)
    _hold("text_bytes", len(text.encode()), budget.text_bytes, "the schema", "bytes", "schema")
    schema: Json = json.loads(text)
    if nests_deeper(schema, budget.depth):
        _hold("depth", budget.depth + 1, budget.depth, "the schema", "levels or more", "schema")
    for pointer, node in subschemas(schema):
        values = node.get("enum")
        if isinstance(values, list):
            _hold("enum", len(values), budget.enum, "the enum", "values", f"{pointer}/enum")
        step = node.get("multipleOf")
        if isinstance(step, int | float) and not isinstance(step, bool):
            _hold(
                "multiple_of", residues(step), budget.multiple_of, "the multipleOf", "states", f"{pointer}/multipleOf"
            )


def residues(step: float) -> int:
    """Numerator of ``step``, factors of ten dropped: about the number of states that its check takes."""
    numerator = Fraction(str(step)).numerator
    while numerator and numerator % 10 == 0:
        numerator //= 10
    return abs(numerator)


def _size(text: object) -> int:
    return len(text.encode(errors="surrogatepass")) if isinstance(text, str) else 0  # no text: the compiler's to refuse


def _hold(limit: str, value: int, most: int, what: str, unit: str, param: str | None) -> None:
    if value > most:
        raise GrammarBudgetError(
            f"{what} has {value} {unit}, the budget is {most}",
            limit=limit,
            param=param,
            hint=f"raise {limit} or simplify",
        )
