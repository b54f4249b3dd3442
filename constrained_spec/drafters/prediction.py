"""The caller's own expectation of the output, as a draft: an edited file is mostly the file.

The draft source behind "predicted outputs" (an option of OpenAI's chat completions); copying a reference text as drafts
is Yang et al. 2023, "Inference with Reference". Following goes by bytes, never by ids: another tokenisation of the same
text is the same place.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from constrained_spec.drafters.alignment import Alignment
from constrained_spec.drafters.base import Proposal
from constrained_spec.drafters.respell import Speller, without_partial
from constrained_spec.errors import RequestError
from constrained_spec.grammars.tokens import spell
from constrained_spec.state.sequence import Counts, Sequence
from constrained_spec.types import Vocabulary

_DOUBTFUL = 4  # tokens drafted from a place that nothing supports yet
_MARGIN = 64  # bytes spelled beyond what is needed, so that the cut lies in none of the tokens that are used
_TOKEN_BYTES = 8  # of an average token at most


class PredictionDrafter:
    """Proposes what the prediction says next, in the tokeniser's own spelling.

    ``prediction`` is the text expected as the output: characters, bytes, or ids of the target's vocabulary. Made for
    one request; several sequences of it (n choices) may be open at once, each with its own place. After a difference
    (insertion, deletion, replacement, a moved block) the place is found again, see ``alignment``. How many tokens are
    proposed depends on how many committed bytes support the place, so on nothing that the round still decides.
    """

    name = "prediction"

    def __init__(self, prediction: str | bytes | Seq[int]) -> None:
        self._prediction = prediction.encode() if isinstance(prediction, str) else prediction
        self._alignments: dict[int, Alignment] = {}  # by id of an open sequence
        self._spellings: dict[str, _Spelling] = {}  # by digest of a vocabulary

    def open(self, sequence: Sequence) -> None:
        """Raises ``RequestError`` if the prediction names an id that the vocabulary does not have."""
        if id(sequence) not in self._alignments:
            alignment = Alignment(self._text(sequence.vocabulary), sequence.vocabulary)
            for token in sequence.output:
                alignment.advance(token)
            self._alignments[id(sequence)] = alignment
            sequence.follow(alignment)

    def close(self, sequence: Sequence) -> None:
        self._alignments.pop(id(sequence), None)

    def propose(self, proposals: Seq[Proposal]) -> None:
        for proposal in proposals:
            alignment = self._alignments[id(proposal.sequence)]
            place, history = alignment.place, proposal.sequence.history
            # The drafts before this place: of a tree only its path.
            for token in history.tokens[history.prompt_length + proposal.first :]:
                place = alignment.after(place, token)
            # A draft of ours agrees with the prediction by construction: only what is committed supports a place.
            trust = min(alignment.place.trust, place.trust)
            ours = proposal.tx.sources.count(self.name)
            room = min(proposal.room, _DOUBTFUL + 2 * trust - ours)
            if room <= 0 or place.at >= len(alignment.text):
                continue
            for token in self._spelling(proposal.sequence.vocabulary, alignment.text).after(place.at, room):
                if proposal.room <= 0 or not proposal.point(token, self.name):
                    break

    def _text(self, vocabulary: Vocabulary) -> bytes:
        if isinstance(self._prediction, bytes):
            return self._prediction
        for token in self._prediction:
            if not 0 <= token < vocabulary.size:
                raise RequestError(
                    f"the prediction holds id {token}, the vocabulary ends at {vocabulary.size - 1}", param="prediction"
                )
        return vocabulary.bytes_of(self._prediction)

    def _spelling(self, vocabulary: Vocabulary, text: bytes) -> _Spelling:
        found = self._spellings.get(vocabulary.digest)
        if found is None:
            found = self._spellings[vocabulary.digest] = _Spelling(vocabulary, text)
        return found


def prediction_usage(counts: Counts) -> tuple[int, int]:
    """(accepted, rejected) prediction tokens of a sequence, as a usage report names them.

    A draft behind the first rejected one counts as rejected, whatever it was.
    """
    proposed, accepted = counts.by_source.get(PredictionDrafter.name, (0, 0))
    return accepted, proposed - accepted


class _Spelling:
    """The whole text in the tokeniser's spelling, made once, and a way into it from any byte."""

    def __init__(self, vocabulary: Vocabulary, text: bytes) -> None:
        self._speller = Speller(vocabulary)
        self._text = text
        self._ids = spell(vocabulary, text)
        self._starts: dict[int, int] = {}  # offset of a token -> its index in _ids
        at = 0
        for index, token in enumerate(self._ids):
            self._starts[at] = index
            at += self._length(token)

    def after(self, at: int, n: int) -> list[int]:
        """At most ``n`` tokens of the text from byte ``at`` on."""
        index = self._starts.get(at)
        if index is not None:
            return self._ids[index : index + n]
        # Between two boundaries (the output is spelled otherwise here): spell anew until the boundaries meet again.
        end = at + _TOKEN_BYTES * n + _MARGIN
        data = self._text[at:end]
        ids = self._speller.exact(without_partial(data) if end < len(self._text) else data)
        if end < len(self._text):
            ids = ids[:-1]  # cut in the middle of a word, it is no token of that word
        for count, token in enumerate(ids[:n]):
            at += self._length(token)
            index = self._starts.get(at)
            if index is not None:
                return [*ids[: count + 1], *self._ids[index : index + n - count - 1]]
        return ids[:n]

    def _length(self, token: int) -> int:
        return len(self._speller.vocabulary.tokens[token] or b"")
