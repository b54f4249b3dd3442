"""Bytes as ids of a vocabulary, also where the bytes are no whole UTF-8 text."""

from __future__ import annotations

from functools import cached_property

from constrained_spec.grammars.tokens import spell
from constrained_spec.types import Vocabulary


class Speller:
    """A vocabulary's tokeniser, completed by its one-byte tokens.

    A text that begins or ends in the middle of a character has a spelling only through those.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    def exact(self, data: bytes) -> list[int]:
        """Ids that stand for exactly the beginning of ``data``, as far as the tokeniser has any."""
        ids: list[int] = []
        at, spelled = 0, self.vocabulary.tokens
        while at < len(data):
            run = spell(self.vocabulary, data[at:])
            ids += run
            at += sum(len(spelled[i] or b"") for i in run)
            if at == len(data):
                break
            single = self._single.get(data[at])
            # A byte that does begin a character was left out by the tokeniser itself: it spells something else there.
            if single is None or _begins_character(data, at):
                break
            ids.append(single)
            at += 1
        return ids

    def loose(self, data: bytes) -> list[int]:
        """Ids of all of ``data`` as the tokeniser reads it: a normaliser may have changed the text, and bytes that are
        neither text nor a token are left out. Good for a context, not for a claim about the text."""
        ids: list[int] = []
        while data:
            try:
                text, bad, data = data.decode(), b"", b""
            except UnicodeDecodeError as error:
                text, bad, data = data[: error.start].decode(), data[error.start : error.end], data[error.end :]
            if text:
                ids += self.vocabulary.encode(text)
            ids += [self._single[b] for b in bad if b in self._single]
        return ids

    @cached_property
    def _single(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for i, token in enumerate(self.vocabulary.tokens):
            if token is not None and len(token) == 1:
                found.setdefault(token[0], i)
        return found


def without_partial(data: bytes) -> bytes:
    """``data`` up to the last byte at which no character is left incomplete."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:  # a first byte: of 2, 3 or 4
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if need > back else data
        if byte < 0x80:
            return data
    return data


def _begins_character(data: bytes, at: int) -> bool:
    try:
        data[at : at + 4].decode()
    except UnicodeDecodeError as error:
        return error.start > 0
    return True
