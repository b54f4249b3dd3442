"""The layer of ``EagleDrafter`` as something to train, unrolled on its own states (training-time test, EAGLE-3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.errors import ModelError
from constrained_spec.training.batches import Batch
from constrained_spec.training.fit import linear_fit, rms

STEPS = 4
_FIT_BATCHES = 24
_SOFT = 0.01  # of the layer's own contribution at the start: the target's residual is larger than the fitted one


class EagleTrainee(nn.Module):
    """Starts as the best linear guess of the next state, and the target's last decoder layer behind it, subdued.

    In step k an entry reads the state that step k - 1 predicted for it, and attends to the true entries up to k places
    back and, nearer than these, to the ones that the same chain made: what it will see when it drafts.
    """

    kind = "eagle"

    def __init__(self, model: TransformersModel, steps: int = STEPS) -> None:
        super().__init__()
        config = model.config
        size = model.feature_size
        self._model = (model,)  # in a tuple: no parameters of this module
        self.steps = steps
        self._heads = int(config.num_attention_heads)
        self._kv_heads = int(config.num_key_value_heads)
        rope = getattr(config, "rope_parameters", None) or {}
        self._theta = float(rope.get("rope_theta", 10_000.0))
        self._epsilon = float(config.rms_norm_eps)
        prefix = f"model.layers.{config.num_hidden_layers - 1}."
        names = {
            "norm_attention": "input_layernorm", "norm_mlp": "post_attention_layernorm", "q": "self_attn.q_proj",
            "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj", "gate": "mlp.gate_proj",
            "up": "mlp.up_proj", "down": "mlp.down_proj",
        }  # fmt: skip
        wanted = {f"{prefix}{theirs}.weight": ours for ours, theirs in names.items()}
        wanted["model.norm.weight"] = "norm_out"
        found = {wanted[n]: t.float().cpu().clone() for n, t in model.tensors() if n in wanted}
        if lacking := sorted(set(wanted.values()) - found.keys()):
            raise ModelError(f"{model.name} has no decoder layer of the Llama family: no {lacking[0]}", param="target")
        for name in ("o", "down"):
            found[name] *= _SOFT
        found |= {
            "fuse": torch.zeros(size, 2 * size),
            "norm_state": torch.ones(size),
            "norm_token": torch.ones(size),
        }
        for name, tensor in found.items():
            self.register_parameter(name, nn.Parameter(tensor))
        self._dim = found["q"].shape[0] // self._heads

    @property
    def shape(self) -> dict[str, float]:
        return {
            "hidden": self._heads * self._dim, "heads": self._heads, "kv_heads": self._kv_heads,
            "head_dim": self._dim, "epsilon": self._epsilon, "rope_theta": self._theta,
        }  # fmt: skip

    def tensors(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.named_parameters()}

    @torch.no_grad()
    def fit(self, batches: Iterator[Batch]) -> None:
        """Set the linear part in closed form."""
        scale = self.get_parameter("norm_out")

        def rows() -> Iterator[tuple[Tensor, Tensor]]:
            for _, batch in zip(range(_FIT_BATCHES), batches, strict=False):
                e = self._embed(batch.tokens)
                known = batch.places - 1
                state = self._norm(batch.states[batch.rows, known], "norm_state")
                given = torch.cat((state, e[batch.rows, batch.places]), -1)
                # In front of the last norm's weight: there the parts of a state are of one size.
                yield given, batch.states[batch.rows, batch.places] / scale

        self.get_parameter("fuse").copy_(linear_fit(rows()))

    def predictions(self, batch: Batch) -> Sequence[tuple[Tensor, Tensor]]:
        """Per step k: the indices into the batch's places whose depth is at least k, and the states predicted there."""
        tokens = batch.tokens[:, 1:]
        e = self._embed(tokens)
        state: Tensor = batch.states[:, :-1]
        n = tokens.shape[1]
        rotation = self._rotation(n)
        far = torch.ones(n, n, dtype=torch.bool).tril()
        keys: list[Tensor] = []
        values: list[Tensor] = []
        out = []
        for k in range(self.steps):
            if k:
                # Entry i reads what entry i - 1 predicted; the first k entries have no chain of that length.
                state = nn.functional.pad(state[:, :-1], (0, 0, 1, 0))
            x = nn.functional.linear(torch.cat((self._norm(state, "norm_state"), e), -1), self.get_parameter("fuse"))
            x = x + self._attend(self._norm(x, "norm_attention"), rotation, far.tril(-k), keys, values)
            y = self._norm(x, "norm_mlp")
            opened = nn.functional.silu(nn.functional.linear(y, self.get_parameter("gate"))) * nn.functional.linear(
                y, self.get_parameter("up")
            )
            state = self._norm(x + nn.functional.linear(opened, self.get_parameter("down")), "norm_out")
            at = (batch.depth >= k).nonzero().squeeze(1)
            # Entry j - 1 predicts the state after token j.
            out.append((at, state[batch.rows[at], batch.places[at] - 1]))
        return out

    def _attend(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], far: Tensor, keys: list[Tensor], values: list[Tensor]
    ) -> Tensor:
        """x [B, n, hidden]; appends this step's keys and values, [B, kv heads, 1, n, dim] each."""
        b, n, _ = x.shape
        groups = self._heads // self._kv_heads
        q = (
            nn.functional.linear(x, self.get_parameter("q"))
            .view(b, n, self._kv_heads, groups, self._dim)
            .permute(0, 2, 3, 1, 4)
        )
        k = (
            nn.functional.linear(x, self.get_parameter("k"))
            .view(b, n, self._kv_heads, 1, self._dim)
            .permute(0, 2, 3, 1, 4)
        )
        v = (
            nn.functional.linear(x, self.get_parameter("v"))
            .view(b, n, self._kv_heads, 1, self._dim)
            .permute(0, 2, 3, 1, 4)
        )
        q, k = _turn(q, rotation), _turn(k, rotation)
        keys.append(k)
        values.append(v)
        steps = len(keys)
        scores = (q @ keys[0].transpose(-1, -2)).masked_fill(~far, -1e9)  # [B, kv, groups, n, n]
        # The entry that step m of the same chain made, for the chain that is at entry i in the last step.
        near = [_back(keys[m], steps - 1 - m) for m in range(1, steps)]
        scores = torch.cat([scores, *((q * other).sum(-1, keepdim=True) for other in near)], -1)
        weights = (scores / self._dim**0.5).softmax(-1)
        got = weights[..., :n] @ values[0]
        for m in range(1, steps):
            got = got + weights[..., n + m - 1 : n + m] * _back(values[m], steps - 1 - m)
        return nn.functional.linear(got.permute(0, 3, 1, 2, 4).reshape(b, n, -1), self.get_parameter("o"))

    def _rotation(self, n: int) -> tuple[Tensor, Tensor]:
        inverse = self._theta ** (-torch.arange(0, self._dim, 2).double() / self._dim)
        angles = torch.arange(n).double()[:, None] * inverse
        return angles.cos().float().repeat(1, 2), angles.sin().float().repeat(1, 2)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms(x, self.get_parameter(name), self._epsilon)

    def _embed(self, tokens: Tensor) -> Tensor:  # [B, n] -> [B, n, hidden]
        rows = self._model[0].embed(tokens.flatten()).view(*tokens.shape, -1)
        return self._norm(rows, "norm_token")


def _back(x: Tensor, places: int) -> Tensor:
    """[..., n, dim] moved ``places`` to the right: entry i shows what stood at i - places."""
    return x if not places else nn.functional.pad(x[..., :-places, :], (0, 0, places, 0))


def _turn(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position encoding of x [..., n, dim], halves of a head paired as transformers pairs them."""
    cos, sin = rotation
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin
