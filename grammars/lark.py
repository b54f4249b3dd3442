"""Context-free grammars in llguidance's Lark dialect."""

from __future__ import annotations

import json
import re

from constrained_spec.errors import GrammarBudgetError, GrammarSyntaxError, RequestError, UnsupportedSchemaError
from constrained_spec.grammars.llg import EngineError, LlgGrammar, budget_of, header, refuse
from constrained_spec.grammars.tokens import TokenIndex, Tokenization

MAX_LARK_BYTES = 1 << 20

_HEADER = re.compile(r"\A\s*%llguidance\s*(\{[^\n]*\})[ \t]*(?:\n|\Z)")
_PLACE = re.compile(r"(?:at )?(\d+)\((\d+)\): ")
_UNSOUND = re.compile(r'"(lenient|coerce_one_of)"\s*:\s*true')
_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*')
_TOKEN_RANGES = re.compile(r"<\[(\^?)([\d,\s\-]+)\]>")


def compile_lark(text: str, index: TokenIndex, key: str, *, tokenization: Tokenization = "any") -> LlgGrammar:
    """``text`` starts at the rule ``start``; special tokens are legal where it names them (``<|name|>`` or ``<[id]>``).

    Raises ``GrammarSyntaxError`` with a character offset, ``UnsupportedSchemaError`` for a ``%json`` part,
    ``UnsatisfiableError``, ``GrammarBudgetError``.
    """
    if not isinstance(text, str):
        raise RequestError("a Lark grammar is a string", param="grammar")
    if len(text.encode(errors="replace")) > MAX_LARK_BYTES:
        raise GrammarBudgetError(f"the grammar exceeds {MAX_LARK_BYTES} bytes", limit="max_lark_bytes", param="grammar")
    unsound = _UNSOUND.search(text)
    if unsound:
        raise RequestError(
            f"the option {unsound[1]!r} would ignore parts of a schema", param="grammar", hint="remove it"
        )
    first_line, body, dropped = _first_line(text, tokenization)
    try:
        return LlgGrammar(first_line + body, index, key, "grammar", tokenization, _named_ids(text, index))
    except EngineError as error:
        raise _typed(error, text, dropped, bool(first_line)) from None


def _first_line(text: str, tokenization: Tokenization) -> tuple[str, str, int]:
    """(our header line, the rest of the text, how many characters of the text were its own header)."""
    own = _HEADER.match(text)
    if own is None:
        return header(tokenization), text, 0
    try:
        options = json.loads(own[1])
    except json.JSONDecodeError as error:
        raise GrammarSyntaxError(
            f"the %llguidance line is not JSON: {error.msg}", position=own.start(1) + error.pos, param="grammar"
        ) from None
    options["no_forcing"] = tokenization == "any"
    return f"%llguidance {json.dumps(options)}\n", text[own.end() :], own.end()


def _named_ids(text: str, index: TokenIndex) -> list[int]:
    """Ids of special tokens that stand in the grammar as tokens, not within a string, a regex or a comment."""
    vocabulary = index.vocabulary
    text = _QUOTED.sub(" ", text)
    named = {i for name, i in vocabulary.special.items() if name in text}
    special = {i for i, t in enumerate(vocabulary.tokens) if t is None}
    for inverted, ranges in _TOKEN_RANGES.findall(text):
        listed: set[int] = set()
        for part in ranges.replace(" ", "").split(","):
            low, _, high = part.partition("-")
            if low.isdigit():
                listed |= special.intersection(range(int(low), int(high or low) + 1))
        named |= special - listed - set(vocabulary.eos_ids) if inverted else listed
    if named & set(vocabulary.eos_ids):
        raise RequestError(
            "the grammar names an end-of-sequence token, which ends the text wherever it stands",
            param="grammar",
            hint="leave it out: it is legal wherever the grammar is complete",
        )
    return sorted(named & special)


def _typed(error: EngineError, text: str, dropped: int, has_header: bool) -> RequestError:
    message = str(error).split("\n", 1)[0]
    place = _PLACE.match(message)
    position = None
    if place:
        line, column = int(place[1]) - has_header, int(place[2])
        body = text[dropped:]
        starts = [0, *(m.end() for m in re.finditer("\n", body))]
        if 1 <= line <= len(starts):
            position = min(dropped + starts[line - 1] + column - 1, len(text))
        message = message[place.end() :]
    if "JSON schema" in message:
        found = re.search(r'Unimplemented keys: \["([^"]+)"', message)
        if found:
            return UnsupportedSchemaError(
                f"%json: the keyword {found[1]!r} cannot be enforced", pointer="", keyword=found[1]
            )
    if "Unsatisfiable" in message or budget_of(message) is not None:
        return refuse(EngineError(message), "grammar", "grammar")
    where = "" if position is None else f" at character {position}"
    return GrammarSyntaxError(f"the grammar does not parse{where}: {message}", position=position, param="grammar")
