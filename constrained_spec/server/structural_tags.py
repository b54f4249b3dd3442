"""Structural tags (vLLM, SGLang, xgrammar): free text with constrained parts, as ``Tagged`` and ``Then``."""

from __future__ import annotations

from collections.abc import Sequence

from constrained_spec.grammars.constraints import AnyOf, Choice, Constraint, Regex, Tag, Tagged, Then, Without
from constrained_spec.server.constraint_parts import Found, Reader, placed
from constrained_spec.server.fields import Fields
from constrained_spec.server.plan import BodyError

_KINDS = ("triggered_tags", "tag", "sequence", "const_string", "json_schema", "regex", "grammar", "any_text")
_MAX_DEPTH = 32
_ANY = Regex("(?s).*")


def read_structural_tag(tag: Fields, reader: Reader) -> Constraint:
    """The older form ``structures`` and ``triggers``, or the newer one under ``format``. ``tag.finish`` is the
    caller's. Raises ``BodyError`` for a kind of part that is not offered."""
    if tag.has("format"):
        format = tag.inside("format")
        assert format is not None, "it is there"
        return _format(format, reader, 0)
    tag.need("structures")
    tags = []
    for i, value in enumerate(tag.listed("structures") or ()):
        structure = Fields(value, f"{tag.pointer('structures')}/{i}")
        structure.need("begin")
        structure.need("schema")
        found = reader.schema(structure, "schema")
        tags.append((structure.text("begin") or "", found, structure.text("end") or ""))
        structure.finish()
    return _triggered(tag, tags, at_least_one=False, stop_after_first=False)


def _triggered(
    holder: Fields, tags: Sequence[tuple[str, Found | None, str]], *, at_least_one: bool, stop_after_first: bool
) -> Constraint:
    """A trigger is where free text ends: from there on the rest of a tag's begin follows."""
    at = holder.pointer("triggers")
    holder.need("triggers")
    triggers = holder.texts("triggers") or []
    begun: dict[str, list[tuple[str, Constraint, str]]] = {}
    for begin, found, end in tags:
        trigger = next((t for t in triggers if t and begin.startswith(t)), None)
        if trigger is None:
            raise BodyError(f"no trigger begins {begin!r}", code="invalid_value", param=at)
        assert found is not None, "every tag has content"
        begun.setdefault(trigger, []).append((begin[len(trigger) :], found.constraint, end))
    made = tuple(map(_begun, begun, begun.values()))
    return placed(at, lambda: Tagged(tuple(Tag(*one) for one in made), at_least_one, stop_after_first))


def _begun(trigger: str, tags: Sequence[tuple[str, Constraint, str]]) -> tuple[str, Constraint, str]:
    """The one tag of a trigger, with the rest of its begin; or all its tags as alternatives."""
    if len(tags) > 1:
        return trigger, AnyOf(*(_framed(*tag) for tag in tags)), ""
    [(rest, inner, end)] = tags
    return trigger, Then(Choice((rest,)), inner) if rest else inner, end


def _format(format: Fields, reader: Reader, depth: int) -> Constraint:
    if depth > _MAX_DEPTH:
        raise BodyError("the structural tag nests too deeply", code="limit_exceeded", param=format.at)
    format.need("type")
    kind = format.one_of("type", _KINDS)
    made: Constraint | None
    if kind == "triggered_tags":
        made = _triggered_tags(format, reader, depth)
    elif kind == "tag":
        begin, inner, end = _tag(format, reader, depth)
        made = _framed(begin, inner.constraint, end)
    elif kind == "sequence":
        format.need("elements")
        at = format.pointer("elements")
        parts = [
            _format(Fields(value, f"{at}/{i}"), reader, depth + 1)
            for i, value in enumerate(format.listed("elements") or ())
        ]
        made = placed(at, lambda: Then(*parts))
    elif kind == "const_string":
        format.need("value")
        made = Choice((format.text("value") or "",))
    elif kind == "any_text":
        made = _ANY
    else:
        name = {"json_schema": "json_schema", "regex": "pattern", "grammar": "grammar"}[str(kind)]
        format.need(name)
        read = {"json_schema": reader.schema, "regex": reader.regex, "grammar": reader.grammar}[str(kind)]
        found = read(format, name)
        assert found is not None, "it is there"
        made = found.constraint
    format.finish()
    return made


def _triggered_tags(format: Fields, reader: Reader, depth: int) -> Constraint:
    format.need("tags")
    tags = []
    for i, value in enumerate(format.listed("tags") or ()):
        tag = Fields(value, f"{format.pointer('tags')}/{i}")
        tag.only("type", "tag")
        tags.append(_tag(tag, reader, depth))
        tag.finish()
    at_least_one = format.flag("at_least_one") or False
    return _triggered(
        format, tags, at_least_one=at_least_one, stop_after_first=format.flag("stop_after_first") or False
    )


def _tag(tag: Fields, reader: Reader, depth: int) -> tuple[str, Found, str]:
    tag.need("begin")
    tag.need("content")
    content = tag.inside("content")
    assert content is not None, "it is there"
    begin, end = tag.text("begin") or "", tag.text("end") or ""
    return begin, Found(_format(content, reader, depth + 1), content.at), end


def _framed(begin: str, inner: Constraint, end: str) -> Constraint:
    """Any text ends where ``end`` first appears."""
    if inner == _ANY and end:
        inner = Without(_ANY, Choice((end,)))
    return Then(*([Choice((begin,))] if begin else []), inner, *([Choice((end,))] if end else []))
