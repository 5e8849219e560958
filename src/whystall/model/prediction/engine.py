"""Differences of autograd between fake and real tensors: it does not write in place into those that it alone holds."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

_HOLDERS = 2  # of a storage that only the engine holds: its tensor, and the wrapper that this call was given
_PASSING = ("torch/_compile.py", "torch/_dynamo/eval_frame.py", "torch/utils/_stats.py", "prediction/tracker.py")
_IN_PLACE: Mapping[str, Any] = {
    "aten::add": torch.ops.aten.add_.Tensor,
    "aten::scatter_add": torch.ops.aten.scatter_add_.default,
    "aten::index_add": torch.ops.aten.index_add_.default,
}
_OUTERMOST = "_run_backward"


def in_place_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The in-place operator that autograd runs instead on real tensors; ``None`` where it runs this one.

    The engine adds gradients of one tensor into the first of them (input_buffer.cpp, ``can_accumulate_inplace``), and
    formulas scatter into zeros that they just made (FunctionsManual.cpp): both not with fake tensors.
    """
    instead = _IN_PLACE.get(name)
    if instead is None or kwargs or not _runs_backward() or not isinstance(args[0], Tensor):
        return None
    first = args[0]
    if name == "aten::add" and not _are_alike(first, args[1:]):
        return None
    if first.layout is not torch.strided or not _is_dense(first):
        return None
    holders = torch._C._storage_Use_Count(first.untyped_storage()._cdata)  # noqa: SLF001 - no public way to ask
    return instead if holders <= _HOLDERS and _comes_from_the_engine() else None


def _runs_backward() -> bool:
    return torch._C._current_graph_task_id() >= 0 and not torch.is_grad_enabled()  # noqa: SLF001 - as in attribution


def _are_alike(first: Tensor, others: Sequence[Any]) -> bool:
    other = others[0] if len(others) == 1 else None
    return isinstance(other, Tensor) and first.shape == other.shape and first.dtype == other.dtype


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements of a tensor fill its memory without overlap."""
    expected = 1
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if step != expected:
                return False
            expected *= size
    return True


def _comes_from_the_engine() -> bool:
    """Whether no Python code but the dispatcher's stands between the engine and this call."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - the stack of this very call
    while frame is not None and frame.f_code.co_name != _OUTERMOST:
        if not frame.f_code.co_filename.endswith(_PASSING):
            return False
        frame = frame.f_back
    return frame is not None
