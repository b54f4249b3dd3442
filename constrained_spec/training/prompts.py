"""Prompts to sample the target on: extraction, tool calls, code and chat, filled with random particulars.

The jobs of ``cli/data/extraction.jsonl`` are not among them: they stay held out for measurements.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from constrained_spec.grammars.constraints import ToolCalls
from constrained_spec.training.code import code_task
from constrained_spec.training.forms import varied
from constrained_spec.training.texts import (
    BOOLEAN,
    INTEGER,
    NUMBER,
    STRING,
    TEXTS,
    date,
    day,
    lists,
    objects,
    person,
    price,
)
from constrained_spec.training.words import CITIES, HOBBIES, ITEMS, JOBS, THINGS, TOPICS


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt to answer. ``output_type`` None is free text; no messages: the model writes the request as well."""

    kind: str  # own, extraction, tools, code, chat
    messages: tuple[dict[str, str], ...]
    output_type: object
    max_tokens: int


def tasks(seed: int, count: int) -> list[Task]:
    """``count`` tasks, the kinds in turn (``TURN`` of them); the same for the same seed."""
    rng = Random(seed)
    return [_MAKERS[i % TURN](rng) for i in range(count)]


def _own(rng: Random) -> Task:
    # What the model was tuned on is what it thinks of first (Xu et al. 2024, "Magpie"): no list of ours is as wide.
    return Task("own", (), None, 256)


def _ask(kind: str, text: str, output_type: object, max_tokens: int, system: str | None = None) -> Task:
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return Task(kind, tuple(messages), output_type, max_tokens)


# ---- extraction -----------------------------------------------------------------------------------------------------


_INSTRUCTIONS = (
    "Extract the facts from this text as JSON.",
    "Extract the information from the text as JSON.",
    "Turn the text into a JSON object.",
    "Read the text and fill in the fields.",
    "Return the data in this message as JSON.",
)


def _extraction(rng: Random) -> Task:
    text, schema = rng.choice(TEXTS)(rng)
    schema = varied(rng, schema)
    told = f"\n\nFields: {', '.join(schema['properties'])}." if rng.random() < 0.3 else ""
    return _ask("extraction", f"{rng.choice(_INSTRUCTIONS)}\n\n{text}{told}", schema, 160)


# ---- tool calls -----------------------------------------------------------------------------------------------------

_TOOLS: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    (
        "get_weather",
        objects(city=STRING, unit={"type": "string", "enum": ["celsius", "fahrenheit"]}),
        ("What is the weather in {city}?", "Do I need an umbrella in {city} today?"),
    ),
    (
        "send_email",
        objects(to=STRING, subject=STRING, body=STRING),
        ("Write to {name} that the meeting moves to {day}.", "Email {name} about {topic}."),
    ),
    (
        "create_event",
        objects(title=STRING, date=STRING, attendees=lists(STRING, 3)),
        ("Plan a talk about {topic} with {name} on {date}.", "Put dinner with {name} into my calendar for {day}."),
    ),
    (
        "search_products",
        objects(query=STRING, max_price=NUMBER, in_stock=BOOLEAN),
        ("Find {item} for less than {price} dollars.", "Are there {item} below {price} that ship now?"),
    ),
    (
        "convert_currency",
        objects(amount=NUMBER, source=STRING, target=STRING),
        ("How much is {price} euros in dollars?", "Change {price} USD to JPY."),
    ),
    (
        "book_flight",
        objects(origin=STRING, destination=STRING, date=STRING, passengers=INTEGER),
        ("Two seats from {city} to {other} on {date}, please.", "I fly from {city} to {other} on {day}."),
    ),
    (
        "run_query",
        objects(table=STRING, columns=lists(STRING, 4), limit=INTEGER),
        ("Show the first {n} customers with name and city.", "List {n} orders with date and total."),
    ),
    (
        "set_reminder",
        objects(text=STRING, time=STRING),
        ("Remind me to call {name} at {n} o'clock.", "Remind me on {day} to buy {item}."),
    ),
)  # fmt: skip


def _tools(rng: Random) -> Task:
    offered = rng.sample(_TOOLS, rng.randint(1, 3))
    _, _, requests = wanted = rng.choice(offered)
    city, other = rng.sample(CITIES, 2)
    request = rng.choice(requests).format(
        city=city, other=other, name=person(rng), day=day(rng), date=date(rng), topic=rng.choice(TOPICS),
        item=rng.choice(ITEMS), price=price(rng), n=rng.randint(2, 20),
    )  # fmt: skip
    shown = "\n".join(json.dumps({"name": name, "parameters": schema}) for name, schema, _ in offered)
    if rng.random() < 0.6:
        # As an API has it: the grammar knows the tools, and the text of the request names them or not.
        told = f"You can call these tools:\n{shown}" if rng.random() < 0.3 else None
        tools = tuple({"name": name, "parameters": schema} for name, schema, _ in offered)
        return _ask("tools", request, ToolCalls(tools, choice="required", parallel=False), 120, told)
    calls = [objects(name={"const": name}, arguments=schema) for name, schema, _ in offered]
    schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
    assert wanted in offered
    text = f"You can call these tools:\n{shown}\n\nAnswer with one call as JSON.\n\n{request}"
    return _ask("tools", text, schema, 120)


# ---- code and chat --------------------------------------------------------------------------------------------------


def _code(rng: Random) -> Task:
    return _ask("code", code_task(rng), None, 160)


_QUESTIONS = (
    "Explain {topic} in simple words.",
    "What is {topic}?",
    "Give me five facts about {topic}.",
    "Why does {topic} matter?",
    "Write a short paragraph about {topic}.",
    "Write a short story about {thing}.",
    "Write a poem about {thing}.",
    "Compare {topic} and {second}.",
    "How can I learn more about {topic}?",
    "Write an email to {name} about {topic}.",
    "Plan a three day trip to {city}.",
    "What should I pack for a week in {city}?",
    "Give me tips for {hobby}.",
    "How do I become a {job}?",
    "What are the advantages and disadvantages of {hobby}?",
    "Suggest a name and a slogan for a company that sells {item}.",
    "Summarise: {name} from {city} went to the market on {day} to sell {item}, but it rained and nobody came.",
    "Translate to Spanish: {name} lives in {city} and likes {hobby}.",
    "List the steps to start with {hobby}.",
    "Write a job advert for a {job} in {city}.",
    "Make a table of three {item} with prices.",
    "What is {n} plus {m}? Explain the steps.",
    "Write a product description for {item}.",
    "Describe {thing} in three sentences.",
    "Make a quiz with three questions about {topic}.",
    "Explain {topic} to a child, then to an expert.",
)


def _chat(rng: Random) -> Task:
    topic, second = rng.sample(TOPICS, 2)
    text = rng.choice(_QUESTIONS).format(
        topic=topic, second=second, thing=rng.choice(THINGS), name=person(rng), city=rng.choice(CITIES),
        hobby=rng.choice(HOBBIES), job=rng.choice(JOBS), item=rng.choice(ITEMS), day=day(rng), n=rng.randint(2, 99),
        m=rng.randint(2, 99),
    )  # fmt: skip
    system = "You are a helpful assistant. Answer briefly." if rng.random() < 0.2 else None
    return _ask("chat", text, None, 192, system)


def _text(rng: Random) -> Task:
    return rng.choice((_chat, _code))(rng)


_MAKERS: tuple[Callable[[Random], Task], ...] = (_own, _extraction, _own, _tools, _extraction, _own, _text)
TURN = len(_MAKERS)
