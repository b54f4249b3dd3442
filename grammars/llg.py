"""llguidance behind our face.

What it does that a caller must not see: errors are sticky and make the mask EOS-only, EOS is recorded or not depending
on the state, masks are forced to canonical tokens by default, and a matcher must not be used from two threads at once.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLParserLimits

from constrained_spec.errors import (
    ConstrainedSpecError,
    GrammarBudgetError,
    RequestError,
    UnsatisfiableError,
)
from constrained_spec.grammars.base import Grammar, MaskRow
from constrained_spec.grammars.tokens import TokenIndex, Tokenization, is_set, pack
from constrained_spec.grammars.tracking import TrackingMatcher

# llguidance's own defaults, written down so that an upgrade cannot move them.
MAX_ITEMS_IN_ROW = 2_000
STEP_MAX_ITEMS = 50_000
INITIAL_LEXER_FUEL = 1_000_000
STEP_LEXER_FUEL = 200_000
MAX_LEXER_STATES = 250_000
MAX_GRAMMAR_SIZE = 500_000

_BUDGETS = (
    ("max_items_in_row", re.compile(r"row has \d+ items|ParserTooComplex", re.IGNORECASE)),
    ("step_lexer_fuel", re.compile(r"LexerTooComplex|fuel", re.IGNORECASE)),
    ("max_lexer_states", re.compile(r"lexer states|too many (?:(?:lexer )?states|expressions)", re.IGNORECASE)),
    ("step_max_items", re.compile(r"max_items|too many items", re.IGNORECASE)),
    (
        "max_grammar_size",
        re.compile(
            r"grammar.{0,20}(?:too|size)|symbols\.len\(\)|too large|too big|too complex|limit (?:exceeded|reached)",
            re.IGNORECASE,
        ),
    ),
)


def header(tokenization: Tokenization) -> str:
    """First line of a Lark text: it decides between pure and forced masks."""
    return '%llguidance {"no_forcing": true}\n' if tokenization == "any" else ""


class EngineError(Exception):
    """A grammar that llguidance refuses, in its own words. Compilers turn it into an error that says where."""


def budget_of(message: str) -> str | None:
    """The name of the limit that llguidance's ``message`` speaks of."""
    head = message.split("<state>", 1)[0]
    return next((name for name, pattern in _BUDGETS if pattern.search(head)), None)


def check_grammar(text: str, index: TokenIndex) -> None:
    """Raises ``EngineError`` if llguidance cannot compile ``text``."""
    LlgGrammar.build(text, index)


class LlgGrammar(Grammar):
    """A Lark text (JSON Schema and regex included) compiled by llguidance.

    Raises ``EngineError`` if it does not compile, ``GrammarBudgetError`` if it exceeds a limit at its first mask,
    ``UnsatisfiableError`` if no first token is legal and the empty text is not either.
    """

    def __init__(
        self, text: str, index: TokenIndex, key: str, what: str, tokenization: Tokenization, named: Sequence[int] = ()
    ) -> None:
        """``named``: ids of special tokens that the text speaks of; no other special token is ever legal."""
        self.index = index
        self.canonical = tokenization == "canonical"
        self.what = what
        self.nbytes = 1_000_000 + 40 * len(text)  # an estimate: the engine does not tell
        self._key = key
        self._lock = threading.Lock()
        size = index.vocabulary.size
        self.legal_row = (index.text_row | pack(np.asarray(named, np.int64), size)) & ~index.eos_row
        self._prototype = self.build(text, index)
        first = LlgMatcher(self, self._prototype)
        if first.is_dead:
            raise UnsatisfiableError(f"the {what} allows no text that this vocabulary can spell")

    @staticmethod
    def build(text: str, index: TokenIndex) -> LLMatcher:
        limits = LLParserLimits(
            max_items_in_row=MAX_ITEMS_IN_ROW,
            initial_lexer_fuel=INITIAL_LEXER_FUEL,
            step_lexer_fuel=STEP_LEXER_FUEL,
            step_max_items=STEP_MAX_ITEMS,
            max_lexer_states=MAX_LEXER_STATES,
            max_grammar_size=MAX_GRAMMAR_SIZE,
            verbose_errors=False,
        )
        matcher = LLMatcher(index.engine, text, log_level=0, limits=limits)
        if matcher.is_error():
            raise EngineError(matcher.get_error())
        return matcher

    @property
    def key(self) -> str:
        return self._key

    @property
    def warnings(self) -> list[str]:
        """What the engine finds odd about the text, in its own words."""
        with self._lock:
            return self._prototype.get_grammar_warnings()

    def matcher(self) -> TrackingMatcher:
        return LlgMatcher(self, self.fresh())

    def fresh(self) -> LLMatcher:
        # The engine refuses a matcher that another thread is using, and copying is using.
        with self._lock:
            return self._prototype.deep_copy()


class LlgMatcher(TrackingMatcher):
    """One ``LLMatcher``. After an engine error every step raises it again until a rollback to before the error."""

    def __init__(self, grammar: LlgGrammar, engine: LLMatcher, ids: Sequence[int] = (), ended: bool = False) -> None:
        super().__init__(grammar.index, ids, ended)
        self._grammar = grammar
        self._engine = engine
        self._row: MaskRow | None = None  # made at the first mask: a fork often sees none
        self._place = (0, 0)  # address and bytes of ``_row``; numpy takes longer to tell than many a mask takes
        self._row_is_current = False

    def fork(self) -> LlgMatcher:
        return LlgMatcher(self._grammar, self._engine.deep_copy(), self._ids, self._ended)

    def _check(self) -> None:
        if not self._engine.is_error():
            return
        message, what = self._engine.get_error().split("<state>", 1)[0].strip(), self._grammar.what
        if "NoExtensionBias" in message:
            raise UnsatisfiableError(f"the {what} allows no continuation of any length")
        limit = budget_of(message)
        if limit is not None:
            raise GrammarBudgetError(f"the {what} exceeds {limit} after {len(self._ids)} tokens", limit=limit)
        raise ConstrainedSpecError(f"the engine of the {what} failed after {len(self._ids)} tokens: {message}")

    def _engine_row(self) -> MaskRow:
        """The engine's own mask, EOS and special tokens included."""
        row = self._row
        if row is None:
            self._row = row = np.empty(self._index.vocabulary.mask_words, np.int32)
            self._place = (row.ctypes.data, row.nbytes)
        if not self._row_is_current:
            self._engine.unsafe_compute_mask_ptr(*self._place)
            self._check()  # after an error, old or new, the engine writes a mask of EOS alone
            self._row_is_current = True
        return row

    def _text_row(self) -> MaskRow:
        return self._engine_row() & self._grammar.legal_row

    def _text_into(self, row: MaskRow) -> None:
        np.bitwise_and(self._engine_row(), self._grammar.legal_row, out=row)

    def _consume(self, token: int) -> bool:
        # Special tokens are our business. With forced masks the engine would also take tokens outside the mask.
        if not is_set(self._grammar.legal_row, token):
            return False
        if self._grammar.canonical and not is_set(self._engine_row(), token):
            return False
        taken = self._engine.try_consume_tokens([token]) == 1
        self._check()
        self._row_is_current &= not taken
        return taken

    def _retract(self, count: int) -> None:
        self._row_is_current = False
        if self._engine.is_error() or not self._engine.rollback(count):
            self._engine = self._grammar.fresh()
            replayed = self._engine.try_consume_tokens(self._ids)
            assert replayed == len(self._ids), "what was consumed once is consumed again"

    def _accepts(self) -> bool:
        self._check()
        return self._engine.is_accepting()

    def _exhausted(self) -> bool:
        return self._engine.is_stopped() or not self._text_row().any()

    def _forced(self) -> bytes:
        self._check()
        # On a copy: looking ahead counts against the limits of the next step, and over a special token it spoils its
        # mask.
        engine = self._engine.deep_copy()
        data = engine.compute_ff_bytes()
        if engine.is_error():  # a limit met far ahead, where no step has come yet
            return b""
        # A forced special token is written as the byte FF and its id; text holds no such byte.
        return data.partition(b"\xff")[0]


def refuse(error: EngineError, what: str, param: str) -> RequestError:
    """The typed error of a message that no compiler understands better."""
    message = str(error).split("\n", 1)[0]
    if "Unsatisfiable" in message or "Regex is empty" in message:
        return UnsatisfiableError(f"the {what} can never be satisfied: {message}", param=param)
    limit = budget_of(message)
    if limit is not None:
        return GrammarBudgetError(f"the {what} is too large: {message}", limit=limit, param=param)
    return RequestError(f"the {what} does not compile: {message}", param=param)
