"""Tool calls out of text that grows: the incremental twin of ``grammars.tools.parse_tool_calls``.

What never became a call is content, so no text is lost; what belongs to the writing of calls (markers, separators) is
dropped. A call begins when its name and the brace of its arguments are there: what comes before would not tell it
from free text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from constrained_spec.server.reasoning import held

_BEGIN, _END, _MISTRAL, _PYTHON = "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>"
CALL_MARKERS = (_BEGIN, _END, _MISTRAL, _PYTHON)  # special tokens in some vocabularies
_STRUCTURE = re.compile(r'["\\{}\[\]]')
_HEAD = re.compile(r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(arguments|parameters)"\s*:\s*\{', re.DOTALL)
_INPUT = re.compile(r'\{\s*"input"\s*:\s*"')
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_FIRST = {"llama3": ('{"name":', '{"name" :'), "json": ('[{"name":',)}


@dataclass(frozen=True, slots=True)
class Opened:
    """A call of ``name`` begins."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments: their JSON text, and what it adds to the decoded string under "input"."""

    text: str
    decoded: str


class JsonScanner:
    """Follows one JSON text of known validity: depth of brackets, inside a string or not."""

    def __init__(self) -> None:
        self.depth = 0
        self._string = self._escape = False

    def to_depth(self, text: str, start: int, stop: int) -> int:
        """The place after the bracket that makes the depth ``stop``, or -1 if ``text`` ends before."""
        at = start
        if self._escape and at < len(text):
            self._escape, at = False, at + 1
        while (found := _STRUCTURE.search(text, at)) is not None:
            at, c = found.end(), found[0]
            if self._string:
                if c == "\\":
                    if at == len(text):
                        self._escape = True
                        return -1
                    at += 1
                elif c == '"':
                    self._string = False
            elif c == '"':
                self._string = True
            elif c in "{[":
                self.depth += 1
            elif c in "}]":
                self.depth -= 1
            if not self._string and c in "{[}]" and self.depth == stop:
                return at
        return -1


class InputDecoder:
    """The string under "input" of ``{"input": "..."}``, as its JSON text grows."""

    def __init__(self) -> None:
        self._buffer = ""
        self._state = "before"

    def feed(self, text: str) -> str:
        """What ``text`` adds to the string. A surrogate without its partner is shown as U+FFFD."""
        self._buffer += text
        if self._state == "before" and (head := _INPUT.match(self._buffer)) is not None:
            self._buffer, self._state = self._buffer[head.end() :], "inside"
        if self._state != "inside":
            return ""
        found, at, text = [], 0, self._buffer
        while at < len(text) and self._state == "inside":
            if text[at] == '"':
                self._state = "after"
                at += 1
            elif text[at] == "\\":
                piece, length = _escape(text, at)
                if not length:
                    break
                found.append(piece)
                at += length
            else:
                end = min((i for i in (text.find('"', at), text.find("\\", at)) if i >= 0), default=len(text))
                found.append(text[at:end])
                at = end
        self._buffer = text[at:]
        return "".join(found)


def _escape(text: str, at: int) -> tuple[str, int]:
    """(the character, length) of the escape at ``at``; length 0 if more text may change it."""
    if len(text) < at + 2:
        return "", 0
    if text[at + 1] != "u":
        return _ESCAPES.get(text[at + 1], text[at + 1]), 2
    if len(text) < at + 6:
        return "", 0
    code = int(text[at + 2 : at + 6], 16)
    if not 0xD800 <= code < 0xDC00:
        return ("\ufffd" if 0xDC00 <= code < 0xE000 else chr(code)), 6
    following = text[at + 6 : at + 12]
    low = re.fullmatch(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})", following)
    if low is not None:
        return chr(0x10000 + ((code - 0xD800) << 10) + (int(low[1], 16) - 0xDC00)), 12
    complete = len(following) == 6 or '"' in following or not "\\u".startswith(following[:2])
    return ("\ufffd", 6) if complete else ("", 0)


Event = str | Opened | Arguments


class CallStream:
    """Content and calls of one text, written in ``syntax``. Fed in pieces; a ``str`` event is content."""

    def __init__(self, syntax: str) -> None:
        self._syntax = syntax
        self._buffer = ""
        self._raw = ""  # of a call that has not begun: content, if it never does
        self._events: list[Event] = []
        self._called = False
        self._blank = ""  # white space of hermes before any content: no content itself where there are only calls
        self._written = False
        self._scanner, self._decoder = JsonScanner(), InputDecoder()
        self._searched = 0  # how far the scanner came in the buffer
        self._step: Callable[[], bool] = self._first if syntax in _FIRST else self._free

    def feed(self, text: str) -> list[Event]:
        """The events that ``text`` makes certain."""
        self._buffer += text
        while self._step():
            pass
        return self._drain()

    def finish(self) -> list[Event]:
        """The rest, when no text follows."""
        if self._step in (self._free, self._first, self._open, self._before_head, self._head):
            self._say(self._raw + self._buffer)
        if not self._called and self._blank:
            self._events.append(self._blank)
        self._buffer = self._raw = self._blank = ""
        return self._drain()

    # ---- steps: each takes what it can from the buffer and says whether another step may go on ----------------------

    def _plain(self) -> bool:
        self._say(self._buffer)
        self._buffer = ""
        return False

    def _free(self) -> bool:
        marker = _BEGIN if self._syntax == "hermes" else _MISTRAL
        before, found, rest = self._buffer.partition(marker)
        if found:
            self._say(before)
            self._raw, self._buffer = marker, rest
            return self._goto(self._open)
        keep = held(self._buffer, marker)
        self._say(self._buffer[: len(self._buffer) - keep])
        self._buffer = self._buffer[len(self._buffer) - keep :]
        return False

    def _first(self) -> bool:
        text = self._buffer
        marked = self._syntax == "llama3" and text.startswith(_PYTHON)
        if marked or text.startswith(_FIRST[self._syntax]):
            if marked:
                self._raw, self._buffer = _PYTHON, text[len(_PYTHON) :]
            return self._goto(self._open)
        possible = (*_FIRST[self._syntax], *((_PYTHON,) if self._syntax == "llama3" else ()))
        if any(p.startswith(text) for p in possible):
            return False
        return self._goto(self._plain)

    def _open(self) -> bool:
        """Before the first call of a series: what its syntax writes there."""
        text = self._buffer.lstrip()
        if not text:
            return False
        if self._syntax in ("mistral", "json"):
            if text[0] != "[":
                return self._no_call()
            self._take(len(self._buffer) - len(text) + 1)
        return self._goto(self._before_head)

    def _before_head(self) -> bool:
        text = self._buffer.lstrip()
        if not text:
            return False
        if text[0] != "{":
            return self._no_call()
        self._take(len(self._buffer) - len(text))
        self._scanner = JsonScanner()
        self._searched = self._scanner.to_depth(self._buffer, 0, 1)
        return self._goto(self._head)

    def _head(self) -> bool:
        """From the brace of a call to the brace of its arguments."""
        end = self._scanner.to_depth(self._buffer, self._searched, 2)
        self._searched = len(self._buffer)
        if end < 0:
            return self._no_call() if self._scanner.depth < 1 else False
        name = self._name(self._buffer[:end])
        if name is None:
            return self._no_call()
        self._called, self._raw = True, ""
        self._events.append(Opened(name))
        self._buffer = self._buffer[end - 1 :]
        self._scanner, self._decoder = JsonScanner(), InputDecoder()
        return self._goto(self._arguments)

    def _arguments(self) -> bool:
        if not self._buffer:
            return False
        end = self._scanner.to_depth(self._buffer, 0, 0)
        text = self._buffer if end < 0 else self._buffer[:end]
        self._buffer = self._buffer[len(text) :]
        self._events.append(Arguments(text, self._decoder.feed(text)))
        return end >= 0 and self._goto(self._close)

    def _close(self) -> bool:
        return self._expect("}", self._after)

    def _after(self) -> bool:
        """After a call: its end marker, the next call, or the end of all calls."""
        if self._syntax == "hermes":
            return self._expect(_END, self._free)
        if self._syntax == "llama3":
            return self._expect(";", self._before_head)
        text = self._buffer.lstrip()
        return self._expect("]", self._plain) if text[:1] == "]" else self._expect(",", self._before_head)

    def _name(self, text: str) -> str | None:
        """The name in the head of a call, None if it is none."""
        head = _HEAD.fullmatch(text)
        if head is None or (head[2] == "parameters") != (self._syntax == "llama3"):
            return None
        try:
            name: str = json.loads(head[1])
        except ValueError:
            return None
        return _LONE_SURROGATE.sub("\ufffd", name)

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _expect(self, word: str, then: Callable[[], bool]) -> bool:
        """Drop white space and ``word``. Other text than ``word`` is content."""
        text = self._buffer.lstrip()
        if text.startswith(word):
            self._raw = word if then == self._before_head else ""
            self._buffer = text[len(word) :]
            return self._goto(then)
        return not word.startswith(text) and self._goto(self._plain)

    def _no_call(self) -> bool:
        self._buffer, self._raw = self._raw + self._buffer, ""
        return self._goto(self._plain)

    def _take(self, n: int) -> None:
        self._raw += self._buffer[:n]
        self._buffer = self._buffer[n:]

    def _goto(self, step: Callable[[], bool]) -> bool:
        self._step = step
        return True

    def _say(self, text: str) -> None:
        if self._syntax == "hermes" and not self._written:
            text, self._blank = self._blank + text, ""
            if not text.strip():
                self._blank = text
                return
        if text:
            self._written = True
            self._events.append(text)

    def _drain(self) -> list[Event]:
        found, self._events = self._events, []
        return found


class RawCall:
    """One call of ``name``, whose input is the whole text."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._opened = False

    def feed(self, text: str) -> list[Event]:
        """The events that ``text`` makes certain."""
        return [*self.finish(), Arguments(text, text)]

    def finish(self) -> list[Event]:
        """The call itself, if it had no text."""
        if self._opened:
            return []
        self._opened = True
        return [Opened(self._name)]
