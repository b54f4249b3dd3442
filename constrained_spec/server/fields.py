"""Reading a request body so that no field goes unnoticed.

    fields = Fields(body)
    n = fields.integer("n", least=1)
    fields.finish()            # 400 for every field that nothing read

``null`` is the same as absent, as in OpenAI's API.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from constrained_spec.grammars.schema_walk import escape
from constrained_spec.server.plan import BodyError


class Fields:
    """The members of one JSON object of a body. ``at`` is its JSON pointer ("" for the body itself).

    Every reader returns None for an absent field, marks the field as read, and raises ``BodyError`` for a value of
    another type or out of range.
    """

    def __init__(self, body: object, at: str = "") -> None:
        if not isinstance(body, Mapping):
            raise BodyError(
                f"{'this' if at else 'the body'} is a JSON object, not {kind_of(body)}",
                code="invalid_type",
                param=at or None,
            )
        self.body: Mapping[str, Any] = body
        self.at = at
        self.ignored: list[str] = []
        self._read: set[str] = set()

    def pointer(self, name: str) -> str:
        """The JSON pointer of the member ``name``."""
        return f"{self.at}/{escape(name)}"

    def has(self, name: str) -> bool:
        """Is ``name`` there, and not null? Does not mark it."""
        return self.body.get(name) is not None

    def value(self, name: str) -> Any:
        """Whatever ``name`` holds."""
        self._read.add(name)
        return self.body.get(name)

    def text(self, name: str) -> str | None:
        """A string without half surrogate pairs."""
        value = self.value(name)
        return None if value is None else text_of(value, self.pointer(name))

    def flag(self, name: str) -> bool | None:
        """A boolean."""
        value = self.value(name)
        if value is None or isinstance(value, bool):
            return value
        raise self._wrong(name, "a boolean")

    def integer(self, name: str, *, least: int | None = None, most: int | None = None) -> int | None:
        """A whole number in [least, most]; 2.0 is one."""
        value = self.value(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(name, "an integer")
        if (least is not None and value < least) or (most is not None and value > most):
            raise BodyError(
                f"{name} is {_short(value)}, but must {_range(least, most)}",
                code="invalid_value",
                param=self.pointer(name),
            )
        return value

    def number(self, name: str) -> float | None:
        """A finite number."""
        value = self.value(name)
        if value is None:
            return None
        try:
            if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
                return float(value)
        except OverflowError:
            pass
        raise self._wrong(name, "a finite number")

    def listed(self, name: str) -> list[Any] | None:
        """A list of anything."""
        value = self.value(name)
        if value is None or isinstance(value, list):
            return value
        raise self._wrong(name, "a list")

    def texts(self, name: str) -> list[str] | None:
        """A list of strings."""
        values = self.listed(name)
        if values is None:
            return None
        return [text_of(value, f"{self.pointer(name)}/{i}") for i, value in enumerate(values)]

    def inside(self, name: str) -> Fields | None:
        """The members of the object ``name``; its own ``finish`` must be called."""
        value = self.value(name)
        return None if value is None else Fields(value, self.pointer(name))

    def one_of(self, name: str, allowed: Iterable[str]) -> str | None:
        """One of a few strings."""
        value = self.value(name)
        allowed = tuple(allowed)
        if value is None or (isinstance(value, str) and value in allowed):
            return value
        raise BodyError(
            f"{name} {_short(value)} is not offered",
            code="invalid_value",
            param=self.pointer(name),
            hint=f"one of {', '.join(allowed)}",
        )

    def ignore(self, *names: str) -> None:
        """Fields that cannot change the text: accepted, and listed as without effect."""
        for name in names:
            if self.value(name) is not None:
                self.ignored.append(self.pointer(name))

    def only(self, name: str, *neutral: object, hint: str | None = None) -> None:
        """A field of another server that is offered here only with the values that change nothing."""
        value = self.value(name)
        if value is None or any(value == x and isinstance(value, bool) == isinstance(x, bool) for x in neutral):
            return
        given = ", ".join(_short(x) for x in neutral)
        raise BodyError(
            f"{name} {_short(value)} is not offered",
            code="unsupported_value",
            param=self.pointer(name),
            hint=hint or (f"leave it out, or send {given}" if given else "leave it out"),
        )

    def need(self, name: str) -> None:
        """Raise ``BodyError`` if ``name`` is absent."""
        if not self.has(name):
            raise BodyError(f"{name} is missing", code="missing_field", param=self.pointer(name))

    def finish(self, hint: str | None = None) -> None:
        """Refuse the first member that nothing read."""
        for name in self.body:
            if name not in self._read:
                raise BodyError(
                    f"unknown field {_short(name)}",
                    code="unknown_field",
                    param=self.pointer(name),
                    hint=hint or "remove it: nothing would follow from it here",
                )

    def _wrong(self, name: str, wanted: str) -> BodyError:
        return BodyError(
            f"{name} must be {wanted}, not {kind_of(self.body[name])}", code="invalid_type", param=self.pointer(name)
        )


def text_of(value: object, pointer: str) -> str:
    """``value`` as a string that can be written as UTF-8."""
    if not isinstance(value, str):
        raise BodyError(f"this is a string, not {kind_of(value)}", code="invalid_type", param=pointer)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BodyError("half a surrogate pair is no text", code="invalid_value", param=pointer) from None
    return value


def kind_of(value: object) -> str:
    """The JSON name of a value's type, in words."""
    if value is None:
        return "null"
    for kind, name in ((bool, "a boolean"), (int | float, "a number"), (str, "a string"), (list, "a list")):
        if isinstance(value, kind):
            return name
    return "an object"


def _short(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python prints, or deep nesting
        return "that is too large to show"
    return text if len(text) <= 60 else text[:57] + "..."


def _range(least: int | None, most: int | None) -> str:
    if most is None:
        return f"be at least {least}"
    return f"be at most {most}" if least is None else f"lie in [{least}, {most}]"
