"""Changes of parts of the ledger, operators, kernels and modules between two recordings, per step, matched by name.

A change must exceed its own noise. For a part of the ledger that is the error of its mean over the steps (95 %). For
other device time it is the error of the busy time, scaled by the root of the share (times of calls that vary
independently). Both include the difference between runs of the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, Protocol

import msgspec
import numpy as np

from whystall.analysis.paired import SIGMAS
from whystall.analysis.results import Kernel, Module, Operator
from whystall.analysis.step_errors import FEWEST_STEPS
from whystall.diagnosis.sides import Stepped, usual_steps

Kind = Literal["ledger", "operator", "kernel", "module", "job"]
_Noise = Callable[[str], float]
_NEGLIGIBLE_NS: Final = 1_000


class Timed(Stepped, Protocol):
    """The times in a report."""

    @property
    def operators(self) -> Sequence[Operator]:
        """Operators by name."""

    @property
    def kernels(self) -> Sequence[Kernel]:
        """Device events by name."""

    @property
    def modules(self) -> Sequence[Module]:
        """Modules by path."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Something that both runs have, or one: its time per step in each (``None``: not there).

    A row of the kind ``job`` is the time in the whole job.
    """

    kind: Kind
    name: str
    base_ns: int | None
    candidate_ns: int | None
    delta_ns: int
    beyond_noise: bool


def names(kind: Kind, *reports: Timed) -> set[str]:
    """Names to compare: everything of the kind in one of the reports."""
    return {name for report in reports for name in TIMES[kind](report)}


def _count(report: Timed, rank: int) -> int:
    """How many steps a rank's trace holds (1 without marks)."""
    return max((len(device.steps) for device in report.devices if device.rank == rank), default=1) or 1


def _summed(report: Timed, rows: Iterable[tuple[int, str, int]]) -> dict[str, int]:
    """Times by name, per step and averaged over ranks, from rank, name and time of a whole trace."""
    sums: dict[str, float] = {}
    steps: dict[int, int] = {}
    for rank, name, ns in rows:
        if rank not in steps:
            steps[rank] = _count(report, rank)
        sums[name] = sums.get(name, 0.0) + ns / steps[rank]
    return {
        name: round(value / max(len({device.rank for device in report.devices}), 1)) for name, value in sums.items()
    }


def _ledger(report: Timed) -> dict[str, int]:
    steps = usual_steps(report)
    if not steps:
        return _summed(
            report, ((device.rank, part, ns) for device in report.devices for part, ns in device.ledger.parts().items())
        )
    names = steps[0].ledger.parts()
    return {part: round(sum(step.ledger.parts()[part] for step in steps) / len(steps)) for part in names}


def _operators(report: Timed) -> dict[str, int]:
    on_device = any(device.kind != "cpu" for device in report.devices)
    rows = ((row.rank, row.name, row.device_self_ns if on_device else row.host_self_ns) for row in report.operators)
    return _summed(report, rows)


def _kernels(report: Timed) -> dict[str, int]:
    return _summed(report, ((row.rank, row.name, row.total_ns) for row in report.kernels))


def _modules(report: Timed) -> dict[str, int]:
    rows = ((row.rank, row.path, row.forward_self_ns + row.backward_self_ns) for row in report.modules)
    return _summed(report, rows)


TIMES: Final[Mapping[Kind, Callable[[Timed], dict[str, int]]]] = {
    "ledger": _ledger,
    "operator": _operators,
    "kernel": _kernels,
    "module": _modules,
}


def _uncertainty(values: Sequence[int]) -> float:
    """Half the width of the interval (95 %) of the values' mean; 0 for too few values."""
    if len(values) < FEWEST_STEPS:
        return 0.0
    return float(SIGMAS * np.std(values, ddof=1) / np.sqrt(len(values)))


def _noise(kind: Kind, report: Timed, times: Mapping[str, int]) -> _Noise:
    """How far each time of a side is known, by name."""
    if kind == "ledger":
        steps = usual_steps(report)
        return lambda name: _uncertainty([step.ledger.parts().get(name, 0) for step in steps])
    busy = [step.busy_ns for device in report.devices for step in device.steps]
    whole = _uncertainty(busy)
    mean = max(sum(busy) / max(len(busy), 1), 1.0)
    return lambda name: whole * float(np.sqrt(times.get(name, 0) / mean))


def time_changes(kind: Kind, base: Timed, candidate: Timed, sways: tuple[float, float] | None) -> list[Change]:
    """Changes by name, the largest first; names without time on either side are left out.

    ``sways`` is the difference between runs of each side; without it no change counts.
    """
    before, after = TIMES[kind](base), TIMES[kind](candidate)
    base_noise, candidate_noise = _noise(kind, base, before), _noise(kind, candidate, after)
    rows = []
    base_sway, candidate_sway = sways or (0.0, 0.0)
    for name in dict.fromkeys((*before, *after)):
        first, second = before.get(name), after.get(name)
        delta = (second or 0) - (first or 0)
        if max(first or 0, second or 0) < _NEGLIGIBLE_NS:
            continue
        steps = np.hypot(base_noise(name), candidate_noise(name))
        noise = np.hypot(steps, SIGMAS * np.hypot(base_sway * (first or 0), candidate_sway * (second or 0)))
        rows.append(
            Change(
                kind=kind,
                name=name,
                base_ns=first,
                candidate_ns=second,
                delta_ns=delta,
                beyond_noise=sways is not None and abs(delta) >= _NEGLIGIBLE_NS and bool(abs(delta) > noise),
            )
        )
    return sorted(rows, key=lambda row: (-abs(row.delta_ns), row.name))
