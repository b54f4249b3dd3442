"""Decoder-only transformers models behind the ``LanguageModel`` protocol."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from constrained_spec.backends import attention
from constrained_spec.backends.base import Block
from constrained_spec.backends.decoder import Decoder, unspecialisable
from constrained_spec.backends.features import FeatureStore
from constrained_spec.backends.products import WIDE, fastest, has_quick_kernel, quantizer, rounder
from constrained_spec.backends.slots import SlotCache, Step
from constrained_spec.backends.support import (
    CHECKED,
    cache_argument,
    context_limit,
    probe,
    refuse_model,
    slot_layers,
)
from constrained_spec.backends.vocabulary import build_vocabulary
from constrained_spec.errors import ConfigError, ModelError, RequestError
from constrained_spec.types import Vocabulary

MAX_DEFAULT_CAPACITY = 8192
_CHECK_LENGTH = 8


@dataclass(frozen=True, slots=True)
class StepPath:
    """How a model's steps are computed, and how far that is from the model's own forward."""

    specialised: bool
    detail: str  # the product that was chosen, and what runs as CUDA graphs; or why the stock forward runs
    drift: float  # largest difference of a logit from the plain forward's, on the check input


class TransformersModel:
    """A causal language model of transformers with its keys and values in slots.

    Every layer keeps the whole context, sliding ones too: the window is in the mask, so a rollback across it is
    arithmetic like any other. With ``specialise`` a model of the Llama family gives its weights to a ``Decoder``, if
    that computes what the model's own forward computes; ``path`` says what came of it, and ``model`` is then None. Else
    ``model`` is put in evaluation mode and, where its architecture is one that the tests check, given this package's
    attention function; it stays usable with transformers' own ``generate``.

    Raises ``ConfigError`` for an option, and ``ModelError`` for a model that keeps any other state (recurrent, hybrid,
    encoder-decoder) or whose forward in slots does not reproduce its own plain forward.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        slots: int = 1,
        capacity: int | None = None,
        name: str = "model",
        specialise: bool = False,
        quantize: str | None = None,
    ) -> None:
        """``capacity`` is the context limit in tokens; default the model's own, at most 8192. ``quantize="int8"`` (CPU)
        declares another target: int8 weights and inputs, in every linear layer and the embedding.
        """
        refuse_model(model)
        self.model: PreTrainedModel | None = model.eval()
        self.tokenizer = tokenizer
        self.config = model.config
        self.dtype: torch.dtype = model.dtype
        self._device: torch.device = model.device
        self._name = name
        self._digest: str | None = None
        self._store: FeatureStore | None = None
        self._hidden: Tensor | None = None  # of the stock forward that runs now
        self._cache_argument = cache_argument(model)
        self._takes_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._masks_by_kind = getattr(model.config, "layer_types", None) is not None
        make = None if quantize is None else quantizer(quantize, model.device)
        if model.config.model_type in CHECKED:
            attention.register()
            model.set_attn_implementation(attention.NAME)
        ids = [i * 7919 % model.config.vocab_size for i in range(_CHECK_LENGTH)]
        plain, cache = probe(model, ids)
        self._cache = SlotCache(
            slot_layers(model, cache, *_sizes(slots, capacity, context_limit(model.config))),
            window=getattr(model.config, "sliding_window", None),
            implicit_causal=getattr(model.config, "_attn_implementation", None) in (attention.NAME, "sdpa"),
        )
        self._vocabulary = build_vocabulary(tokenizer, plain.shape[-1], eos_ids(model, tokenizer))
        self._decoder: Decoder | None = None
        self._rough: Decoder | None = None  # of int8 products, in the same slots
        reason = "not asked for"
        if specialise or make is not None:
            reason = self._why_stock(model, plain, ids) or ""
        if make is not None and reason:
            raise ConfigError(
                f"{name} cannot be quantised: that needs the specialised step ({reason})", param="quantize"
            )
        self.quantized = quantize is not None
        self.numerics = str(self.dtype).removeprefix("torch.") if quantize is None else quantize
        if reason:
            drift = self._drift(self.score, plain, ids)
            self._path = StepPath(False, reason, drift)
        else:
            detail = f"{quantize} weights, int8 inputs with a scale per row, int32 sums"
            if make is None:
                make, detail = fastest(model.model.layers[0].mlp.gate_proj.weight.detach())
            self._decoder, self.model = Decoder(model, self._cache, make), None
            drift = self._drift(self.score, plain, ids)
            self._path = StepPath(True, detail, drift)
        if quantize is None and not self._tolerable(drift, plain):
            raise ModelError(
                f"{name} cannot run in KV slots: its logits there differ by {drift:.3g} from its own forward's",
                param="model",
            )

    def _why_stock(self, model: PreTrainedModel, plain: Tensor, ids: list[int]) -> str | None:
        """The reason against the specialised step, None if it computes what the model's own forward does."""
        reason = unspecialisable(model)
        if reason is not None:
            return reason
        drift = self._drift(Decoder(model, self._cache).score, plain, ids)
        return None if self._tolerable(drift, plain) else f"its logits differ by {drift:.3g} from the model's own"

    @property
    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    @property
    def name(self) -> str:
        return self._name

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def slots(self) -> int:
        return self._cache.slots

    @property
    def capacity(self) -> int:
        return self._cache.capacity

    # ---- forward --------------------------------------------------------------------------------------------------

    def score(self, blocks: Sequence[Block]) -> Tensor:
        """See ``LanguageModel.score``. Raises ``RequestError`` if a block does not fit into its slot."""
        if self._decoder is not None:
            return self._decoder.score(blocks)
        if self.model is None:
            raise ModelError(f"{self.name} was released", param="model")
        # Ascending slots make a view of the buffers possible wherever the slots are consecutive.
        order = sorted(range(len(blocks)), key=lambda i: blocks[i].slot)
        with torch.inference_mode():
            step = self._cache.begin([blocks[i] for i in order])
            try:
                logits = self._forward(step)
                self._store_rows(step)
                self._cache.grow(step.blocks)
            finally:
                self._cache.end()
                self._hidden = None
        # Made outside inference mode, the result is an ordinary tensor that its owner may edit.
        wanted = torch.empty(sum(b.want for b in blocks), logits.shape[-1], device=logits.device)
        row = {i: r for r, i in enumerate(order)}
        at = 0
        for i, block in enumerate(blocks):
            # Blocks are right-aligned, so the wanted rows are always the last ones.
            wanted[at : at + block.want] = logits[row[i], logits.shape[1] - block.want :]
            at += block.want
        return wanted

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self._cache.slot_layers)

    def score_ahead(self, blocks: Sequence[Block], starts: Sequence[int], layers: int) -> Tensor:
        """See ``Decoder.score_ahead``. Raises ``ConfigError`` where the stock forward runs."""
        self.require_specialised("early-exit")
        assert self._decoder is not None
        return self._decoder.score_ahead(blocks, starts, layers)

    @property
    def quantizes_well(self) -> bool:
        """Whether ``quantize_ahead`` makes steps that cost about half: known by the kind of machine and model alone."""
        if self._decoder is None or self.quantized or self.dtype != torch.float32:
            return False
        return self.feature_size >= WIDE and has_quick_kernel(self.device)

    def quantize_ahead(self) -> None:
        """Hold the weights a second time in int8, for ``score_ahead_quantized``; once held, they stay.

        Raises ``ConfigError`` where there is no kernel for that, or where the target itself is quantised.
        """
        self.require_specialised("quantized")
        assert self._decoder is not None
        if self.quantized:
            raise ConfigError(
                f"drafter 'quantized' needs a float target, and {self.name} is {self.numerics} itself",
                param="drafter",
                hint="load the target without quantize=",
            )
        if self._rough is None:
            self._rough = self._decoder.remade(rounder(self.device))

    def score_ahead_quantized(self, blocks: Sequence[Block], starts: Sequence[int]) -> Tensor:
        """As ``score_ahead`` with all layers, by int8 weights: quicker, and not the target's logits.

        Raises ``ModelError`` without ``quantize_ahead``, or after ``drop_quantized``.
        """
        if self._rough is None:
            raise ModelError(f"{self.name} holds no int8 weights to draft with", param="drafter")
        return self._rough.score_ahead(blocks, starts)

    def drop_quantized(self) -> bool:
        """Give the memory of ``quantize_ahead`` back. False: there was none."""
        held, self._rough = self._rough is not None, None
        return held

    def require_specialised(self, drafter: str) -> None:
        """Raises ``ConfigError`` for a drafter that works on the specialised step alone, where there is none."""
        if self._decoder is None:
            raise ConfigError(f"drafter {drafter!r} needs the specialised step ({self.path.detail})", param="drafter")

    def _forward(self, step: Step) -> Tensor:
        """Logits [B, n, V] of the last n columns, n at least the largest ``want``."""
        ids = [[block.tokens[0]] * (step.width - len(block.tokens)) + list(block.tokens) for block in step.blocks]
        masks = {kind: span.mask for kind, span in step.spans.items()}
        options: dict[str, Any] = {self._cache_argument: self._cache}
        if self._takes_rows:
            # 0 would mean all.
            options["logits_to_keep"] = max(1, *(block.want for block in step.blocks))
        assert self.model is not None
        output = self.model(
            input_ids=torch.tensor(ids, device=self.device),
            position_ids=step.position_ids,
            attention_mask=masks if self._masks_by_kind else next(iter(masks.values())),
            use_cache=True,
            **options,
        )
        logits: Tensor = output.logits
        return logits

    # ---- slots ----------------------------------------------------------------------------------------------------

    def length(self, slot: int) -> int:
        return self._cache.length(slot)

    def set_length(self, slot: int, length: int) -> None:
        self._cache.set_length(slot, length)
        if self._store is not None:
            self._store.cut(slot, length)

    def clear(self, slot: int) -> None:
        """See ``LanguageModel``."""
        self.set_length(slot, 0)
        self._cache.clear(slot)

    def copy(self, source: int, target: int, length: int) -> None:
        """See ``LanguageModel``."""
        self._cache.copy(source, target, length)
        if self._store is not None:
            self._store.copy(source, target, length)

    @property
    def takes_trees(self) -> bool:
        """Not in int8: there the last bit of a sum decides how an input is rounded, and with it more than ties."""
        return not self.quantized

    def compact(self, slot: int, base: int, path: Sequence[int]) -> None:
        """Keep one path of the tree block written from ``base`` on; ``path`` holds indices within the block."""
        self._cache.compact(slot, base, path)
        if self._store is not None:
            self._store.compact(slot, base, path)

    def fingerprint(self, slot: int) -> bytes:
        return self._cache.fingerprint(slot)

    # ---- features -------------------------------------------------------------------------------------------------

    @property
    def feature_size(self) -> int:
        return int(self.config.get_text_config().hidden_size)

    def keep_features(self) -> None:
        """See ``FeatureModel``. Costs one copy of the block's final states a step; asked for once, it stays."""
        if self._store is not None:
            return
        if self._decoder is not None:
            if not self._decoder.plain_head:
                raise ModelError(f"{self.name} has an output layer with a bias", param="drafter")
        else:
            self._hook_stock()
        lengths = [self._cache.length(slot) for slot in range(self.slots)]
        self._store = FeatureStore(lengths, self.capacity, self.feature_size, self.dtype, self.device)
        if self._decoder is not None:
            self._decoder.store = self._store

    def features(self, slot: int) -> Tensor | None:
        return None if self._store is None else self._store.read(slot, self.length(slot))

    def embed(self, ids: Tensor) -> Tensor:
        with torch.no_grad():
            if self._decoder is not None:
                return self._decoder.embed(ids)
            assert self.model is not None
            rows: Tensor = self.model.get_input_embeddings()(ids)
            return rows

    def head_rows(self, ids: Tensor) -> Tensor:
        with torch.no_grad():
            if self._decoder is not None:
                return self._decoder.head_rows(ids)
            assert self.model is not None
            rows: Tensor = self.model.get_output_embeddings().weight[ids]
            return rows.detach()

    def _hook_stock(self) -> None:
        """Catch the states behind the last norm; raises ``ModelError`` where they do not give the logits."""
        assert self.model is not None
        head = self.model.get_output_embeddings()

        def catch(module: Any, given: Any, output: Any) -> None:
            self._hidden = output[0] if isinstance(output, tuple) else output.last_hidden_state

        handle = self.model.base_model.register_forward_hook(catch)
        ids = torch.tensor([[i * 7919 % self.config.vocab_size for i in range(_CHECK_LENGTH)]], device=self.device)
        with torch.inference_mode():
            logits = self.model(input_ids=ids, use_cache=False).logits[0].float()
            hidden, self._hidden = self._hidden, None
            same = hidden is not None and head is not None and getattr(head, "bias", None) is None
            if same:
                ours = torch.nn.functional.linear(hidden[0], head.weight).float()  # type: ignore[index]
                same = self._tolerable(float((ours - logits).abs().max()), logits)
        if not same:
            handle.remove()
            raise ModelError(
                f"the logits of {self.name} are no plain product of its final hidden states", param="drafter"
            )

    def _store_rows(self, step: Step) -> None:
        if self._store is None:
            return
        assert self._hidden is not None
        for row, (block, start) in enumerate(zip(step.blocks, step.starts, strict=True)):
            # Blocks are right-aligned.
            self._store.write(block.slot, start, self._hidden[row, step.width - len(block.tokens) :])

    # ---- text -----------------------------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        """Ids of a raw prompt, with the special tokens that the tokenizer itself adds (a BOS) and parses."""
        return self._in_range([int(i) for i in self.tokenizer(text)["input_ids"]])

    def chat_prompt(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """Ids of a conversation through the model's chat template, ready for the assistant's turn.

        Raises ``ConfigError`` without a template, ``RequestError`` if the template refuses the messages.
        """
        if not getattr(self.tokenizer, "chat_template", None):
            raise ConfigError(
                f"{self.name} has no chat template", param="messages", hint="pass the prompt as one string"
            )
        try:
            ids = self.tokenizer.apply_chat_template(
                [dict(m) for m in messages],
                tools=None if tools is None else [dict(t) for t in tools],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
            )
        except Exception as error:  # a template raises whatever its author chose
            raise RequestError(f"the chat template refuses these messages: {error}", param="messages") from error
        return self._in_range([int(i) for i in ids])

    def _in_range(self, ids: list[int]) -> list[int]:
        if ids and max(ids) >= self._vocabulary.size:
            raise RequestError(f"token id {max(ids)} is not one of the model's {self._vocabulary.size}", param="prompt")
        return ids

    def release(self) -> None:
        """Give weights, keys and values back; slot lengths remain. From now on ``score`` raises ``ModelError``."""
        self._path = self.path
        self.model = self._decoder = self._rough = self._store = None
        self._cache.release()

    # ---- facts ----------------------------------------------------------------------------------------------------

    def memory(self) -> dict[str, int]:
        """Bytes held, by ``weights`` (shared ones once) and ``kv``, kept final states among the latter."""
        kv = self._cache.nbytes() + (0 if self._store is None else self._store.nbytes())
        if self._decoder is not None:
            rough = 0 if self._rough is None else self._rough.products_nbytes()
            return {"weights": self._decoder.nbytes() + rough, "kv": kv}
        assert self.model is not None
        tensors = (*self.model.parameters(), *self.model.buffers())
        weights = {t.data_ptr(): t.nbytes for t in tensors}
        return {"weights": sum(weights.values()), "kv": kv}

    @property
    def path(self) -> StepPath:
        """How steps are computed as of now: a graph is captured when it is first needed, and that may fail."""
        static = None if self._decoder is None else self._decoder.static
        return self._path if static is None else replace(self._path, detail=f"{self._path.detail}; {static.note}")

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight by transformers' name, in the order of the digest, whatever layout it is held in."""
        if self._decoder is not None:
            yield from self._decoder.tensors()
        else:
            assert self.model is not None
            yield from sorted(self.model.named_parameters())

    def weights_digest(self) -> str:
        """Digest over every weight's name, dtype, shape and bytes, whatever layout they are held in; computed once."""
        if self._digest is None:
            h = hashlib.blake2b(digest_size=16)
            for name, p in self.tensors():
                h.update(f"{name} {p.dtype} {tuple(p.shape)}".encode())
                h.update(p.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            self._digest = h.hexdigest()
        return self._digest

    def _drift(self, score: Callable[[Sequence[Block]], Tensor], plain: Tensor, ids: list[int]) -> float:
        """Two steps in a slot against the plain forward: a model that keeps other state fails here, not in use."""
        n = min(len(ids), self.capacity)
        cut = n // 2
        parts = [part for part in (ids[:cut], ids[cut:n]) if part]
        try:
            ours = torch.cat([score([Block(0, part, want=len(part))]) for part in parts])
        except Exception as error:  # whatever a forward raises that was never given such masks before
            raise ModelError(f"{self.name} cannot run in KV slots: {error}", param="model") from error
        self.set_length(0, 0)
        return float((ours - plain[:n]).abs().max())

    def _tolerable(self, drift: float, plain: Tensor) -> bool:
        # Eight bits round so coarsely that the model's own forward is further from float32 than that.
        tolerance = {torch.float16: 5e-2, torch.bfloat16: 1e-1}.get(self.dtype, 1e-3)
        return drift <= tolerance * max(1.0, float(plain.abs().max()))  # a NaN is not


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Every end-of-sequence id that generation config, config or tokenizer declares, ascending."""
    ids: set[int] = set()
    for source in (getattr(model, "generation_config", None), model.config, tokenizer):
        declared = getattr(source, "eos_token_id", None)
        if declared is not None:
            ids.update([declared] if isinstance(declared, int) else map(int, declared))
    return tuple(sorted(ids))


def _sizes(slots: int, capacity: int | None, limit: int | None) -> tuple[int, int]:
    if slots < 1:
        raise ConfigError(f"slots must be at least 1, got {slots}", param="slots")
    if capacity is None:
        capacity = min(limit or MAX_DEFAULT_CAPACITY, MAX_DEFAULT_CAPACITY)
    if capacity < 1 or (limit is not None and capacity > limit):
        raise ConfigError(
            f"capacity must lie in [1, {limit or 'any'}], got {capacity}",
            param="capacity",
            hint=f"the model's context has {limit} tokens" if limit else None,
        )
    return slots, capacity
