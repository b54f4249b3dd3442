"""Texts to extract facts from, filled with random particulars, each with the schema of what it tells."""

from __future__ import annotations

from random import Random
from typing import Any

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


def objects(**properties: Any) -> dict[str, Any]:
    """The schema of an object with just these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


STRING: dict[str, Any] = {"type": "string"}
INTEGER: dict[str, Any] = {"type": "integer"}
NUMBER: dict[str, Any] = {"type": "number"}
BOOLEAN: dict[str, Any] = {"type": "boolean"}


def lists(item: dict[str, Any], most: int) -> dict[str, Any]:
    """The schema of a list of up to ``most`` such items."""
    return {"type": "array", "items": item, "maxItems": most}


def person(rng: Random) -> str:
    return f"{rng.choice(FIRST)} {rng.choice(LAST)}"


def date(rng: Random) -> str:
    return f"{rng.randint(2019, 2027)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def day(rng: Random) -> str:
    return f"{rng.randint(1, 28)} {rng.choice(MONTHS)} {rng.randint(2019, 2027)}"


def price(rng: Random) -> str:
    return f"{rng.randint(1, 400)}.{rng.choice(('00', '50', '99', '25', '75'))}"


def _phone(rng: Random) -> str:
    return f"{rng.randint(100, 999)}-{rng.randint(1000, 9999)}"


def _mail(rng: Random) -> str:
    return f"{rng.choice(FIRST)}.{rng.choice(LAST)}@{rng.choice(ITEMS).replace(' ', '')}.example".lower()


def _worker(rng: Random) -> tuple[str, dict[str, Any]]:
    who, job, city = person(rng), rng.choice(JOBS), rng.choice(CITIES)
    hobbies = rng.sample(HOBBIES, rng.randint(1, 3))
    text = rng.choice((
        f"{who}, {rng.randint(19, 77)}, works as a {job} in {city}. In the evenings there is time for "
        f"{' and '.join(hobbies)}.",
        f"Meet {who}! A {job} from {city}, {rng.randint(19, 77)} years old, who loves {', '.join(hobbies)}.",
    ))  # fmt: skip
    return text, objects(full_name=STRING, age=INTEGER, occupation=STRING, city=STRING, hobbies=lists(STRING, 4))


def _order(rng: Random) -> tuple[str, dict[str, Any]]:
    lines = [(rng.randint(1, 40), item, price(rng)) for item in rng.sample(ITEMS, rng.randint(1, 3))]
    text = f"Order {rng.choice('ABKQX')}{rng.randint(1000, 99999)} for {rng.choice(COMPANIES)}, placed {date(rng)}: "
    text += "; ".join(f"{n} {item} at {cost} {rng.choice(('EUR', 'USD'))} each" for n, item, cost in lines)
    text += f". Ship to {rng.choice(CITIES)}, {rng.choice(COUNTRIES)}."
    line = objects(product=STRING, amount=INTEGER, price=NUMBER)
    return text, objects(order_id=STRING, customer=STRING, placed_on=STRING, products=lists(line, 4), ship_to=STRING)


def _meeting(rng: Random) -> tuple[str, dict[str, Any]]:
    a, b = person(rng), person(rng)
    topic = rng.choice(TOPICS)
    text = rng.choice((
        f"On {day(rng)} at {rng.randint(8, 18)}:{rng.choice(('00', '15', '30'))} {a} and {b} meet in "
        f"{rng.choice(CITIES)} to discuss {topic}.",
        f"Reminder: session about {topic}, {date(rng)}, {rng.randint(8, 18)}:30, with {a} and {b}, room "
        f"{rng.randint(1, 40)}.",
    ))  # fmt: skip
    return text, objects(subject=STRING, day=STRING, time=STRING, participants=lists(STRING, 4), place=STRING)


def _review(rng: Random) -> tuple[str, dict[str, Any]]:
    item, good = rng.choice(ITEMS), rng.random() < 0.5
    mood = "Two of them broke within a week. Never again."
    if good:
        mood = "They work exactly as promised and arrived early."
    text = f"Review by {person(rng)} on the {item} from {rng.choice(COMPANIES)}, bought {day(rng)} for {price(rng)}: "
    text += mood
    return text, objects(
        reviewer=STRING,
        product=STRING,
        seller=STRING,
        sentiment={"type": "string", "enum": ["positive", "negative", "mixed"]},
        price=NUMBER,
        recommended=BOOLEAN,
    )


def _trip(rng: Random) -> tuple[str, dict[str, Any]]:
    start, end = rng.sample(CITIES, 2)
    text = (
        f"{person(rng)} flies from {start} to {end} on {date(rng)}, flight {rng.choice(('LH', 'AF', 'BA'))}"
        f"{rng.randint(100, 999)}, seat {rng.randint(1, 38)}{rng.choice('ABCDEF')}, {rng.randint(0, 2)} bags."
    )
    place = objects(city=STRING)
    return text, objects(
        passenger=STRING, origin=place, destination=place, date=STRING, flight=STRING, seat=STRING, bags=INTEGER
    )


def _company(rng: Random) -> tuple[str, dict[str, Any]]:
    name = rng.choice(COMPANIES)
    text = (
        f"{name} was founded in {rng.randint(1921, 2021)} by {person(rng)} and employs {rng.randint(4, 900)} people in "
        f"{rng.choice(CITIES)}, {rng.choice(COUNTRIES)}. It sells {' and '.join(rng.sample(ITEMS, 2))}. "
        f"Contact: info@{name.split()[0].lower()}.example, phone {_phone(rng)}."
    )
    contact = objects(email=STRING, phone=STRING)
    return text, objects(
        company=STRING, founded=INTEGER, founder=STRING, employees=INTEGER, city=STRING, country=STRING,
        sells=lists(STRING, 4), contact=contact,
    )  # fmt: skip


def _ticket(rng: Random) -> tuple[str, dict[str, Any]]:
    part = rng.choice(("login page", "export", "search", "billing", "mobile app", "report editor", "calendar"))
    text = (
        f"Ticket {rng.randint(100, 9999)} from {person(rng)}: the {part} fails with error {rng.randint(400, 599)} "
        f"since {day(rng)}. Version {rng.randint(1, 9)}.{rng.randint(0, 20)}. "
        f"{rng.choice(('Please fix it today.', 'No hurry.', 'All users are affected.'))}"
    )
    return text, objects(
        ticket=INTEGER,
        reporter=STRING,
        area=STRING,
        error_code=INTEGER,
        version=STRING,
        urgency={"type": "string", "enum": ["low", "medium", "high"]},
    )


def _recipe(rng: Random) -> tuple[str, dict[str, Any]]:
    food = rng.sample(("flour", "butter", "sugar", "rice", "lentils", "tomatoes", "milk", "onions", "cream"), 3)
    text = (
        f"{rng.choice(FIRST)}'s {rng.choice(('soup', 'cake', 'stew', 'pie'))} serves {rng.randint(2, 8)} and takes "
        f"{rng.randint(20, 90)} minutes. You need " + ", ".join(f"{rng.randint(50, 500)} g of {f}" for f in food) + "."
    )
    part = objects(name=STRING, grams=INTEGER)
    return text, objects(dish=STRING, servings=INTEGER, minutes=INTEGER, ingredients=lists(part, 4))


def _flat(rng: Random) -> tuple[str, dict[str, Any]]:
    rooms, size, rent = rng.randint(1, 6), rng.randint(18, 160), rng.randint(300, 2900)
    text = rng.choice((
        f"{rooms} rooms, {size} square metres, in {rng.choice(CITIES)}, {rng.choice(COUNTRIES)}. Rent {rent} a month. "
        f"Free from {day(rng)}. Call {person(rng)}, {_phone(rng)}.",
        f"To let: a flat of {size} m2 with {rooms} rooms at {rng.randint(1, 90)} {rng.choice(LAST)} Street, "
        f"{rng.choice(CITIES)}. {rent} EUR per month, from {date(rng)}. Pets are "
        f"{rng.choice(('welcome', 'not allowed'))}. Write to {_mail(rng)}.",
    ))  # fmt: skip
    return text, objects(
        rooms=INTEGER, size=NUMBER, city=STRING, rent=NUMBER, date=STRING, pets=BOOLEAN,
        contact=objects(full_name=STRING, phone=STRING, email=STRING),
    )  # fmt: skip


def _course(rng: Random) -> tuple[str, dict[str, Any]]:
    text = (
        f"{rng.choice(('Course', 'Workshop', 'Evening class'))}: {rng.choice((*HOBBIES, *TOPICS))} for "
        f"{rng.choice(('beginners', 'advanced learners', 'children', 'everyone'))}. {person(rng)} teaches "
        f"{rng.randint(2, 14)} weeks from {date(rng)}, room {rng.choice('ABC')}{rng.randint(1, 30)}, fee {price(rng)} "
        f"EUR, at most {rng.randint(6, 40)} people."
    )
    return text, objects(
        subject=STRING,
        teacher=STRING,
        level={"type": "string", "enum": ["beginner", "intermediate", "advanced", "all"]},
        weeks=INTEGER,
        date=STRING,
        place=STRING,
        price=NUMBER,
        seats=INTEGER,
    )


def _match(rng: Random) -> tuple[str, dict[str, Any]]:
    home, guest = rng.sample(CITIES, 2)
    text = (
        f"{home} beat {guest} {rng.randint(2, 5)}:{rng.randint(0, 1)} on {day(rng)} before {rng.randint(200, 60000)} "
        f"people. {person(rng)} scored in minute {rng.randint(1, 90)}, {person(rng)} in minute {rng.randint(1, 90)}."
    )
    goal = objects(full_name=STRING, minute=INTEGER)
    score = objects(home=INTEGER, guest=INTEGER)
    return text, objects(home=STRING, guest=STRING, score=score, date=STRING, spectators=INTEGER, goals=lists(goal, 5))


def _car(rng: Random) -> tuple[str, dict[str, Any]]:
    text = (
        f"For sale: {rng.choice(('red', 'blue', 'silver', 'black', 'white', 'green'))} "
        f"{rng.choice(('Volvo V60', 'Ford Focus', 'Fiat Panda', 'Skoda Octavia', 'Toyota Yaris', 'VW Golf'))}, built "
        f"{rng.randint(1998, 2024)}, {rng.randint(8, 290)}000 km, {rng.choice(('petrol', 'diesel', 'electric'))}, "
        f"{rng.randint(1, 39)}{rng.choice(('00', '50'))}0 EUR. {person(rng)}, {rng.choice(CITIES)}, {_phone(rng)}."
    )
    return text, objects(
        model=STRING,
        colour={"type": "string", "enum": ["red", "blue", "silver", "black", "white", "green"]},
        built=INTEGER,
        kilometres=INTEGER,
        fuel={"type": "string", "enum": ["petrol", "diesel", "electric"]},
        price=NUMBER,
        seller=objects(name=STRING, city=STRING, phone=STRING),
    )


def _loan(rng: Random) -> tuple[str, dict[str, Any]]:
    thing = rng.choice(THINGS).split(" ", 1)[1]
    text = (
        f"'{rng.choice(('The', 'My', 'Return of the', 'Beyond the'))} {thing.title()}' by {person(rng)} "
        f"({rng.randint(1950, 2025)}, {rng.randint(80, 900)} pages) was lent to {person(rng)}, card "
        f"{rng.randint(10000, 99999)}, on {date(rng)} and is due on {date(rng)}."
    )
    book = objects(title=STRING, author=STRING, year=INTEGER, pages=INTEGER)
    return text, objects(book=book, reader=STRING, card=STRING, lent=STRING, due=STRING)


def _weather(rng: Random) -> tuple[str, dict[str, Any]]:
    places = rng.sample(CITIES, rng.randint(1, 3))
    skies = ("sunny", "cloudy", "rain", "snow", "fog")
    text = f"Forecast for {date(rng)}: " + ", ".join(
        f"{p} {rng.randint(-9, 37)} degrees, {rng.choice(skies)}, wind {rng.randint(2, 90)} km/h" for p in places
    )
    one = objects(city=STRING, temperature=NUMBER, sky={"type": "string", "enum": list(skies)}, wind_kmh=INTEGER)
    return text + ".", objects(date=STRING, places=lists(one, 4))


def _visit(rng: Random) -> tuple[str, dict[str, Any]]:
    text = (
        f"{person(rng)}, born {date(rng)}, insured with {rng.choice(COMPANIES)}, came on {day(rng)} because of "
        f"{rng.choice(('a cough', 'back pain', 'a broken finger', 'fever', 'headaches'))} for {rng.randint(2, 20)} "
        f"days. Weight {rng.randint(40, 120)} kg, temperature {rng.randint(36, 40)}.{rng.randint(0, 9)}. "
        f"{rng.choice(('Come back in a week.', 'No further visit is needed.', 'Blood test ordered.'))}"
    )
    return text, objects(
        patient=objects(full_name=STRING, born=STRING, insurance=STRING),
        date=STRING,
        complaint=STRING,
        days=INTEGER,
        weight_kg=NUMBER,
        temperature=NUMBER,
        follow_up=BOOLEAN,
    )


def _note(rng: Random) -> tuple[str, dict[str, Any]]:
    text = (
        f"{rng.choice(('Hi', 'Hello', 'Dear'))} {rng.choice(FIRST)}, {rng.choice(FIRST)} called at "
        f"{rng.randint(8, 18)}:{rng.randint(10, 59)} about {rng.choice(TOPICS)}. Please ring back on {_phone(rng)} or "
        f"write to {_mail(rng)} before {day(rng)}. {rng.choice(('It is urgent.', 'There is no rush.', ''))}"
    )
    return text, objects(
        to=STRING, caller=STRING, time=STRING, about=STRING, phone=STRING, email=STRING, urgent=BOOLEAN
    )


TEXTS = (
    _worker, _order, _meeting, _review, _trip, _company, _ticket, _recipe, _flat, _course, _match, _car, _loan,
    _weather, _visit, _note,
)  # fmt: skip
