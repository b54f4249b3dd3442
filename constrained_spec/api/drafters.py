"""Drafters by name, as an engine offers them to its requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.drafters.base import Drafter
from constrained_spec.drafters.eagle import EagleDrafter
from constrained_spec.drafters.early_exit import EarlyExitDrafter
from constrained_spec.drafters.forced import ForcedDrafter
from constrained_spec.drafters.heads import HeadDrafter
from constrained_spec.drafters.manifest import Part, shipped_part
from constrained_spec.drafters.medusa import MedusaDrafter
from constrained_spec.drafters.mixture import MixtureDrafter
from constrained_spec.drafters.model import ModelDrafter
from constrained_spec.drafters.ngram import NgramDrafter
from constrained_spec.drafters.prediction import PredictionDrafter
from constrained_spec.drafters.quantized import QuantizedDrafter
from constrained_spec.drafters.suffix import SuffixDrafter
from constrained_spec.drafters.suffix_store import SuffixStore
from constrained_spec.drafters.switching import SwitchingDrafter
from constrained_spec.drafters.translate import TranslateDrafter
from constrained_spec.drafters.tree import TreeDrafter
from constrained_spec.drafters.tree_model import TreeModelDrafter
from constrained_spec.errors import ConfigError, ModelError, VocabularyMismatchError
from constrained_spec.processors.pipeline import Pipeline

HISTORY_BYTES = 64 << 20
CHAINS = ("block", "typical")  # verifiers whose own rule is one for chains
# Of the tree of "auto", which is made for time: a node and a level of trained heads, in target steps, roughly. An int8
# step is short, and hardly longer for a block.
TREE_COSTS = {"float": (0.05, 0.12), "int8": (0.03, 0.2)}
COSTS = {"eagle": 0.1, "model": 0.2, "translate": 0.2}  # of a draft, in target steps, roughly


class Drafters:
    """Makes drafters by name. What owns slots or weights is made once, on first use."""

    def __init__(
        self,
        model: TransformersModel,
        pipeline: Pipeline,
        draft_model: TransformersModel | None,
        parts: Mapping[str, Part] | None,
        history_bytes: int,
    ) -> None:
        """``parts``: trained heads by kind; None for those that this package ships for the target. ``history_bytes``:
        of finished outputs that ``auto`` drafts from, 0 for none; "suffix" keeps its own history even then.
        """
        self._model = model
        self._pipeline = pipeline
        self._draft = draft_model
        self._parts = parts
        self._history = SuffixStore(history_bytes or HISTORY_BYTES, model.vocabulary)
        self._remembers = history_bytes > 0
        self.lost: str | None = None  # why there is no draft model any more
        self.run: Callable[[Callable[[], Drafter]], Drafter] = lambda make: make()  # where shared drafters are made
        self._lock = threading.Lock()
        self._made: dict[str, Drafter] = {}
        self._shipped: dict[str, Part | None] = {}

    def make(
        self, name: str, *, prediction: str | Seq[int] | None, namespace: str, grammar_key: str | None, verifier: str
    ) -> Drafter | None:
        """The drafter of one request. Raises ``ConfigError`` where what it needs is missing."""
        if prediction is not None and name not in ("prediction", "mixture", "auto"):
            raise ConfigError(
                f"drafter {name!r} does not use a prediction", param="prediction", hint="prediction, mixture or auto"
            )
        if name == "none":
            return None
        if name == "prediction":
            if prediction is None:
                raise ConfigError("drafter 'prediction' needs a prediction", param="prediction")
            return PredictionDrafter(prediction)
        if name == "suffix":
            return SuffixDrafter(self._history, namespace=namespace, grammar_key=grammar_key)
        if name == "forced":
            return ForcedDrafter(NgramDrafter())
        if name == "ngram":
            return NgramDrafter()
        if name in ("mixture", "auto"):
            return self._mixture(name, prediction, namespace, grammar_key, verifier)
        if name in ("eagle", "medusa") and verifier == "tree":
            return self._shared(f"tree of {name}")
        return self._shared(name)

    def release(self) -> bool:
        """Free what memory drafting alone takes: the quantised copy, then the draft model. Who drafts with it goes on
        without. False: there is none to free.
        """
        if self._model.drop_quantized():
            return True
        if self._draft is None or self.lost is not None:
            return False
        self.lost = "its memory was needed"
        self._draft.release()
        return True

    def _mixture(
        self, name: str, prediction: str | Seq[int] | None, namespace: str, grammar_key: str | None, verifier: str
    ) -> Drafter:
        """The caller's text and what earlier outputs say, then everything else: in "auto" a tree of guesses where there
        are trained heads, and else a chain whose every place has the source that fared best.
        """
        first: list[Drafter] = [] if prediction is None else [PredictionDrafter(prediction)]
        earlier: list[Drafter] = []
        if self._remembers:
            earlier.append(SuffixDrafter(self._history, namespace=namespace, grammar_key=grammar_key))
        # What a prediction is worth is not learned from requests without one, so it has a name of its own.
        told = name if prediction is None else f"{name} with a prediction"
        drafts = self._draft is not None and self.lost is None
        heads = self._part("eagle") is not None
        if verifier == "tree" and prediction is None:
            return MixtureDrafter([*earlier, self._shared("tree")], told)
        if name == "auto" and heads and not drafts and verifier not in CHAINS:
            tree = self._shared("auto")
            usual = MixtureDrafter([*first, *earlier, tree], told, pinned=len(first))
            if not self._model.quantizes_well:
                return usual
            chain = self._shared("quantized")
            assert isinstance(tree, TreeDrafter) and isinstance(chain, QuantizedDrafter)
            return SwitchingDrafter(usual, chain, tree, predicted=prediction is not None)
        ngram = NgramDrafter()
        sources = [*first, ForcedDrafter(ngram), *earlier, ngram]
        if drafts:
            sources.append(self._shared("model" if self._same_vocabulary() else "translate"))
        elif name == "mixture" and heads:
            sources.append(self._shared("eagle"))
        return MixtureDrafter(sources, told, pinned=len(first) + 1, costs=COSTS)

    def _shared(self, name: str) -> Drafter:
        if name not in self._made:
            heads = self._heads_of(name)  # made first: the lock below is held while a drafter is made
            makers: dict[str, Callable[[], Drafter]] = {
                "model": lambda: ModelDrafter(self._need_draft(name), self._pipeline, self._model.vocabulary),
                "translate": self._translate,
                "tree": lambda: self._tree(heads),
                "auto": lambda: self._quick_tree(heads),
                "tree of eagle": lambda: TreeDrafter(heads=heads, memory=False),
                "tree of medusa": lambda: TreeDrafter(heads=heads, memory=False),
                "early-exit": self._early_exit,
                "quantized": lambda: QuantizedDrafter(self._model, self._pipeline),
                "medusa": lambda: MedusaDrafter(
                    self._model, self._pipeline, self._need_part("medusa"), allow_variants=True
                ),
                "eagle": lambda: EagleDrafter(
                    self._model, self._pipeline, self._need_part("eagle"), allow_variants=True
                ),
            }
            with self._lock:
                if name not in self._made:
                    # It may touch the target, which belongs to the engine's thread.
                    self._made[name] = self.run(makers[name])
        return self._made[name]

    def _quick_tree(self, heads: HeadDrafter | None) -> Drafter:
        costs = TREE_COSTS["int8" if self._model.numerics == "int8" else "float"]
        return TreeDrafter(heads=heads, fan=3, beam=3, depth=4, least=0.06, costs=costs)

    def _heads_of(self, name: str) -> HeadDrafter | None:
        """The trained heads that a tree grows from; a chain of theirs serves other requests with the same weights."""
        kind = name.removeprefix("tree of ")
        if name == "auto" or (name == "tree" and self._draft is None):
            kind = "eagle" if self._part("eagle") is not None else name
        if kind == name:
            return None
        heads = self._shared(kind)
        assert isinstance(heads, HeadDrafter)
        return heads

    def _same_vocabulary(self) -> bool:
        try:
            self._shared("model")
        except VocabularyMismatchError:
            return False
        return True

    def _translate(self) -> Drafter:
        draft = self._need_draft("translate")
        return TranslateDrafter(draft, self._pipeline, self._model.vocabulary, prefix=draft.encode(""))

    def _tree(self, heads: HeadDrafter | None) -> Drafter:
        if self._draft is None:
            return TreeDrafter(heads=heads)
        return TreeModelDrafter(self._draft, self._pipeline, self._model.vocabulary)

    def _early_exit(self) -> Drafter:
        self._model.require_specialised("early-exit")
        return EarlyExitDrafter(self._model, self._pipeline)

    def _need_draft(self, name: str) -> TransformersModel:
        if self.lost is not None:
            raise ModelError(f"the draft model is gone: {self.lost}", param="draft_model")
        if self._draft is None:
            raise ConfigError(
                f"drafter {name!r} needs a draft model", param="drafter", hint="Engine.load(..., draft_model=NAME)"
            )
        return self._draft

    def _need_part(self, kind: str) -> Part:
        part = self._part(kind)
        if part is None:
            raise ConfigError(
                f"drafter {kind!r} needs a part trained for {self._model.name}",
                param="drafter",
                hint=f"constrained-spec train {kind}, then Engine.load(..., parts=FOLDER)",
            )
        return part

    def _part(self, kind: str) -> Part | None:
        if self._parts is not None:
            return self._parts.get(kind)
        if kind not in self._shipped:
            self._shipped[kind] = shipped_part(kind, self._model, allow_variants=True)
        return self._shipped[kind]
