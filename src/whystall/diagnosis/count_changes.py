"""Changes of counts per step: counts are the same on any machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from whystall.analysis.work_results import CountName, StepCount

# Counts that grow with a batch: bytes, and operators that fetch it sample by sample.
_AMOUNTS: Final[frozenset[CountName]] = frozenset({"copied_bytes", "operators"})


class Counted(Protocol):
    """The counts per step of a report."""

    @property
    def counts(self) -> Sequence[StepCount]:
        """Counts by rank and name."""


class CountChange(msgspec.Struct, frozen=True, kw_only=True):
    """How often something happens in the usual step of each side, all ranks together.

    ``certain``: if most steps of both sides are equal the usual counts are exact, and any difference counts; else only
    a count outside of the range of the base's steps does.
    """

    name: CountName
    base: int
    candidate: int
    certain: bool


def count_changes(base: Counted, candidate: Counted, *, amounts: bool = True) -> list[CountChange]:
    """The counts that both sides know, in their order; none where ranks differ in number or steps are not known.

    Without ``amounts`` those are left out that grow with a batch, or with the share of it that a rank has.
    """
    before, after = _by_name(base), _by_name(candidate)
    return [
        _change(name, rows, after[name])
        for name, rows in before.items()
        if len(rows) == len(after.get(name, ())) and (amounts or name not in _AMOUNTS)
    ]


def counts_of_runs(reports: Sequence[Counted]) -> list[StepCount]:
    """The counts of several runs of one job as those of one: a count that differs between runs is exact in none."""
    by_run = [{(row.rank, row.name): row for row in report.counts} for report in reports]
    return [_of_runs([rows[key] for rows in by_run if key in rows]) for key in by_run[0]]


def _of_runs(rows: Sequence[StepCount]) -> StepCount:
    usual = sorted(row.usual for row in rows)
    return msgspec.structs.replace(
        rows[0],
        usual=usual[len(usual) // 2],
        steps=sum(row.steps for row in rows),
        alike=sum(row.alike for row in rows) if usual[0] == usual[-1] else 0,
        least=min(row.least for row in rows),
        most=max(row.most for row in rows),
    )


def _by_name(report: Counted) -> dict[CountName, list[StepCount]]:
    out: dict[CountName, list[StepCount]] = {}
    for row in report.counts:
        out.setdefault(row.name, []).append(row)
    return out


def _change(name: CountName, before: Sequence[StepCount], after: Sequence[StepCount]) -> CountChange:
    base, candidate = (sum(row.usual for row in rows) for rows in (before, after))
    alike = all(2 * row.alike > row.steps for row in (*before, *after))
    beyond = not sum(row.least for row in before) <= candidate <= sum(row.most for row in before)
    return CountChange(name=name, base=base, candidate=candidate, certain=base != candidate and (alike or beyond))
