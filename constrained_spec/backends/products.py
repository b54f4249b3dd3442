"""Products of a weight matrix with the few rows of a verification block.

A decoding step is bound by reading the weights, so the cost of a product should hardly grow with the rows. The plain
product of a BLAS does not behave like that between 1 and 32 rows; oneDNN's own layout does, and so do integers.
"""

from __future__ import annotations

import functools
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from constrained_spec.errors import ConfigError

WIDE = 256  # width of a state from which on int8 pays: below, a step waits for other things than the weights
_LEVELS = 127  # int8, symmetric
_MIDDLE = 128  # of FBGEMM's unsigned inputs
_ROWS = 16  # block size that oneDNN is told to expect; any other works


class Product(Protocol):
    """``W x + b`` for rows x [n, in], W [out, in]. Result [n, out], in the dtype of x."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def onto(self, x: Tensor, residual: Tensor) -> Tensor:
        """``residual + W x + b``."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """What defines the product, by name; output features are dimension 0. Made when asked."""
        ...

    def nbytes(self) -> int: ...


class Dense:
    """torch's own product on the weight as it is."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)

    def onto(self, x: Tensor, residual: Tensor) -> Tensor:
        return residual + self(x)

    def tensors(self) -> dict[str, Tensor]:
        return {"weight": self.weight} | ({} if self.bias is None else {"bias": self.bias})

    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors().values())


class Packed:
    """The weight in oneDNN's blocked layout: float32 on a CPU, activation and sum fused into the product.

    The operators are those that torch's own compiler emits for a frozen linear layer.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)
        self.bias = bias
        self._nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        return self._apply(x, "none")

    def silu(self, x: Tensor) -> Tensor:
        """``silu(W x + b)``."""
        return self._apply(x, "swish")

    def onto(self, x: Tensor, residual: Tensor) -> Tensor:
        return self._combine(x, residual, "add")

    def times(self, x: Tensor, factor: Tensor) -> Tensor:
        """``factor * (W x + b)``."""
        return self._combine(x, factor, "mul")

    def tensors(self) -> dict[str, Tensor]:
        return {"weight": self._weight.to_dense()} | ({} if self.bias is None else {"bias": self.bias})

    def nbytes(self) -> int:
        return self._nbytes

    def _apply(self, x: Tensor, activation: str) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self.bias, activation, [], "")
        return out

    def _combine(self, x: Tensor, other: Tensor, how: str) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, self._weight, self.bias, how)
        return out


class Int8:
    """Weights int8 with a scale per output feature, inputs int8 with a scale per row, sums exact in int32.

    A row's result depends on nothing but the row: whatever else is in the block, it is the same to the last bit. The
    kernel is FBGEMM's; where that does not sum exactly (no VNNI), torch's plain integer product.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        levels, scale = _levels(weight)
        self.bias = bias
        self._scale = scale
        self._packed, self._columns = None, None
        if _fbgemm_is_exact():
            self._packed = _prepack(levels, scale)
        else:
            self._columns = levels.t()
        self._nbytes = levels.nbytes + scale.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        scale = x.abs().amax(-1, keepdim=True).mul_(1 / _LEVELS).clamp_(min=1e-12)
        if self._packed is not None:
            # Rounds x / scale to 1/1 steps around 128; the sums leave it multiplied by the weights' scales.
            out: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
                x / scale, 1.0, _MIDDLE, self._packed
            )
            out *= scale
        else:
            assert self._columns is not None
            out = torch._int_mm((x / scale).round_().to(torch.int8), self._columns) * scale
            out *= self._scale
        return out if self.bias is None else out.add_(self.bias)

    def onto(self, x: Tensor, residual: Tensor) -> Tensor:
        return self(x).add_(residual)

    def tensors(self) -> dict[str, Tensor]:
        if self._packed is not None:
            levels = torch.ops.quantized.linear_unpack(self._packed)[0].int_repr()
        else:
            assert self._columns is not None
            levels = self._columns.t()
        found = {"int8": levels, "scale": self._scale}
        return found | ({} if self.bias is None else {"bias": self.bias})

    def nbytes(self) -> int:
        return self._nbytes


class Rounded:
    """Weights int8 with a scale per output feature, inputs bfloat16, for drafts: near the float product, and quick.

    Rounded inputs cost agreement that rounded weights do not: of SmolLM2's own choices at temperature 0.8 the `Int8`
    model repeats 0.94, this one 0.985, in the same time. The kernel is torch's own; it reads whole vectors of
    ``STRIDE`` inputs and checks nothing.
    """

    STRIDE = 16

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        assert weight.shape[1] % self.STRIDE == 0, "the kernel would read behind the row"
        self._levels, scale = _levels(weight)
        self._scale = scale.to(torch.bfloat16)
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.aten._weight_int8pack_mm(x.to(torch.bfloat16), self._levels, self._scale)
        out = product.to(x.dtype)
        return out if self.bias is None else out.add_(self.bias)

    def onto(self, x: Tensor, residual: Tensor) -> Tensor:
        return self(x).add_(residual)

    def tensors(self) -> dict[str, Tensor]:
        found = {"int8": self._levels, "scale": self._scale}
        return found | ({} if self.bias is None else {"bias": self.bias})

    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors().values())


def _levels(weight: Tensor) -> tuple[Tensor, Tensor]:
    """int8 [out, in] and its scale [out]."""
    rows = weight.float()
    scale = (rows.abs().amax(1) / _LEVELS).clamp_(min=1e-12)
    return (rows / scale[:, None]).round_().to(torch.int8), scale


def _prepack(levels: Tensor, scale: Tensor) -> Any:
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        zero = torch.zeros(len(scale), dtype=torch.long)
        weight = torch._make_per_channel_quantized_tensor(levels, scale.double(), zero, 0)
        return torch.ops.quantized.linear_prepack(weight, None)
    finally:
        torch.backends.quantized.engine = before


@functools.cache
def _fbgemm_is_exact() -> bool:
    """Older kernels add pairs of products in 16 bits, which the largest values overflow: tried with just those."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return False
    levels = torch.full((32, 256), _LEVELS, dtype=torch.int8)
    levels[::2] *= -1
    x = levels[:2].float()
    with warnings.catch_warnings():
        # torch announces that these operators will move to another package.
        warnings.simplefilter("ignore")
        packed = _prepack(levels, torch.ones(32))
        got = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(x, 1.0, _MIDDLE, packed)
    return torch.equal(got, x @ levels.float().t())


Maker = Callable[[Tensor, Tensor | None], Product]


def fastest(weight: Tensor, rows: Sequence[int] = (1, 4, 16)) -> tuple[Maker, str]:
    """The float product that is quickest on ``weight`` over blocks of ``rows``, and the measurement in words.

    One layout serves all block sizes: two would hold the weights twice. [out, in] weight of the model's dtype.
    """
    makers: dict[str, Maker] = {"torch": Dense}
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        makers["oneDNN"] = Packed
    if len(makers) == 1:
        return Dense, f"torch: the only product for {weight.dtype} on {weight.device.type}"
    # Several copies in turn: a layer's weights are never in the cache when its turn comes.
    copies = max(2, min(16, (64 << 20) // max(1, weight.nbytes)))
    blocks = [torch.randn(n, weight.shape[1]) for n in rows]
    seconds: dict[str, float] = {}
    for name, make in makers.items():
        products = [make(weight.clone(), None) for _ in range(copies)]
        seconds[name] = sum(_seconds(products, x) for x in blocks) / copies
    best = min(seconds, key=lambda name: seconds[name])
    told = ", ".join(f"{name} {s * 1e6:.0f} us" for name, s in seconds.items())
    return makers[best], f"{best} (blocks of {', '.join(map(str, rows))} rows of {tuple(weight.shape)} in all: {told})"


def _seconds(products: Sequence[Product], x: Tensor) -> float:
    times = []
    for _ in range(4):
        start = time.perf_counter()
        for product in products:
            product(x)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def has_quick_kernel(device: torch.device) -> bool:
    """Whether `Rounded` has one here. Elsewhere it goes number by number."""
    return device.type == "cpu" and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def rounder(device: torch.device) -> Maker:
    """The product of a quantised copy that only drafts. By the kind of machine alone: a seed gives the same drafts.

    Raises ``ConfigError`` where there is no kernel.
    """
    if device.type != "cpu":
        raise ConfigError("drafter 'quantized' runs on a CPU only", param="drafter", hint="eagle or auto there")
    if not has_quick_kernel(device):
        return Int8

    def make(weight: Tensor, bias: Tensor | None = None) -> Product:
        return Int8(weight, bias) if weight.shape[1] % Rounded.STRIDE else Rounded(weight, bias)

    return make


def quantizer(name: str, device: torch.device) -> Maker:
    """Raises ``ConfigError`` for an unknown kind, or where there is no kernel for it."""
    if name != "int8":
        raise ConfigError(f"unknown quantization {name!r}", param="quantize", hint="int8")
    if device.type != "cpu":
        raise ConfigError("int8 weights run on a CPU only", param="quantize", hint="use dtype='bfloat16' there")
    return Int8
