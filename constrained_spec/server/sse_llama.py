"""The stream of llama.cpp's ``/completion`` and ``/infill``, which may end before the engine does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from constrained_spec.server.answers_llama import llama_cut, llama_end
from constrained_spec.server.fim import indent_end
from constrained_spec.server.shapes import Answering, Json

if TYPE_CHECKING:
    from constrained_spec.api.result import Piece, Result


class LlamaStream:
    """Events with ``content``, and a last one that says how it ended.

    With ``n_indent`` the text ends before the first line that leaves the block: ``done`` is then True, and the request
    may be cancelled. An output that is given up, for that or for its time limit, ends with ``cut`` instead of ``end``.
    ``predicted`` counts the tokens that came.
    """

    def __init__(self, a: Answering, prompt_tokens: int) -> None:
        self._a = a
        self._prompt_tokens = prompt_tokens
        self._text = ""  # all that came
        self._shown = 0
        self._begun = time.perf_counter()
        self._times = (0.0, 0.0)  # of the first and the last piece, since then
        self.predicted = 0
        self.done = False

    @property
    def text(self) -> str:
        """The text that was shown."""
        return self._text[: self._shown]

    def start(self) -> list[Json]:
        """Nothing: the first event has text."""
        return []

    def piece(self, piece: Piece[Any]) -> list[Json]:
        """The text of ``piece``, as far as it is certain to belong to the answer."""
        if self.done:
            return []
        now = max(0.0, piece.at - self._begun)
        self._times = (self._times[0] or now, now)
        self.predicted += len(piece.tokens)
        self._text += piece.text
        shown, self._shown = self._shown, max(self._shown, self._certain(piece.result is not None))
        if self._shown == shown and not (self._a.plan.return_rounds and piece.tokens):
            return []
        event: Json = {
            "index": 0,
            "content": self._text[shown : self._shown],
            "tokens": [],
            "stop": False,
            "tokens_predicted": self.predicted,
            "tokens_evaluated": self._prompt_tokens,
        }
        if self._a.plan.return_rounds:
            event["spec"] = self._a.spec(piece)
        return [event]

    def end(self, result: Result[Any]) -> list[Json]:
        """How it ended."""
        return [llama_end(self._a, result)]

    def cut(self) -> list[Json]:
        """The end of an output that was given up."""
        return [llama_cut(self._a, "", self._prompt_tokens, self.predicted, self._times)]

    def failed(self, error: Json) -> list[Json]:
        """llama.cpp's clients look for ``error``."""
        return [error]

    def _certain(self, last: bool) -> int:
        """How many characters belong to the answer whatever follows. Sets ``done`` where a line leaves the block."""
        columns = self._a.plan.n_indent
        if not columns:
            return len(self._text)
        end = indent_end(self._text, columns)
        if end is not None:
            self.done = True
            return end
        body = self._text.rstrip(" \t\r\n")
        # Line breaks, and the indentation of a line that has no text yet, may still turn out not to belong.
        return len(self._text) if last or "\n" not in self._text[len(body) :] else len(body)
