"""``--fail-on``: conditions on a comparison, such as ``step>+3%``, ``first-step>+10%`` or ``launches>+0``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, get_args

from whystall.analysis.work_results import CountName
from whystall.errors import UsageError

if TYPE_CHECKING:
    from whystall.diagnosis.comparison import Comparison
    from whystall.diagnosis.time_changes import Kind, Timed

_CONDITION: Final = re.compile(
    r"^\s*(?P<what>\S.*?)\s*(?P<sign>[<>])\s*(?P<number>[+-]?\d+(\.\d+)?)\s*(?P<unit>%|ns|us|µs|ms|s|)\s*$"
)
_NS: Final = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
_UNITS: Final = {"%", *_NS}
_COUNT_UNITS: Final = {"%", ""}
COUNTS: Final = get_args(CountName)
NEW_CAUSE: Final = "new-cause"
_STEP: Final = "step"
_KINDS: Final[dict[str, Kind]] = {"operator": "operator", "kernel": "kernel", "module": "module", "part": "job"}
_OF_JOB: Final = ("job", "first-step")


@dataclass(frozen=True, slots=True)
class Threshold:
    """One condition; ``number`` is in per cent of the base, in nanoseconds, or a count."""

    text: str
    what: str
    above: bool
    number: float
    percent: bool

    def crossed(self, comparison: Comparison) -> bool:
        """Whether the change crosses the threshold, and is more than noise."""
        if self.what == NEW_CAUSE:
            return any(row.change in ("new", "more") for row in comparison.causes)
        if self.is_open(comparison) is not None:
            return False
        base, candidate, beyond_noise = self._compared(comparison)
        if base is None or candidate is None or not beyond_noise:
            return False
        change = (candidate - base) / max(base, 1) * 100 if self.percent else candidate - base
        return change > self.number if self.above else change < self.number

    def change_of_step(self, base_step_ns: int | None) -> float | None:
        """The share by which a step must become longer or shorter; ``None`` for any other condition."""
        if self.what != _STEP or not base_step_ns or self.number * (1 if self.above else -1) <= 0:
            return None
        return abs(self.number) / (100 if self.percent else base_step_ns)

    def is_open(self, comparison: Comparison) -> str | None:
        """Why the condition is undecided; ``None`` where it is decided."""
        if self.what == NEW_CAUSE:
            return None
        if self.what in COUNTS:
            return self._is_uncounted(comparison)
        if comparison.incomparable:
            return f"not comparable: {comparison.incomparable[0]}"
        if _named(self.what)[0] == "job" and not comparison.job:
            return "the whole job is known of runs that were watched from their start alone"
        if self.what == _STEP and comparison.speedup_low is None:
            return "too few steps to distinguish a change from noise"
        return None

    def _is_uncounted(self, comparison: Comparison) -> str | None:
        if any(row.name == self.what for row in comparison.counts):
            return None
        if comparison.counts and comparison.incomparable:
            return f"not comparable: {comparison.incomparable[0]}"
        return "counts need steps and the same number of ranks in both recordings"

    def _compared(self, comparison: Comparison) -> tuple[int | None, int | None, bool]:
        """Both sides' value, and whether they differ beyond noise."""
        if self.what in COUNTS:
            count = next(row for row in comparison.counts if row.name == self.what)
            return count.base, count.candidate, count.certain
        if self.what == _STEP:
            return comparison.base.step_ns, comparison.candidate.step_ns, comparison.significant
        kind, name = _named(self.what)
        rows = {
            "ledger": comparison.ledger,
            "operator": comparison.operators,
            "kernel": comparison.kernels,
            "module": comparison.modules,
            "job": comparison.job,
        }[kind]
        row = next((row for row in rows if row.name == name), None)
        return (None, None, False) if row is None else (row.base_ns or 0, row.candidate_ns or 0, row.beyond_noise)

    def check(self, *reports: Timed) -> None:
        """Raises ``UsageError`` where the condition names nothing that one of the reports holds."""
        from whystall.analysis.results import Ledger
        from whystall.analysis.whole_job import JobPartName
        from whystall.diagnosis.time_changes import names

        if self.what in (NEW_CAUSE, _STEP, *_OF_JOB, *COUNTS):
            return
        kind, name = _named(self.what)
        if kind == "ledger":
            known = {*Ledger.__struct_fields__, *COUNTS}
        else:
            known = set(get_args(JobPartName)) if kind == "job" else names(kind, *reports)
        if name in known:
            return
        import difflib

        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f": did you mean {near[0]}?" if near else ""
        what = {"ledger": "part of the ledger", "job": "part of the whole job"}.get(kind, f"{kind} of the two runs")
        raise UsageError(f"--fail-on {self.text!r}: no {what} is called {name!r}{hint}")


def _named(what: str) -> tuple[Kind, str]:
    """The kind and the name that a condition speaks of; without a kind it is a part of the ledger."""
    if what in _OF_JOB:
        return "job", what
    kind, separator, name = what.partition(":")
    return (_KINDS[kind], name) if separator and kind in _KINDS else ("ledger", what)


def parse(text: str) -> Threshold:
    """The condition that ``text`` stands for. Raises ``UsageError`` when it stands for none."""
    if text.strip() == NEW_CAUSE:
        return Threshold(text, NEW_CAUSE, above=True, number=0.0, percent=False)
    match = _CONDITION.match(text)
    kind, separator, _ = match["what"].partition(":") if match is not None else ("", "", "")
    counted = match is not None and match["what"] in COUNTS
    if (
        match is None
        or (separator and kind not in _KINDS)
        or match["unit"] not in (_COUNT_UNITS if counted else _UNITS)
    ):
        raise UsageError(
            f"--fail-on {text!r} is no condition: write step>+3%, first-step>+10%, idle_input>+2ms, "
            f"operator:NAME>+10%, part:NAME>+10%, launches>+0 or {NEW_CAUSE}"
        )
    percent = match["unit"] == "%"
    number = float(match["number"]) * _NS.get(match["unit"], 1)
    return Threshold(text, match["what"], above=match["sign"] == ">", number=number, percent=percent)
