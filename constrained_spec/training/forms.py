"""Schemas that no two tasks share: the texts of ``prompts`` under other names, formats, orders and nestings."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from constrained_spec.training.texts import objects

_Style = Callable[[str], str]  # how a name is written

_SYNONYMS: dict[str, tuple[str, ...]] = {
    "full_name": ("name", "person", "who", "contact_name", "employee"),
    "age": ("years", "age_years", "how_old"),
    "occupation": ("job", "profession", "role", "works_as", "position"),
    "city": ("town", "location", "lives_in", "place", "residence"),
    "hobbies": ("interests", "likes", "free_time", "activities"),
    "order_id": ("id", "order", "number", "reference", "order_number"),
    "customer": ("buyer", "client", "company", "ordered_by", "account"),
    "placed_on": ("date", "ordered", "created_at", "order_date", "when"),
    "products": ("items", "lines", "positions", "articles", "goods"),
    "product": ("item", "article", "name", "what", "title"),
    "amount": ("count", "quantity", "pieces", "qty", "units"),
    "price": ("cost", "unit_price", "value", "total", "price_each", "paid"),
    "ship_to": ("destination", "address", "deliver_to", "receiver"),
    "subject": ("topic", "title", "about", "agenda", "theme"),
    "day": ("date", "when", "scheduled_for", "on"),
    "time": ("start", "begins", "starts_at", "hour"),
    "participants": ("people", "attendees", "guests", "members", "with"),
    "place": ("location", "room", "where", "venue", "city"),
    "reviewer": ("author", "name", "customer", "written_by", "user"),
    "seller": ("shop", "brand", "vendor", "company", "sold_by"),
    "sentiment": ("mood", "opinion", "tone", "rating"),
    "recommended": ("recommends", "would_buy_again", "positive", "is_recommended"),
    "passenger": ("traveller", "name", "customer", "booked_by"),
    "origin": ("from", "departure", "start", "leaves"),
    "destination": ("to", "arrival", "end", "goal"),
    "date": ("day", "on", "travel_date", "departs_on"),
    "flight": ("flight_number", "code", "number", "connection"),
    "seat": ("seat_number", "place", "row"),
    "bags": ("luggage", "suitcases", "pieces", "baggage"),
    "company": ("name", "firm", "organisation", "business", "title"),
    "founded": ("since", "year", "founded_in", "start_year"),
    "founder": ("founded_by", "owner", "person"),
    "employees": ("staff", "size", "people", "headcount"),
    "country": ("nation", "based_in", "state", "region"),
    "sells": ("products", "goods", "offers", "catalogue"),
    "contact": ("reach", "details", "address", "info"),
    "email": ("mail", "e_mail", "email_address", "write_to"),
    "phone": ("telephone", "tel", "number", "call"),
    "ticket": ("id", "number", "case", "issue", "ticket_id"),
    "reporter": ("reported_by", "user", "author", "opened_by"),
    "area": ("component", "part", "module", "feature", "category"),
    "error_code": ("error", "code", "status", "http_status"),
    "version": ("release", "app_version", "since_version", "build"),
    "urgency": ("priority", "severity", "level", "importance"),
    "dish": ("name", "recipe", "title", "meal"),
    "servings": ("serves", "portions", "people", "for"),
    "minutes": ("time", "duration", "ready_in", "total_minutes"),
    "ingredients": ("parts", "needs", "shopping_list", "components"),
    "name": ("ingredient", "what", "item", "title"),
    "grams": ("amount", "weight", "quantity", "g"),
}  # fmt: skip
_CHOICES: dict[str, tuple[str, ...]] = {
    "category": ("news", "order", "question", "complaint", "other"),
    "language": ("en", "de", "fr", "es"),
    "status": ("open", "closed", "pending"),
    "channel": ("mail", "phone", "web", "letter"),
    "currency": ("EUR", "USD", "GBP", "CHF"),
    "type": ("person", "company", "event", "thing"),
    "tone": ("friendly", "neutral", "angry"),
    "source": ("text", "form", "chat"),
}
_MORE: dict[str, dict[str, Any]] = {
    "summary": {"type": "string"},
    "title": {"type": "string"},
    "notes": {"type": "string"},
    "keywords": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
    "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
    "urgent": {"type": "boolean"},
    "complete": {"type": "boolean"},
    "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    "year": {"type": "integer", "minimum": 1900, "maximum": 2100},
}
_DATED = ("placed_on", "day", "date")
_WRAPS = ("data", "result", "record", "entry", "document", "facts")


def varied(rng: Random, schema: dict[str, Any]) -> dict[str, Any]:
    """``schema`` of one text, changed by chance: names, their style and order, what is asked for, formats, nesting."""
    style = rng.choice((_same, _same, _same, _camel, _spaced))
    out = _object(rng, schema, style, keep=0.75)
    if rng.random() < 0.5:
        extra = rng.choice((*_CHOICES, *_MORE))
        _put(out, rng, style(extra), {"enum": list(_CHOICES[extra])} if extra in _CHOICES else _MORE[extra])
    if rng.random() < 0.15:
        wrap = style(rng.choice(_WRAPS))
        out = objects(**{wrap: out})
    return out


def _object(rng: Random, schema: dict[str, Any], style: _Style, keep: float) -> dict[str, Any]:
    names = list(schema["properties"])
    kept = [n for n in names if rng.random() < keep] or names[:1]
    if rng.random() < 0.3:
        rng.shuffle(kept)
    out: dict[str, Any] = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    for name in kept:
        inner = _value(rng, name, schema["properties"][name], style)
        told = rng.choice(_SYNONYMS[name]) if name in _SYNONYMS and rng.random() < 0.6 else name
        if style(told) not in out["properties"]:
            out["properties"][style(told)] = inner
            if rng.random() < 0.92:
                out["required"].append(style(told))
    return out


def _value(rng: Random, name: str, schema: dict[str, Any], style: _Style) -> dict[str, Any]:
    if schema.get("type") == "object":
        return _object(rng, schema, style, keep=0.9)
    if schema.get("type") == "array":
        return {**schema, "items": _value(rng, "", schema["items"], style), "maxItems": rng.randint(2, 5)}
    if name in _DATED and rng.random() < 0.5:
        return {**schema, "format": "date"}
    if name == "email" and rng.random() < 0.6:
        return {**schema, "format": "email"}
    if schema.get("type") == "integer" and rng.random() < 0.2:
        return {**schema, "minimum": 0}
    return schema


def _put(schema: dict[str, Any], rng: Random, name: str, value: dict[str, Any]) -> None:
    """Another property, at any place."""
    if name in schema["properties"]:
        return
    items = list(schema["properties"].items())
    items.insert(rng.randint(0, len(items)), (name, value))
    schema["properties"] = dict(items)
    schema["required"].append(name)


def _same(name: str) -> str:
    return name


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _spaced(name: str) -> str:
    return name.replace("_", "-")
