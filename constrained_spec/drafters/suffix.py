"""What earlier outputs went on with after the same tokens (SuffixDecoding, Oliaro et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from constrained_spec.drafters.base import Proposal
from constrained_spec.drafters.suffix_automaton import NOTHING, Continuation, SuffixAutomaton
from constrained_spec.drafters.suffix_store import CONTEXT, SuffixStore
from constrained_spec.errors import ConfigError, VocabularyMismatchError
from constrained_spec.state.sequence import Sequence

SHORTEST, THRESHOLD = 3, 0.2
_PROMPT = 2048  # tokens of the prompt's end that are indexed with ``own``


class SuffixDrafter:
    """Proposes the most frequent continuation of the newest tokens among the outputs in ``store``.

    Made per request, for what ``namespace`` and ``grammar_key`` may see; the key is ``Grammar.key``, None without a
    grammar. Speaks only after a match of at least ``shortest`` tokens, and as far as the estimated chance of the whole
    path stays above ``threshold``; both read counts of finished outputs, never this round's logits. ``own`` also
    searches the end of the request's own prompt and what it has committed. With ``learn`` a finished output is added to
    the store when the sequence is closed.
    """

    name = "suffix"

    def __init__(
        self, store: SuffixStore, *, namespace: str = "", grammar_key: str | None = None, shortest: int = SHORTEST,
        threshold: float = THRESHOLD, own: bool = False, learn: bool = True,
    ) -> None:  # fmt: skip
        if not isinstance(shortest, int) or isinstance(shortest, bool) or shortest < 1:
            raise ConfigError(f"shortest must be an integer of at least 1, got {shortest!r}", param="shortest")
        if not 0 < threshold < 1:
            raise ConfigError(f"threshold must lie in (0, 1), got {threshold!r}", param="threshold")
        self._store = store
        self._namespace, self._grammar_key = namespace, grammar_key
        self._shortest, self._threshold = shortest, threshold
        self._own = own
        self._learn = learn
        self._indices: dict[int, _OwnIndex] = {}  # by id of an open sequence

    def open(self, sequence: Sequence) -> None:
        """Raises ``VocabularyMismatchError`` if the store holds ids of another vocabulary."""
        if sequence.vocabulary.digest != self._store.digest:
            raise VocabularyMismatchError("the suffix store holds ids of another vocabulary", param="drafter")
        if self._own:
            self._indices[id(sequence)] = _OwnIndex(sequence.history.prompt_length)

    def close(self, sequence: Sequence) -> None:
        self._indices.pop(id(sequence), None)
        if self._learn and sequence.finished:
            self._store.add(self._namespace, self._grammar_key, sequence.output)

    def propose(self, proposals: Seq[Proposal]) -> None:
        for proposal in proposals:
            if proposal.room <= 0:
                continue
            for token in self._find(proposal).tokens:
                if proposal.room <= 0 or not proposal.point(token, self.name):
                    break

    def _find(self, proposal: Proposal) -> Continuation:
        history, legal, room = proposal.sequence.history, proposal.tx.is_legal, proposal.room
        found = self._store.find(
            self._namespace, self._grammar_key, history.tokens[history.prompt_length :],
            room=room, shortest=self._shortest, threshold=self._threshold, legal=legal,
        )  # fmt: skip
        index = self._indices.get(id(proposal.sequence))
        own = NOTHING
        if index is not None:
            # Drafts are searched for, never indexed.
            index.learn(history.tokens, history.prompt_length + proposal.first)
            tail = history.tokens[-CONTEXT:]
            own = index.automaton.continuation(tail, room, self._shortest, self._threshold, legal)
        return own if own.expected > found.expected else found


class _OwnIndex:
    """The committed tokens of one request. It grows behind them and holds no draft, so no round has to undo it."""

    def __init__(self, prompt_length: int) -> None:
        self.automaton = SuffixAutomaton()
        self._known = max(0, prompt_length - _PROMPT)
        self._last = 0

    def learn(self, tokens: Seq[int], committed: int) -> None:
        """Take in ``tokens[:committed]``, of which all but the newest are known."""
        for token in tokens[self._known : committed]:
            self._last = self.automaton.extend(self._last, token)
        self._known = committed
