r"""A JSON grammar whose texts are in ASCII: characters beyond it are written as ``\uXXXX``, as ``json.dumps`` does.

The engine reads the text with these escapes undone, so every keyword (lengths, patterns, constants, names, formats)
means what it means anyway, and nothing has to be refused. While an escape is half read, the engine stands before it,
and the bytes of it wait; they are legal if the engine allows a character whose escape starts so.
"""

from __future__ import annotations

import dataclasses
import re
from functools import lru_cache

import numpy as np

from constrained_spec.grammars.base import MaskRow
from constrained_spec.grammars.escapes import code_points, escaped, is_ascii_escape, missing, resolve
from constrained_spec.grammars.llg import LlgMatcher
from constrained_spec.grammars.tokens import TokenIndex, is_set, pack, token_index
from constrained_spec.grammars.tracking import TrackingMatcher
from constrained_spec.grammars.utf8 import ByteRanges, byte_sequences

_NEVER_IN_TEXT = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))
# A token, its bytes behind the escape, and these as tokens that are read as they stand (none if an escape is in them).
Member = tuple[int, bytes, tuple[int, ...]]

_OPENS = re.compile(rb"\\(?:u[0-9a-f]{0,3})?\Z|\\u[0-9a-f]{4}")


class AsciiTokens:
    """What the tokens of ``index`` mean for escapes. ``inner`` has a token for every byte, and the same ids below."""

    def __init__(self, index: TokenIndex) -> None:
        self.index = index
        self.inner = with_all_bytes(index)
        level = self.inner.levels[0]
        self.byte_ids = [-1] * 256  # the token of a single byte; -1: none
        for i, byte in enumerate(level.byte.tolist()):
            if level.ids_start[i] < level.ids_start[i + 1]:
                self.byte_ids[byte] = int(level.ids[level.ids_start[i]])
        self.high_bytes = np.array([b for b in range(128, 256) if self.byte_ids[b] >= 0], np.int64)
        self.high_ids = np.array([self.byte_ids[b] for b in self.high_bytes.tolist()], np.int64)
        eos = set(index.vocabulary.eos_ids)
        self.texts = [(i, t) for i, t in enumerate(index.vocabulary.tokens) if t and t.isascii() and i not in eos]
        self.row = pack(np.array([i for i, _ in self.texts], np.int64), index.vocabulary.size)
        # Where no escape is open, only these are read otherwise than the engine reads them.
        self.opening = [(i, t) for i, t in self.texts if _OPENS.search(t)]
        self._ids = {t: i for i, t in self.texts if b"\\" not in t}
        self._continuing: dict[tuple[bytes, int], dict[bytes, list[Member]]] = {}

    def continuing(self, way: bytes, digits: int) -> dict[bytes, list[Member]]:
        """Tokens that go on with ``way`` and so many digits, or stop on the way there, by what they have of it."""
        if (way, digits) not in self._continuing:
            groups = self._continuing[way, digits] = {}
            steps = [re.escape(bytes((byte,))) for byte in way] + [b"[0-9a-f]"] * digits
            pattern = re.compile(b"".join(b"(?:" + step for step in steps) + b")?" * len(steps))
            for i, text in self.texts:
                found = pattern.match(text)
                size = found.end() if found else 0
                if size == len(text) or size == len(steps):
                    groups.setdefault(text[:size], []).append((i, text[size:], self._spelled(text[size:])))
        return self._continuing[way, digits]

    def _spelled(self, text: bytes) -> tuple[int, ...]:
        """Few tokens of ``inner`` that together are ``text``."""
        ids: list[int] = []
        while text and b"\\" not in text:
            size = next((n for n in range(len(text), 1, -1) if text[:n] in self._ids), 1)
            ids.append(self._ids[text[:size]] if size > 1 else self.byte_ids[text[0]])
            text = text[size:]
        return tuple(ids)


@lru_cache(maxsize=8)
def ascii_tokens(index: TokenIndex) -> AsciiTokens:
    return AsciiTokens(index)


def with_all_bytes(index: TokenIndex) -> TokenIndex:
    """``index`` itself if every byte of a text has a token, else one of a vocabulary with such tokens at its end."""
    lacking = sorted(set(range(256)) - _NEVER_IN_TEXT - index.single_bytes)
    if not lacking:
        return index
    vocabulary = index.vocabulary
    return token_index(
        dataclasses.replace(vocabulary, tokens=(*vocabulary.tokens, *(bytes([byte]) for byte in lacking)))
    )


class AsciiMatcher(TrackingMatcher):
    """``inner``, a matcher over ``tokens.inner``, reads what the escapes stand for."""

    def __init__(self, tokens: AsciiTokens, inner: LlgMatcher) -> None:
        super().__init__(tokens.index)
        self._tokens = tokens
        self._inner = inner
        self._partial = b""  # of an escape; ``inner`` has not read it
        self._past: list[tuple[int, bytes]] = []  # (mark of ``inner``, partial escape) before every text token
        self._arrive()

    def _arrive(self) -> None:
        """Forget what was known of the last place."""
        self._home = self._inner.mark()
        self._row: MaskRow | None = None
        self._viable: dict[bytes, bool] = {}  # by partial escape
        self._following: dict[bytes, list[int]] = {}  # by UTF-8 prefix: bytes that ``inner`` allows behind it

    def fork(self) -> AsciiMatcher:
        twin = AsciiMatcher(self._tokens, self._inner.fork())
        twin._ids, twin._ended = list(self._ids), self._ended
        twin._partial, twin._past = self._partial, list(self._past)
        return twin

    def _consume(self, token: int) -> bool:
        if not is_set(self._tokens.row, token):
            return False
        data = self._index.vocabulary.tokens[token]
        assert data
        before = self._home, self._partial
        if not self._partial and b"\\" not in data:
            if not self._inner.advance(token):
                return False
        else:
            left = self._read(data, self._partial)
            if left is None:
                self._inner.rollback(self._home)
                return False
            self._partial = left
        self._past.append(before)
        self._arrive()
        return True

    def _retract(self, count: int) -> None:
        mark, self._partial = self._past[-count]
        del self._past[-count:]
        self._inner.rollback(mark)
        self._arrive()

    def _accepts(self) -> bool:
        return not self._partial and self._inner.is_complete

    def _exhausted(self) -> bool:
        return not self._text_row().any()

    def _forced(self) -> bytes:
        data = self._inner.forced()
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            text = data[: error.start].decode()
        found = escaped(text)
        return found[len(self._partial) :] if found.startswith(self._partial) else b""

    def _text_row(self) -> MaskRow:
        if self._row is None:
            self._row = self._computed_row()
        return self._row

    def _computed_row(self) -> MaskRow:
        tokens = self._tokens
        here = self._inner._text_row()
        row = self._plain_row(here)
        opening, legal = tokens.opening, list[int]()
        if self._partial:
            legal = self._continued()
        else:
            first = {byte for byte, i in enumerate(tokens.byte_ids[:128]) if i >= 0 and is_set(here, i)} | {0x5C}
            opening = [x for x in opening if x[1][0] in first]
        legal += [i for i, data in opening if not is_set(row, i) and self._allows(data)]
        return row | pack(np.array(legal, np.int64), self._index.vocabulary.size) if legal else row

    def _continued(self) -> list[int]:
        """Tokens that go on with the partial escape, to a character beyond ASCII."""
        legal: list[int] = []
        for way, members in self._tokens.continuing(*missing(self._partial)).items():
            left = self._read(way, self._partial)
            if left is not None:
                row = self._inner._text_row() if left == b"" else None
                legal += [i for i, rest, ids in members if not rest or self._goes_on(left, row, rest, ids)]
            self._inner.rollback(self._home)
        return legal

    def _goes_on(self, left: bytes, row: MaskRow | None, rest: bytes, ids: tuple[int, ...]) -> bool:
        """Whether ``rest`` is legal where ``inner`` is now, with ``left`` of an escape unread; else ``row`` is its."""
        if row is not None and ids and (len(ids) == 1 or not is_set(row, ids[0])):
            return is_set(row, ids[0])
        mark = self._inner.mark()
        found = all(map(self._inner.advance, ids)) if row is not None and ids else self._read(rest, left) is not None
        self._inner.rollback(mark)
        return found

    def _plain_row(self, here: MaskRow) -> MaskRow:
        """Tokens behind which the engine has read every byte as it stands; ``here`` is its own row."""
        if self._partial:
            if not is_ascii_escape(self._partial):
                return np.zeros_like(self._tokens.row)
            here = here & 0
            if all(map(self._feed, self._partial)):
                here = self._inner._text_row()
            self._inner.rollback(self._home)
        return here[: len(self._tokens.row)] & self._tokens.row

    def _allows(self, data: bytes) -> bool:
        found = self._read(data, self._partial) is not None
        self._inner.rollback(self._home)
        return found

    def _read(self, data: bytes, partial: bytes) -> bytes | None:
        """Reads ``data`` behind ``partial``: the partial escape at its end, or None if it is not legal. Moves
        ``inner``."""
        for byte in data:
            partial += bytes((byte,))
            plain = resolve(partial)
            if plain is not None:
                if not all(map(self._feed, plain)):
                    return None
                partial = b""
        return partial if not partial or self._may_stand(partial) else None

    def _feed(self, byte: int) -> bool:
        token = self._tokens.byte_ids[byte]
        return token >= 0 and self._inner.advance(token)

    def _may_stand(self, partial: bytes) -> bool:
        """Whether ``inner``, where it is now, allows a character whose escape starts with ``partial``."""
        at_home = self._inner.mark() == self._home
        known = self._viable if at_home else {}
        if partial not in known:
            following = self._following if at_home else {}
            sequences = byte_sequences(code_points(partial))
            known[partial] = self._reads(partial) or any(self._leads(s, b"", following) for s in sequences)
        return known[partial]

    def _reads(self, partial: bytes) -> bool:
        """The same for ASCII characters, whose escapes the engine reads itself."""
        mark = self._inner.mark()
        found = is_ascii_escape(partial) and all(map(self._feed, partial))
        self._inner.rollback(mark)
        return found

    def _leads(self, sequence: ByteRanges, prefix: bytes, following: dict[bytes, list[int]]) -> bool:
        """Whether ``inner`` allows one of the characters of ``sequence`` that start with ``prefix``."""
        if prefix not in following:
            following[prefix] = self._high_bytes(prefix)
        low, high = sequence[len(prefix)]
        found = (byte for byte in following[prefix] if low <= byte <= high)
        if len(prefix) + 1 == len(sequence):
            return any(True for _ in found)
        return any(self._leads(sequence, prefix + bytes((byte,)), following) for byte in found)

    def _high_bytes(self, prefix: bytes) -> list[int]:
        """Bytes above 127 that ``inner`` allows behind ``prefix``."""
        mark = self._inner.mark()
        taken = all(map(self._feed, prefix))
        assert taken, "it was allowed"
        row = self._inner._text_row()
        ids = self._tokens.high_ids
        bits = (row[ids >> 5] >> (ids & 31)) & 1
        self._inner.rollback(mark)
        found: list[int] = self._tokens.high_bytes[bits != 0].tolist()
        return found
