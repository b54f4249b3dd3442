"""Decoder-only transformers models behind the ``LanguageModel`` protocol."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from constrained_spec.backends.base import Block
from constrained_spec.backends.slots import Plan, SlotCache, depths, visibility
from constrained_spec.backends.vocabulary import build_vocabulary
from constrained_spec.errors import ConfigError, ModelError
from constrained_spec.types import Vocabulary

MAX_DEFAULT_CAPACITY = 8192
_ATTENTION = {"full_attention", "sliding_attention"}


class TransformersModel:
    """A causal language model of transformers with KV in slots.

    Every layer keeps the whole context, sliding ones too: the window is in the mask, so that a rollback across it is
    arithmetic like any other. Raises ``ModelError`` for cache kinds that cannot drop a tail (recurrent, hybrid,
    encoder-decoder), and for a model whose slot forward does not reproduce its own plain forward.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        slots: int = 1,
        capacity: int | None = None,
        name: str = "model",
    ) -> None:
        if slots < 1:
            raise ConfigError(f"slots must be at least 1, got {slots}", param="slots")
        config = model.config.get_text_config()
        _refuse_other_caches(model, config)
        limit = int(getattr(config, "max_position_embeddings", None) or MAX_DEFAULT_CAPACITY)
        if capacity is not None and not 1 <= capacity <= limit:
            raise ConfigError(f"capacity must lie in [1, {limit}], got {capacity}", param="capacity")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self._config = config
        self._capacity = capacity or min(limit, MAX_DEFAULT_CAPACITY)
        self._cache = SlotCache(config.num_hidden_layers, slots, self._capacity)
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        # The width of the logits: the output matrix may be padded beyond the tokenizer.
        head = model.get_output_embeddings()
        width = int(head.weight.shape[0]) if head is not None else int(config.vocab_size)
        self._vocabulary = build_vocabulary(tokenizer, width, _eos_ids(model, config, tokenizer))
        self._digest: str | None = None
        self._check_against_plain_forward()

    @property
    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def slots(self) -> int:
        return len(self._cache.lengths)

    @property
    def capacity(self) -> int:
        return self._capacity

    # ---- forward --------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def score(self, blocks: Sequence[Block]) -> Tensor:
        """See ``LanguageModel.score``. Rows of a batch are padded to the longest block."""
        plan = self._cache.plan(blocks, self.device)
        self._cache.begin(plan)
        ids, positions = self._inputs(plan, blocks)
        # The forward computes logits at the union of the wanted places; each row then takes its own.
        wanted = [range(len(b.tokens) - b.want, len(b.tokens)) for b in blocks]
        places = sorted(set().union(*wanted))
        output = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=self._masks(plan, blocks),
            use_cache=True,
            logits_to_keep=torch.tensor(places, device=self.device),
            **{self._cache_name: self._cache},
        )
        self._cache.end(plan)
        logits: Tensor = output.logits
        if len(blocks) == 1:
            return logits[0].float()
        at = {place: i for i, place in enumerate(places)}
        row = torch.tensor([r for r, w in enumerate(wanted) for _ in w], device=self.device)
        column = torch.tensor([at[t] for w in wanted for t in w], device=self.device)
        return logits[row, column].float()

    def _inputs(self, plan: Plan, blocks: Sequence[Block]) -> tuple[Tensor, Tensor]:
        ids, positions = [], []
        for block, start, count in zip(blocks, plan.starts, plan.counts, strict=True):
            pad = plan.width - count
            ids.append([*block.tokens, *([0] * pad)])
            positions.append([start + d for d in depths(block)] + [0] * pad)
        return torch.tensor(ids, device=self.device), torch.tensor(positions, device=self.device)

    def _masks(self, plan: Plan, blocks: Sequence[Block]) -> Tensor | dict[str, Tensor]:
        window = getattr(self._config, "sliding_window", None)
        kinds = getattr(self._config, "layer_types", None)
        if kinds is None:
            return self._additive(visibility(plan, blocks, window, self.device))
        masks = {}
        for kind in set(kinds):
            seen = visibility(plan, blocks, window if kind == "sliding_attention" else None, self.device)
            masks[kind] = self._additive(seen)
        return masks

    def _additive(self, seen: Tensor) -> Tensor:  # bool [B, T, K] -> [B, 1, T, K]
        zero = torch.zeros((), dtype=self.model.dtype, device=self.device)
        return torch.where(seen, zero, torch.finfo(self.model.dtype).min).unsqueeze(1)

    # ---- slots ----------------------------------------------------------------------------------------------------

    def length(self, slot: int) -> int:
        return self._cache.lengths[slot]

    def set_length(self, slot: int, length: int) -> None:
        assert 0 <= length <= self._cache.lengths[slot]
        self._cache.lengths[slot] = length

    def compact(self, slot: int, base: int, path: Sequence[int]) -> None:
        self._cache.compact(slot, base, path)

    def fingerprint(self, slot: int) -> bytes:
        return self._cache.fingerprint(slot)

    # ---- text -----------------------------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        """Ids of raw text, with the special tokens that the tokenizer itself adds."""
        return [int(i) for i in self.tokenizer(text)["input_ids"]]

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids of a conversation through the model's chat template, ready for the assistant's turn."""
        if not getattr(self.tokenizer, "chat_template", None):
            raise ConfigError(
                f"{self.name} has no chat template", param="messages", hint="pass the prompt as one string"
            )
        try:
            encoded = self.tokenizer.apply_chat_template(
                [dict(m) for m in messages], add_generation_prompt=True, tokenize=True, return_dict=True
            )
        except Exception as error:  # jinja templates raise whatever their authors chose
            raise ConfigError(f"the chat template refuses these messages: {error}", param="messages") from error
        return [int(i) for i in encoded["input_ids"]]

    # ---- facts ----------------------------------------------------------------------------------------------------

    def memory(self) -> dict[str, int]:
        """Bytes of weights (shared ones once) and of the KV buffers."""
        weights = {p.data_ptr(): p.numel() * p.element_size() for p in self.model.parameters()}
        return {"weights": sum(weights.values()), "kv": self._cache.nbytes()}

    def weights_digest(self) -> str:
        """Digest over every named parameter, computed once."""
        if self._digest is None:
            h = hashlib.blake2b(digest_size=16)
            for name, p in sorted(self.model.named_parameters()):
                h.update(name.encode())
                h.update(p.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes())
            self._digest = h.hexdigest()
        return self._digest

    @torch.inference_mode()
    def _check_against_plain_forward(self) -> None:
        """Two ragged steps against the model's own forward: an architecture that keeps other state fails here."""
        length = min(7, self._capacity)
        ids = [(i * 7919 + 13) % min(self._vocabulary.size, 1000) for i in range(length)]
        plain = self.model(input_ids=torch.tensor([ids], device=self.device), use_cache=False).logits[0].float()
        split = length // 2
        parts = [Block(0, ids[:split], want=split)] if split else []
        parts.append(Block(0, ids[split:], want=length - split))
        ours = torch.cat([self.score([part]) for part in parts])
        self.set_length(0, 0)
        drift = float((ours - plain).abs().max())
        scale = max(1.0, float(plain.abs().max()))
        tolerance = 1e-3 if self.model.dtype == torch.float32 else 5e-2
        if not drift <= tolerance * scale:
            raise ModelError(
                f"{self.name} ({self._config.model_type}) cannot run in KV slots: its logits differ by {drift:.3g} "
                "from its own forward",
                hint="supported are decoder-only models whose whole state is keys and values",
            )


def _refuse_other_caches(model: PreTrainedModel, config: Any) -> None:
    kinds = set(getattr(config, "layer_types", None) or ())
    reason = None
    if getattr(model.config, "is_encoder_decoder", False):
        reason = "it is an encoder-decoder"
    elif getattr(model, "_is_stateful", False):
        reason = "it keeps recurrent state"
    elif kinds - _ATTENTION:
        reason = f"it has layers of kind {', '.join(sorted(kinds - _ATTENTION))}"
    elif "logits_to_keep" not in inspect.signature(model.forward).parameters:
        reason = "it is not a causal language model"
    if reason:
        raise ModelError(
            f"{model.config.model_type} cannot drop the tail of its cache: {reason}",
            hint="supported are decoder-only models whose whole state is keys and values",
        )


def _eos_ids(model: PreTrainedModel, config: Any, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Every end-of-sequence id that generation config, config or tokenizer declares."""
    ids: set[int] = set()
    generation = getattr(model, "generation_config", None)
    for source in (generation, config, tokenizer):
        declared = getattr(source, "eos_token_id", None)
        if isinstance(declared, int):
            ids.add(declared)
        elif declared is not None:
            ids.update(int(i) for i in declared)
    return ids
