"""From counted calls to results: costs are multiplied out, summed, and added up the tree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from whystall.cost import reason
from whystall.model.frames import Frame, Tree
from whystall.model.results import Amount, ModelProfile, ModuleProfile, OperatorProfile, Phase, Uncovered

PHASE_OF: dict[str, Phase] = {
    "forward": "forward",
    "backward": "backward",
    "input_gradient": "backward",
    "weight_gradient": "backward",
    "recompute": "recompute",
    "optimizer": "optimizer",
}
FIELDS = ("model_flops", "model_flops_causal", "executed_flops", "elementwise_ops", "bytes_read", "bytes_written")
Sums = dict[str, int]
Tables = Mapping[tuple[Frame, Any], Mapping[Any, int]]


class Tally:
    """The sums of one count. ``tables`` hold calls by frame and part, one table for each thread.

    ``failures`` are calls that we could not describe, with the reason, by operator.
    """

    def __init__(self, tree: Tree, tables: Sequence[Tables], failures: Mapping[str, tuple[int, str]]) -> None:
        self._tree = tree
        self._own: defaultdict[Frame, defaultdict[str, Sums]] = defaultdict(lambda: defaultdict(_zeros))
        self._operators: defaultdict[tuple[str, Phase, str], Sums] = defaultdict(_zeros)
        self._uncovered: defaultdict[tuple[str, str | None], Sums] = defaultdict(lambda: defaultdict(int))
        self._failures = failures
        for table in tables:
            for (frame, part), calls in list(table.items()):
                for entry, count in list(calls.items()):
                    self._add(frame, part, entry, count)

    def profile(self) -> ModelProfile:
        """The result."""
        totals = {frame: self._with_children(frame) for frame in self._tree.root.walk()}
        optimizer = totals[self._tree.root]["optimizer"]
        root = self._tree.root
        roots = [root.module] if root.module is not None else [child.module for child in root.children]
        every, trainable = _parameters(*[module for module in roots if module is not None])
        updated = max(trainable, 1)
        modules = tuple(self._module(frame, totals[frame], optimizer, updated) for frame in root.walk())
        if root.module is None:
            modules = tuple(module for module in modules if module.path)
        total = totals[root]
        return ModelProfile(
            parameters=every,
            trainable_parameters=trainable,
            forward=_amount(total["forward"]),
            backward=_amount(total["backward"]),
            recompute=_amount(total["recompute"]),
            optimizer=_amount(total["optimizer"]),
            input_gradient_flops=total["input_gradient"]["model_flops"],
            weight_gradient_flops=total["weight_gradient"]["model_flops"],
            modules=modules,
            operators=self._operator_rows(),
            uncovered=(
                *(
                    Uncovered(name=name, calls=sum(places.values()), modules=tuple(sorted(places)[:8]), reason=why)
                    for (name, why), places in sorted(self._uncovered.items(), key=lambda row: str(row[0]))
                ),
                *(
                    Uncovered(name=name, calls=calls, modules=(), reason=why)
                    for name, (calls, why) in sorted(self._failures.items())
                ),
            ),
        )

    def _add(self, frame: Frame, part: str, entry: Any, count: int) -> None:
        cost, phase = entry.cost, PHASE_OF[part]
        if cost is None:
            if entry.has_floats:
                self._uncovered[entry.name, entry.reason or reason(entry.name)][frame.path] += count
            return
        own = self._own[frame]
        operator = self._operators[entry.name, phase, cost.kind]
        for name in FIELDS:
            amount = (getattr(cost, name) or 0) * count
            own[phase][name] += amount
            operator[name] += amount
        operator["calls"] += count
        if part in {"input_gradient", "weight_gradient"}:
            own[part]["model_flops"] += cost.model_flops * count
        elif phase == "backward" and cost.weight_flops:
            own["weight_gradient"]["model_flops"] += cost.weight_flops * count
            own["input_gradient"]["model_flops"] += (cost.model_flops - cost.weight_flops) * count
        elif phase == "backward" and cost.kind in {"convolution", "attention", "recurrent"}:
            own["input_gradient"]["model_flops"] += cost.model_flops * count

    def _with_children(self, frame: Frame) -> defaultdict[str, Sums]:
        total: defaultdict[str, Sums] = defaultdict(_zeros)
        for one in frame.walk():
            for part, sums in self._own.get(one, {}).items():
                for name, amount in sums.items():
                    total[part][name] += amount
        return total

    def _module(self, frame: Frame, total: Mapping[str, Sums], optimizer: Sums, updated: int) -> ModuleProfile:
        every, trainable = _parameters(frame.module) if frame.module is not None else (0, 0)
        share = {name: amount * min(trainable, updated) // updated for name, amount in optimizer.items()}
        return ModuleProfile(
            path=frame.path,
            class_name=frame.class_name,
            parent=frame.parent.path if frame.parent is not None else None,
            depth=frame.depth,
            calls=frame.calls,
            recompute_calls=frame.recompute_calls,
            parameters=every,
            trainable_parameters=trainable,
            forward=_amount(total["forward"]),
            backward=_amount(total["backward"]),
            recompute=_amount(total["recompute"]),
            optimizer=_amount(share),
            input_gradient_flops=total["input_gradient"]["model_flops"],
            weight_gradient_flops=total["weight_gradient"]["model_flops"],
            compiled=not frame.calls and frame.in_compiled,
        )

    def _operator_rows(self) -> tuple[OperatorProfile, ...]:
        rows = [
            OperatorProfile(
                name=name,
                phase=phase,
                kind=kind,
                calls=sums["calls"],
                model_flops=sums["model_flops"],
                elementwise_ops=sums["elementwise_ops"],
                bytes=sums["bytes_read"] + sums["bytes_written"],
            )
            for (name, phase, kind), sums in self._operators.items()
        ]
        return tuple(sorted(rows, key=lambda row: (-row.model_flops, -row.bytes, row.name, row.phase)))


def _zeros() -> Sums:
    return dict.fromkeys((*FIELDS, "calls"), 0)


def _amount(sums: Sums) -> Amount:
    known = {name: sums[name] for name in FIELDS}
    return Amount(
        **known,
        all_flops=sums["executed_flops"] + sums["elementwise_ops"],
        bytes=sums["bytes_read"] + sums["bytes_written"],
    )


def _parameters(*modules: nn.Module) -> tuple[int, int]:
    """The parameters of ``modules`` and the trainable ones, each shared tensor once."""
    unique = {id(one): one for module in modules for one in module.parameters()}.values()
    return sum(one.numel() for one in unique), sum(one.numel() for one in unique if one.requires_grad)
