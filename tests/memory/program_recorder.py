"""A program of torch on the CPU, recorded as CUDA's allocator records one, with the truth about each storage.

Every storage that an operator makes is an allocation; it is freed when nothing holds it any more. Autograd runs on
the caller's thread here, on one of its own on CUDA: there its frames end below the engine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from whystall.memory.results import Category

Line = tuple[CodeType, int]


class Recorder(TorchDispatchMode):
    """Records what runs under it."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, int, int, tuple[Line, ...]]] = []
        self.truth: dict[int, Category] = {}
        self._live: dict[int, tuple[Any, int, int]] = {}
        self._address = 1 << 40

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._let_go()
        known = set(map(_storage, _tensors((args, kwargs))))
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            key, size = _storage(tensor), tensor.untyped_storage().nbytes()
            if size and key not in known and key not in self._live:
                self._address += -(-size // 512) * 512
                self._live[key] = (StorageWeakRef(tensor.untyped_storage()), self._address, size)
                self.events.append(("alloc", self._address, size, _lines()))
        self._let_go()
        return out

    def mark(self, category: Category, tensors: Iterable[torch.Tensor]) -> None:
        """Says what tensors are for."""
        for tensor in tensors:
            if _storage(tensor) in self._live:
                self.truth.setdefault(self._live[_storage(tensor)][1], category)

    def saves(self) -> AbstractContextManager[Any]:
        """What autograd saves in it are activations, where it is nothing else."""

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            self.mark(Category.ACTIVATIONS, [tensor])
            return tensor

        hooks: AbstractContextManager[Any] = torch.autograd.graph.saved_tensors_hooks(pack, _itself)
        return hooks

    def snapshot(self, asked: int | None = None) -> dict[str, Any]:
        """The record so far; ``asked`` were asked for in the end and not found."""
        rows = [self._event(number, *event) for number, event in enumerate(self.events)]
        if asked is not None:
            last = self._event(len(rows), "oom", 0, asked, _lines())
            rows.append(last | {"device_free": asked // 2})
        blocks = [
            {"address": at, "size": -(-size // 512) * 512, "requested_size": size, "state": "active_allocated"}
            for _, at, size in self._live.values()
        ]
        segments = [
            {"device": 0, "address": one["address"], "total_size": one["size"], "stream": 0, "segment_type": "large",
             "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": [one | {"frames": []}]}
            for one in blocks
        ]  # fmt: skip
        return {"segments": segments, "device_traces": [rows], "allocator_settings": {}}

    def _let_go(self) -> None:
        for key, (held, at, size) in list(self._live.items()):
            if held.expired():
                del self._live[key]
                lines = _lines()
                self.events += [("free_requested", at, size, lines), ("free_completed", at, size, lines)]

    def _event(self, number: int, action: str, at: int, size: int, lines: tuple[Line, ...]) -> dict[str, Any]:
        frames = [{"name": code.co_name, "filename": code.co_filename, "line": line} for code, line in lines]
        time = {"stream": 0, "time_us": 1_760_000_000_000_000 + 3 * number}
        return {"action": action, "addr": at, "size": size, "frames": frames} | time


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _tensors(values: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


def _lines() -> tuple[Line, ...]:
    """The frames of the caller, of what autograd's engine runs those within it alone."""
    out: list[Line] = []
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "_engine_run_backward":
            break
        if frame.f_code.co_filename != __file__ and not frame.f_code.co_filename.endswith("_python_dispatch.py"):
            out.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment] # None ends the loop
    return tuple(out)
