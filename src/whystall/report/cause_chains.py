"""Chains of causes: the root of a loss and its consequences, on that rank and on those that wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.diagnosis.finding import Finding
from whystall.report.names import clean, line_of_code
from whystall.report.schema import Report

_LONGEST: Final = 8


def chain_of(finding: Finding, report: Report) -> tuple[str, ...]:
    """The links of the chain that a finding is the root of, in their order; none where nothing follows from it.

    ``finding`` is one of the report's. A link is a phrase that is safe to show.
    """
    after = [*(clean(_bare(one), 200) for one in followers(finding, report)), *_on_others(finding, report)]
    if not after:
        return ()
    line = [line_of_code(clean(place.file, 160), place.line) for place in finding.code[:1]]
    return tuple([*line, clean(_bare(finding), 200), *after][:_LONGEST])


def followers(root: Finding, report: Report) -> list[Finding]:
    """The findings that follow from one, each behind its cause."""
    found: list[Finding] = []
    wanted, seen = [root.id], {root.id}
    while wanted:
        cause = wanted.pop(0)
        for one in report.findings:
            if one.because == cause and one is not root and one not in found:
                found.append(one)
                wanted += [one.id] if one.id not in seen else []
                seen.add(one.id)
    return found


def _on_others(finding: Finding, report: Report) -> Iterator[str]:
    """The effect of the first finding about one rank alone on the others, where they were seen to wait for it."""
    two = report.side_by_side
    alone = (one for one in report.findings if one.severity != "info" and len(one.scope.ranks) == 1)
    if two is None or next(alone, None) is not finding or finding.scope.ranks != [two.late]:
        return
    yield f"rank {two.late} comes late to its collectives"
    yield f"rank {two.waiting} waits for it longest"


def _bare(finding: Finding) -> str:
    """A title without the facts of this case, which stand beside it."""
    return finding.title.partition(": ")[0] or finding.id
