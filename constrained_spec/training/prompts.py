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
from constrained_spec.training.words import (
    CITIES,
    COMPANIES,
    COUNTRIES,
    FIRST,
    HOBBIES,
    ITEMS,
    JOBS,
    LAST,
    MONTHS,
    THINGS,
    TOPICS,
)


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


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_STRING: dict[str, Any] = {"type": "string"}
_INTEGER: dict[str, Any] = {"type": "integer"}
_NUMBER: dict[str, Any] = {"type": "number"}
_BOOLEAN: dict[str, Any] = {"type": "boolean"}


def _list(item: dict[str, Any], most: int) -> dict[str, Any]:
    return {"type": "array", "items": item, "maxItems": most}


def _name(rng: Random) -> str:
    return f"{rng.choice(FIRST)} {rng.choice(LAST)}"


def _date(rng: Random) -> str:
    return f"{rng.randint(2019, 2027)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def _day(rng: Random) -> str:
    return f"{rng.randint(1, 28)} {rng.choice(MONTHS)} {rng.randint(2019, 2027)}"


def _price(rng: Random) -> str:
    return f"{rng.randint(1, 400)}.{rng.choice(('00', '50', '99', '25', '75'))}"


def _worker(rng: Random) -> tuple[str, dict[str, Any]]:
    who, job, city = _name(rng), rng.choice(JOBS), rng.choice(CITIES)
    hobbies = rng.sample(HOBBIES, rng.randint(1, 3))
    text = rng.choice((
        f"{who}, {rng.randint(19, 77)}, works as a {job} in {city}. In the evenings there is time for "
        f"{' and '.join(hobbies)}.",
        f"Meet {who}! A {job} from {city}, {rng.randint(19, 77)} years old, who loves {', '.join(hobbies)}.",
    ))  # fmt: skip
    return text, _object(full_name=_STRING, age=_INTEGER, occupation=_STRING, city=_STRING, hobbies=_list(_STRING, 4))


def _order(rng: Random) -> tuple[str, dict[str, Any]]:
    lines = [(rng.randint(1, 40), item, _price(rng)) for item in rng.sample(ITEMS, rng.randint(1, 3))]
    text = f"Order {rng.choice('ABKQX')}{rng.randint(1000, 99999)} for {rng.choice(COMPANIES)}, placed {_date(rng)}: "
    text += "; ".join(f"{n} {item} at {price} {rng.choice(('EUR', 'USD'))} each" for n, item, price in lines)
    text += f". Ship to {rng.choice(CITIES)}, {rng.choice(COUNTRIES)}."
    line = _object(product=_STRING, amount=_INTEGER, price=_NUMBER)
    return text, _object(
        order_id=_STRING, customer=_STRING, placed_on=_STRING, products=_list(line, 4), ship_to=_STRING
    )


def _meeting(rng: Random) -> tuple[str, dict[str, Any]]:
    a, b = _name(rng), _name(rng)
    topic = rng.choice(TOPICS)
    text = rng.choice((
        f"On {_day(rng)} at {rng.randint(8, 18)}:{rng.choice(('00', '15', '30'))} {a} and {b} meet in "
        f"{rng.choice(CITIES)} to discuss {topic}.",
        f"Reminder: session about {topic}, {_date(rng)}, {rng.randint(8, 18)}:30, with {a} and {b}, room "
        f"{rng.randint(1, 40)}.",
    ))  # fmt: skip
    return text, _object(subject=_STRING, day=_STRING, time=_STRING, participants=_list(_STRING, 4), place=_STRING)


def _review(rng: Random) -> tuple[str, dict[str, Any]]:
    item, good = rng.choice(ITEMS), rng.random() < 0.5
    mood = "Two of them broke within a week. Never again."
    if good:
        mood = "They work exactly as promised and arrived early."
    text = f"Review by {_name(rng)} on the {item} from {rng.choice(COMPANIES)}, bought {_day(rng)} for {_price(rng)}: "
    text += mood
    return text, _object(
        reviewer=_STRING,
        product=_STRING,
        seller=_STRING,
        sentiment={"type": "string", "enum": ["positive", "negative", "mixed"]},
        price=_NUMBER,
        recommended=_BOOLEAN,
    )


def _trip(rng: Random) -> tuple[str, dict[str, Any]]:
    start, end = rng.sample(CITIES, 2)
    text = (
        f"{_name(rng)} flies from {start} to {end} on {_date(rng)}, flight {rng.choice(('LH', 'AF', 'BA'))}"
        f"{rng.randint(100, 999)}, seat {rng.randint(1, 38)}{rng.choice('ABCDEF')}, {rng.randint(0, 2)} bags."
    )
    place = _object(city=_STRING)
    return text, _object(
        passenger=_STRING, origin=place, destination=place, date=_STRING, flight=_STRING, seat=_STRING, bags=_INTEGER
    )


def _company(rng: Random) -> tuple[str, dict[str, Any]]:
    name = rng.choice(COMPANIES)
    text = (
        f"{name} was founded in {rng.randint(1921, 2021)} by {_name(rng)} and employs {rng.randint(4, 900)} people in "
        f"{rng.choice(CITIES)}, {rng.choice(COUNTRIES)}. It sells {' and '.join(rng.sample(ITEMS, 2))}. "
        f"Contact: info@{name.split()[0].lower()}.example, phone {rng.randint(100, 999)}-{rng.randint(1000, 9999)}."
    )
    contact = _object(email=_STRING, phone=_STRING)
    return text, _object(
        company=_STRING, founded=_INTEGER, founder=_STRING, employees=_INTEGER, city=_STRING, country=_STRING,
        sells=_list(_STRING, 4), contact=contact,
    )  # fmt: skip


def _ticket(rng: Random) -> tuple[str, dict[str, Any]]:
    part = rng.choice(("login page", "export", "search", "billing", "mobile app", "report editor", "calendar"))
    text = (
        f"Ticket {rng.randint(100, 9999)} from {_name(rng)}: the {part} fails with error {rng.randint(400, 599)} since "
        f"{_day(rng)}. Version {rng.randint(1, 9)}.{rng.randint(0, 20)}. "
        f"{rng.choice(('Please fix it today.', 'No hurry.', 'All users are affected.'))}"
    )
    return text, _object(
        ticket=_INTEGER,
        reporter=_STRING,
        area=_STRING,
        error_code=_INTEGER,
        version=_STRING,
        urgency={"type": "string", "enum": ["low", "medium", "high"]},
    )


def _recipe(rng: Random) -> tuple[str, dict[str, Any]]:
    food = rng.sample(("flour", "butter", "sugar", "rice", "lentils", "tomatoes", "milk", "onions", "cream"), 3)
    text = (
        f"{rng.choice(FIRST)}'s {rng.choice(('soup', 'cake', 'stew', 'pie'))} serves {rng.randint(2, 8)} and takes "
        f"{rng.randint(20, 90)} minutes. You need " + ", ".join(f"{rng.randint(50, 500)} g of {f}" for f in food) + "."
    )
    part = _object(name=_STRING, grams=_INTEGER)
    return text, _object(dish=_STRING, servings=_INTEGER, minutes=_INTEGER, ingredients=_list(part, 4))


_TEXTS = (_worker, _order, _meeting, _review, _trip, _company, _ticket, _recipe)
_INSTRUCTIONS = (
    "Extract the facts from this text as JSON.",
    "Extract the information from the text as JSON.",
    "Turn the text into a JSON object.",
    "Read the text and fill in the fields.",
    "Return the data in this message as JSON.",
)


def _extraction(rng: Random) -> Task:
    text, schema = rng.choice(_TEXTS)(rng)
    told = f"\n\nFields: {', '.join(schema['properties'])}." if rng.random() < 0.3 else ""
    return _ask("extraction", f"{rng.choice(_INSTRUCTIONS)}\n\n{text}{told}", schema, 160)


# ---- tool calls -----------------------------------------------------------------------------------------------------

_TOOLS: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    (
        "get_weather",
        _object(city=_STRING, unit={"type": "string", "enum": ["celsius", "fahrenheit"]}),
        ("What is the weather in {city}?", "Do I need an umbrella in {city} today?"),
    ),
    (
        "send_email",
        _object(to=_STRING, subject=_STRING, body=_STRING),
        ("Write to {name} that the meeting moves to {day}.", "Email {name} about {topic}."),
    ),
    (
        "create_event",
        _object(title=_STRING, date=_STRING, attendees=_list(_STRING, 3)),
        ("Plan a talk about {topic} with {name} on {date}.", "Put dinner with {name} into my calendar for {day}."),
    ),
    (
        "search_products",
        _object(query=_STRING, max_price=_NUMBER, in_stock=_BOOLEAN),
        ("Find {item} for less than {price} dollars.", "Are there {item} below {price} that ship now?"),
    ),
    (
        "convert_currency",
        _object(amount=_NUMBER, source=_STRING, target=_STRING),
        ("How much is {price} euros in dollars?", "Change {price} USD to JPY."),
    ),
    (
        "book_flight",
        _object(origin=_STRING, destination=_STRING, date=_STRING, passengers=_INTEGER),
        ("Two seats from {city} to {other} on {date}, please.", "I fly from {city} to {other} on {day}."),
    ),
    (
        "run_query",
        _object(table=_STRING, columns=_list(_STRING, 4), limit=_INTEGER),
        ("Show the first {n} customers with name and city.", "List {n} orders with date and total."),
    ),
    (
        "set_reminder",
        _object(text=_STRING, time=_STRING),
        ("Remind me to call {name} at {n} o'clock.", "Remind me on {day} to buy {item}."),
    ),
)  # fmt: skip


def _tools(rng: Random) -> Task:
    offered = rng.sample(_TOOLS, rng.randint(1, 3))
    _, _, requests = wanted = rng.choice(offered)
    city, other = rng.sample(CITIES, 2)
    request = rng.choice(requests).format(
        city=city, other=other, name=_name(rng), day=_day(rng), date=_date(rng), topic=rng.choice(TOPICS),
        item=rng.choice(ITEMS), price=_price(rng), n=rng.randint(2, 20),
    )  # fmt: skip
    shown = "\n".join(json.dumps({"name": name, "parameters": schema}) for name, schema, _ in offered)
    if rng.random() < 0.6:
        # As an API has it: the grammar knows the tools, and the text of the request names them or not.
        told = f"You can call these tools:\n{shown}" if rng.random() < 0.3 else None
        tools = tuple({"name": name, "parameters": schema} for name, schema, _ in offered)
        return _ask("tools", request, ToolCalls(tools, choice="required", parallel=False), 120, told)
    calls = [_object(name={"const": name}, arguments=schema) for name, schema, _ in offered]
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
        topic=topic, second=second, thing=rng.choice(THINGS), name=_name(rng), city=rng.choice(CITIES),
        hobby=rng.choice(HOBBIES), job=rng.choice(JOBS), item=rng.choice(ITEMS), day=_day(rng), n=rng.randint(2, 99),
        m=rng.randint(2, 99),
    )  # fmt: skip
    system = "You are a helpful assistant. Answer briefly." if rng.random() < 0.2 else None
    return _ask("chat", text, None, 192, system)


_MAKERS: tuple[Callable[[Random], Task], ...] = (_own, _extraction, _own, _tools, _chat, _own, _code)
TURN = len(_MAKERS)
