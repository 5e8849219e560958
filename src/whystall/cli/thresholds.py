"""``--fail-on``: conditions on a comparison, such as ``step>+3%`` or ``idle_input>+2ms``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from whystall.errors import UsageError

if TYPE_CHECKING:
    from whystall.diagnosis.comparison import Comparison

_CONDITION: Final = re.compile(
    r"^\s*(?P<what>[\w.:-]+)\s*(?P<sign>[<>])\s*(?P<number>[+-]?\d+(\.\d+)?)\s*(?P<unit>%|ns|us|µs|ms|s)\s*$"
)
_NS: Final = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
NEW_CAUSE: Final = "new-cause"


@dataclass(frozen=True, slots=True)
class Threshold:
    """One condition; ``unit`` is ``%`` of the base or nanoseconds."""

    text: str
    what: str
    above: bool
    number: float
    percent: bool

    def crossed(self, comparison: Comparison) -> bool:
        """Whether the change crosses the threshold, and is more than noise."""
        if self.what == NEW_CAUSE:
            return any(row.change == "new" for row in comparison.causes)
        base, candidate, beyond_noise = self._times(comparison)
        if base is None or candidate is None or not beyond_noise:
            return False
        change = (candidate - base) / max(base, 1) * 100 if self.percent else candidate - base
        return change > self.number if self.above else change < self.number

    def _times(self, comparison: Comparison) -> tuple[int | None, int | None, bool]:
        if self.what == "step":
            few = comparison.speedup_low is None
            return comparison.base.step_ns, comparison.candidate.step_ns, comparison.significant or few
        kind, separator, name = self.what.partition(":")
        if not separator:
            kind, name = "", self.what
        rows = {
            "": comparison.ledger,
            "operator": comparison.operators,
            "kernel": comparison.kernels,
            "module": comparison.modules,
        }[kind]
        row = next((row for row in rows if row.name == name), None)
        return (None, None, False) if row is None else (row.base_ns or 0, row.candidate_ns or 0, row.beyond_noise)


def parse(text: str) -> Threshold:
    """The condition that ``text`` stands for. Raises ``UsageError`` when it stands for none."""
    if text.strip() == NEW_CAUSE:
        return Threshold(text, NEW_CAUSE, above=True, number=0.0, percent=False)
    match = _CONDITION.match(text)
    kinds = ("operator:", "kernel:", "module:")
    if match is None or (":" in match["what"] and not match["what"].startswith(kinds)):
        raise UsageError(
            f"--fail-on {text!r} is no condition: write step>+3%, idle_input>+2ms, operator:NAME>+10% or {NEW_CAUSE}"
        )
    percent = match["unit"] == "%"
    number = float(match["number"]) * (1 if percent else _NS[match["unit"]])
    return Threshold(text, match["what"], above=match["sign"] == ">", number=number, percent=percent)
