"""Operations and bytes of a simulated step, operator by operator, and the least time that a device needs for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from whystall.cost import Cost
from whystall.hardware import Accelerator
from whystall.hardware.accelerators import Precision
from whystall.model import specs
from whystall.model.entries import Entry, KnownOperator, described
from whystall.model.plans import Action
from whystall.model.prediction import checkpointing
from whystall.model.prediction.outcome import Work
from whystall.model.prediction.tracker import Tracker

_PRECISIONS: Final[Mapping[str, Precision]] = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class CostListener:
    """Adds up the work of every operator that a tracker hears of, by phase.

    An operator takes at least the time of its arithmetic at the device's peak, or of its bytes at the memory's
    bandwidth, whichever is longer (Williams, Waterman and Patterson, CACM 52(4), 2009); launches overlap with it.
    """

    def __init__(
        self,
        tracker: Tracker,
        accelerator: Accelerator | None,
        others: Sequence[Accelerator | None] = (),
        share: Callable[[Sequence[Any], Any], int] = lambda *_: 1,
    ) -> None:
        self._tracker = tracker
        self._share = share
        self._accelerators = (accelerator, *others)
        self._known: dict[int, KnownOperator] = {}
        self._flops: dict[str, int] = {}
        self._bytes: dict[str, int] = {}
        self._ns: dict[str, list[float]] = {}
        self._uncovered: dict[str, None] = {}
        self.latest_flops = 0  # of the operator that was heard last

    @property
    def work(self) -> dict[str, Work]:
        """The work by phase."""
        return {phase: Work(flops, self._bytes[phase], *self._rounded(phase)) for phase, flops in self._flops.items()}

    def _rounded(self, phase: str) -> tuple[int, tuple[int, ...]]:
        first, *others = (0 if math.isinf(ns) else round(ns) for ns in self._ns[phase])
        return first, tuple(others)

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Operators on floating-point data that have no formula."""
        return tuple(self._uncovered)

    def reset(self) -> None:
        """Forgets the sums."""
        self._flops, self._bytes, self._ns = {}, {}, {}

    def __call__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Counts one call."""
        self.latest_flops = 0
        known = self._known.get(id(func))
        if known is None:
            known = self._known[id(func)] = KnownOperator(func)
        if known.action is not Action.COUNT:
            return
        phase = self._tracker.place.phase
        if phase == "backward" and checkpointing.is_over():
            return
        entry = self._entry(known, args, kwargs, result)
        cost = entry.cost
        if cost is None:
            if entry.has_floats:
                self._uncovered[entry.name] = None
            return
        share = self._share(args, result)
        self.latest_flops = cost.executed_flops // share
        moved = (cost.bytes_read or 0) + (cost.bytes_written or 0)
        self._flops[phase] = self._flops.get(phase, 0) + self.latest_flops
        self._bytes[phase] = self._bytes.get(phase, 0) + moved // share
        precision = _precision(args)
        before = self._ns.get(phase, [0.0] * len(self._accelerators))
        self._ns[phase] = [
            ns + _least_ns(cost, precision, device) / share
            for ns, device in zip(before, self._accelerators, strict=True)
        ]

    @staticmethod
    def _entry(known: KnownOperator, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Entry:
        try:
            key = specs.signature(args, kwargs)
            entry = known.entries.get(key)
        except (TypeError, RuntimeError):  # without a hash, or without strides
            return described(known.plan, args, kwargs, result)
        if entry is None:
            entry = known.entries[key] = described(known.plan, args, kwargs, result)
        return entry


def _least_ns(cost: Cost, precision: Precision, device: Accelerator | None) -> float:
    if device is None:
        return 0.0
    peak = device.peak_flops_per_s(precision)
    if cost.executed_flops and not peak:
        return math.inf  # a peak that is not known makes no time that is
    arithmetic = cost.executed_flops / peak if peak else 0.0
    moved = (cost.bytes_read or 0) + (cost.bytes_written or 0)
    memory = moved / device.memory_bytes_per_s if device.memory_bytes_per_s else 0.0
    return max(arithmetic, memory) * 1e9


def _precision(args: Sequence[Any]) -> Precision:
    """The precision of the first floating-point tensor."""
    for one in args:
        dtype = getattr(one, "dtype", None)
        if dtype is not None and dtype.is_floating_point:
            return _PRECISIONS.get(specs.dtype_name(dtype), "fp32")
    return "fp32"
