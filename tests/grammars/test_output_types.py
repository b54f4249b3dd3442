"""Python, pydantic and Outlines types: the constraint they give and the value that comes back."""

from __future__ import annotations

import datetime
import enum
from dataclasses import dataclass
from typing import Any, Literal, Optional

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from constrained_spec.errors import RequestError
from constrained_spec.grammars.compile import Choice, JsonSchema, Lark, Regex, compile_constraint
from constrained_spec.grammars.output_types import JsonOptions, parse_output, to_constraint
from constrained_spec.types import Vocabulary


class Person(BaseModel):
    name: str
    age: int


@dataclass
class Point:
    x: int
    y: float


class Movie(TypedDict):
    title: str


class Colour(enum.Enum):
    RED = "red"
    TEN = 10


class Level(enum.IntEnum):
    LOW = 1


class Plain:
    pass


def search(query: str, limit: int = 3) -> None:
    raise AssertionError("never called")


VALUES: list[tuple[Any, str, Any]] = [
    (Person, '{"name": "Ada", "age": 36}', Person(name="Ada", age=36)),
    (JsonSchema(Person), '{"name": "Ada", "age": 36}', Person(name="Ada", age=36)),
    (JsonSchema({"type": "null"}), "null", None),
    ({"type": "integer"}, "7", 7),
    (Point, '{"x": 1, "y": 2.5}', Point(1, 2.5)),
    (Movie, '{"title": "M"}', {"title": "M"}),
    (Literal["yes", "no", 3], "yes", "yes"),
    (Literal["yes", "no", 3], "3", 3),
    (Literal[True, None], "null", None),
    (Colour, "red", Colour.RED),
    (Colour, "10", Colour.TEN),
    (Level, "1", Level.LOW),
    (bool, "true", True),
    (int, "-12", -12),
    (float, "1.5e3", 1500.0),
    (list[int], "[1, 2]", [1, 2]),
    (dict[str, bool], '{"a": true}', {"a": True}),
    (Optional[int], "null", None),  # noqa: UP045
    (int | str, '"a"', "a"),
    (list[Person], '[{"name": "A", "age": 1}]', [Person(name="A", age=1)]),
    (tuple[int, bool], "[1, true]", (1, True)),
    (datetime.date, '"2024-02-29"', datetime.date(2024, 2, 29)),
    (search, '{"query": "a", "limit": 2}', {"query": "a", "limit": 2}),
    (Regex("[a-z]+"), "abc", "abc"),
    (Choice(("a", "b")), "b", "b"),
    (Lark('start: "ab"'), "ab", "ab"),
]


@pytest.mark.parametrize(("output_type", "text", "value"), VALUES)
def test_the_text_is_legal_and_comes_back_as_the_value(
    output_type: Any, text: str, value: object, vocabulary: Vocabulary
) -> None:
    constraint = to_constraint(output_type)
    assert constraint is not None
    matcher = compile_constraint(constraint, vocabulary).matcher()
    assert all(matcher.advance(t) for t in vocabulary.encode(text))
    assert matcher.is_complete
    parsed = parse_output(output_type, text)
    assert parsed == value and type(parsed) is type(value)


def test_free_text() -> None:
    assert to_constraint(None) is None and to_constraint(str) is None
    assert parse_output(str, "any {") == parse_output(None, "any {") == "any {"


def test_whitespace_reaches_what_does_not_say_its_own() -> None:
    assert to_constraint({"type": "object"}, JsonOptions("compact")) == JsonSchema({"type": "object"}, "compact")
    assert to_constraint(JsonSchema({}, "flexible"), JsonOptions("compact")) == JsonSchema({}, "flexible")


def test_outlines_objects(vocabulary: Vocabulary) -> None:
    dsl = pytest.importorskip("outlines.types")
    assert to_constraint(dsl.Regex("[0-9]+")) == Regex("[0-9]+")
    assert to_constraint(dsl.CFG('start: "a"')) == Lark('start: "a"')
    assert to_constraint(dsl.Choice(["a.b", "c", 3])) == Choice(("a.b", "c", "3"))
    assert parse_output(dsl.Choice(["a", 3]), "3") == 3
    schema = to_constraint(dsl.JsonSchema({"type": "integer"}))
    assert isinstance(schema, JsonSchema) and parse_output(dsl.JsonSchema({"type": "integer"}), "3") == 3
    term = "id-" + dsl.Regex("[0-9]").exactly(3)
    constraint = to_constraint(term)
    assert constraint is not None
    matcher = compile_constraint(constraint, vocabulary).matcher()
    assert all(matcher.advance(t) for t in vocabulary.encode("id-123"))
    assert matcher.is_finished and parse_output(term, "id-123") == "id-123"
    assert isinstance(to_constraint(dsl.email), Regex)
    for bad in (dsl.JsonSchema({"type": "null"}).optional(), dsl.JsonSchema({}, whitespace_pattern=" ?")):
        with pytest.raises(RequestError):
            to_constraint(bad)


@pytest.mark.parametrize("bad", ["a string", 5, object(), Literal["1", 1], Plain])
def test_no_output_type(bad: object) -> None:
    with pytest.raises(RequestError) as caught:
        to_constraint(bad)
    assert caught.value.param == "output_type"


@pytest.mark.parametrize(
    ("output_type", "text"),
    [(Person, '{"name": "Ada"'), (int, "x"), (Literal["a"], "b"), ({"type": "null"}, "nul"), (list[int], '["a"]')],
)
def test_what_does_not_parse_is_a_typed_error(output_type: Any, text: str) -> None:
    with pytest.raises(RequestError):
        parse_output(output_type, text)
