"""instructor, whose pins clash with openai's: every mode for openai's API, and partial objects.

Run by ``run_isolated.py`` in an environment of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import instructor  # type: ignore[import-not-found]
import jsonschema
import pytest
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field

Mode = instructor.Mode
MESSAGES: Any = [{"role": "user", "content": "Ada Lovelace died at 36. Extract her name and her age."}]
# Where the request carries the schema, under present and former names of the modes.
MODES = [Mode.TOOLS, Mode.TOOLS_STRICT, Mode.FUNCTIONS, Mode.JSON_SCHEMA, Mode.JSON_O1]


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=16)
    age: int = Field(ge=0, le=150)


class Anything(BaseModel):
    """Any JSON object."""

    model_config = ConfigDict(extra="allow")


SCHEMA = Person.model_json_schema()
FENCED = r'```json\n\{"name": "[A-Z][a-z ]{1,11}", "age": [1-9][0-9]\}\n```'


@pytest.fixture(scope="session")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600) as made:
        yield made


def ask(client: OpenAI, mode: Any, model: str, response_model: Any = Person, **options: Any) -> Any:
    patched = instructor.from_openai(client, mode=mode)
    request: dict[str, Any] = {"model": model, "messages": MESSAGES, "temperature": 0, "max_tokens": 80, **options}
    return patched.create(response_model=response_model, max_retries=0, **request)


def is_person(person: Any) -> None:
    assert isinstance(person, Person)
    jsonschema.validate(person.model_dump(), SCHEMA)


@pytest.mark.filterwarnings("ignore:Mode.*deprecated:DeprecationWarning")
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_the_object(client: OpenAI, model: str, mode: Any) -> None:
    is_person(ask(client, mode, model))


@pytest.mark.parametrize("mode", [Mode.TOOLS, Mode.JSON_SCHEMA], ids=str)
def test_drafts_change_nothing(client: OpenAI, model: str, mode: Any) -> None:
    found = [ask(client, mode, model, extra_body={"extra": {"speculation": way}}) for way in ("fixed", "off")]
    assert found[0].model_dump() == found[1].model_dump()


def test_any_object(client: OpenAI, model: str) -> None:
    """This mode puts the schema into the prompt, to which a small model does not keep."""
    found = ask(client, Mode.JSON, model, Anything, extra_body={"close_on_length": True})
    assert isinstance(found, Anything)


def test_a_fenced_object_in_free_text(client: OpenAI, model: str) -> None:
    """This mode sends no constraint of its own, so that one more can be asked for."""
    is_person(ask(client, Mode.MD_JSON, model, extra_body={"structured_outputs": {"regex": FENCED}}))


@pytest.mark.parametrize("mode", [Mode.TOOLS, Mode.JSON_SCHEMA], ids=str)
def test_partial_objects_grow(client: OpenAI, model: str, mode: Any) -> None:
    patched = instructor.from_openai(client, mode=mode)
    parts = list(
        patched.create_partial(
            response_model=Person, model=model, messages=MESSAGES, temperature=0, max_tokens=80, max_retries=0
        )
    )
    assert len(parts) > 1 and parts[-1].age is not None
    names = [part.name for part in parts if part.name is not None]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(names))
    jsonschema.validate(parts[-1].model_dump(), SCHEMA)


def test_parallel_calls(client: OpenAI, model: str) -> None:
    """One of them. The client leaves it to the model whether it calls at all, and how often."""
    forced = {"tool_choice": "required", "parallel_tool_calls": False}
    (person,) = ask(client, Mode.PARALLEL_TOOLS, model, Iterable[Person], extra_body=forced)
    is_person(person)


def test_responses(client: OpenAI, model: str) -> None:
    patched = instructor.from_openai(client, mode=Mode.RESPONSES_TOOLS)
    is_person(
        patched.create(response_model=Person, model=model, messages=MESSAGES, max_retries=0, max_output_tokens=80)
    )
