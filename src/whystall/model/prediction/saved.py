"""Each module's activations for the backward pass, and the work behind them: candidates for recomputation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from whystall.model.prediction.outcome import Kept
from whystall.model.prediction.tracker import Tracker


@dataclass(slots=True)
class _Heard:
    """Observations of the modules of one name."""

    kind: str
    calls: int = 0
    flops: int = 0
    gives: set[int] = field(default_factory=set)  # numbers of storages that it hands to others


class ModuleListener:
    """Observes every operator and every module's call, and reports the activations of each name's calls.

    A storage belongs to all modules inside whose calls an operator made it. A module's outputs are not its own: others
    may keep them in any case. ``names`` are those of modules by their id, ``flops`` returns the FLOPs of the latest
    operator.
    """

    def __init__(self, tracker: Tracker, names: Mapping[int, str], flops: Callable[[], int]) -> None:
        self._tracker, self._names, self._flops = tracker, names, flops
        self.reset()

    def reset(self) -> None:
        """Forgets the observations."""
        self._open: list[str] = []
        self._heard: dict[str, _Heard] = {}
        self._born: dict[int, tuple[str, tuple[str, ...]]] = {}  # number of a storage → operator, modules

    @property
    def _listens(self) -> bool:
        return self._tracker.place.phase == "forward"

    def begins(self, module: nn.Module) -> None:
        """A module's forward begins."""
        if self._listens:
            name = self._names.get(id(module), "")
            self._heard.setdefault(name, _Heard(type(module).__name__)).calls += 1
            self._open.append(name)

    def ends(self, result: Any) -> None:
        """The forward of the module that began last ended."""
        if self._listens and self._open:
            self._heard[self._open.pop()].gives |= self._tracker.numbers(result)

    def __call__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Notes whose the storages are that an operator made, and its FLOPs."""
        del args, kwargs
        if not self._listens or not self._open:
            return
        around = tuple(dict.fromkeys(self._open))
        operator = func.name().rpartition("::")[2].partition(".")[0]
        for number in self._tracker.numbers(result):
            self._born.setdefault(number, (operator, around))
        for name in around:
            self._heard[name].flops += self._flops()

    def kept(self, kinds: Mapping[int, tuple[str, str]], sizes: Mapping[int, int]) -> dict[str, Kept]:
        """The memory of each name, among the storages whose kind is activations."""
        by_operator: dict[str, Counter[str]] = {name: Counter() for name in self._heard}
        for number, (operator, around) in self._born.items():
            if kinds.get(number, ("", ""))[0] == "activations":
                for name in around:
                    if number not in self._heard[name].gives:
                        by_operator[name][operator] += sizes.get(number, 0)
        return {
            name: Kept(
                kind=one.kind,
                calls=one.calls,
                n_bytes=by_operator[name].total(),
                flops=one.flops,
                operators=dict(by_operator[name].most_common()),
            )
            for name, one in self._heard.items()
        }
