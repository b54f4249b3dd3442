"""The caller's own processors, each on the rows that asked for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from constrained_spec.errors import ConstrainedSpecError, RequestError
from constrained_spec.processors.base import Position, Processor
from constrained_spec.processors.rows import Rows


def run_custom(logits: Tensor, positions: Sequence[Position], custom: Sequence[Sequence[Processor]]) -> None:
    """Apply ``custom[i]`` in its order to row i; rows with the same processors share one call.

    ``logits`` [N, V] float32, edited in place. A processor sees no row but its own, and what counts is what it returns.
    Raises ``RequestError`` naming the processor that raised, or returned something other than [rows, V] floats.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, processors in enumerate(custom):
        if processors:
            groups.setdefault(tuple(map(id, processors)), []).append(i)
    for numbers in groups.values():
        rows = Rows(numbers, logits.device)
        members = [positions[i] for i in numbers]
        for processor in custom[numbers[0]]:
            given = rows.take(logits)
            result = _call(processor, given, members)
            if result is given:
                rows.put(logits, given)
            else:
                # Never keep the processor's tensor: later steps edit in place and it may be the processor's own.
                rows.put(logits, result.to(logits.device, logits.dtype, copy=True))


def name_of(processor: object) -> str:
    return str(getattr(processor, "__name__", None) or type(processor).__name__)


def _call(processor: Processor, logits: Tensor, positions: Sequence[Position]) -> Tensor:
    try:
        result: object = processor(logits, positions)
    except ConstrainedSpecError:
        raise
    except Exception as error:
        raise RequestError(
            f"processor {name_of(processor)} raised {type(error).__name__}: {error}", param="processors"
        ) from error
    if isinstance(result, torch.Tensor) and result.shape == logits.shape and result.is_floating_point():
        return result
    what = f"{list(result.shape)} {result.dtype}" if isinstance(result, torch.Tensor) else type(result).__name__
    raise RequestError(
        f"processor {name_of(processor)} returned {what}, expected a float tensor {list(logits.shape)}",
        param="processors",
        hint="return the edited logits, one row per position",
    )
