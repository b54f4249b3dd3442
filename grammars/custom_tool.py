"""The grammar of an OpenAI custom tool."""

from __future__ import annotations

from collections.abc import Mapping

from constrained_spec.errors import RequestError
from constrained_spec.grammars.constraints import Lark, Regex

_HINT = 'write {"type": "grammar", "syntax": "lark" or "regex", "definition": "..."}'


def from_custom_tool(format: Mapping[str, object], *, param: str = "/format") -> Lark | Regex:
    """The constraint of a custom tool's ``format``, in the Responses form (flat) or the Chat form (under "grammar").

    ``param`` is the JSON pointer of ``format`` in the request, for errors. The text itself is checked when it is
    compiled. Raises ``RequestError`` for an unknown type, syntax or key, and for a format without a constraint.
    """
    if not isinstance(format, Mapping):
        raise RequestError(f"a format is an object, not {type(format).__name__}", param=param, hint=_HINT)
    kind = format.get("type")
    if kind == "text":
        raise RequestError("the format 'text' is no constraint", param=f"{param}/type", hint="leave the constraint out")
    if kind != "grammar":
        raise RequestError(f"unknown format type {kind!r}", param=f"{param}/type", hint=_HINT)
    if "grammar" in format:
        _no_other_keys(format, {"type", "grammar"}, param)
        inner, param = format["grammar"], f"{param}/grammar"
        if not isinstance(inner, Mapping):
            raise RequestError(f"a grammar is an object, not {type(inner).__name__}", param=param, hint=_HINT)
        _no_other_keys(inner, {"syntax", "definition"}, param)
    else:
        inner = format
        _no_other_keys(inner, {"type", "syntax", "definition"}, param)
    syntax, definition = inner.get("syntax"), inner.get("definition")
    if syntax not in ("lark", "regex"):
        raise RequestError(f"unknown grammar syntax {syntax!r}", param=f"{param}/syntax", hint='one of "lark", "regex"')
    if not isinstance(definition, str) or not definition:
        raise RequestError("the definition is the text of the grammar", param=f"{param}/definition", hint=_HINT)
    return Lark(definition) if syntax == "lark" else Regex(definition)


def _no_other_keys(found: Mapping[str, object], known: set[str], param: str) -> None:
    for key in found:
        if key not in known:
            pointer = str(key).replace("~", "~0").replace("/", "~1")
            raise RequestError(
                f"unknown key {key!r}", param=f"{param}/{pointer}", hint=f"the keys are {', '.join(sorted(known))}"
            )
