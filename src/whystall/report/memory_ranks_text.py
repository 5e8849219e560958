"""Results of several ranks' snapshots together, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whystall.memory.results import FirstOut, RanksTogether
from whystall.report.format import duration, plural, size
from whystall.report.names import clean, middle_cut

_MOST_SITES: Final = 3
_ALIKE: Final = 0.05  # share of the fullest rank's peak below which two amounts count as equal
_LONGEST: Final = 200


def told_together(joint: RanksTogether) -> str:
    """The rank that ran out first, and the fullest rank's excess over the others."""
    return " ".join(_sentences(joint))


def _sentences(joint: RanksTogether) -> Iterator[str]:
    of_all = f"{joint.ran_out} of {plural(joint.files, 'file')}"
    if joint.first_out is not None:
        yield f"{_ran_out(joint.first_out)}; {of_all} did."
    elif joint.ran_out:
        yield f"{of_all} ran out of memory; who did first is not known, since {joint.no_first_because}."
    peak = size(joint.fullest_peak_bytes)
    more = joint.fullest_peak_bytes - joint.median_of_others_bytes
    if more <= _ALIKE * joint.fullest_peak_bytes:
        yield f"All hold about the same at their peaks, at most {peak}."
        return
    lines = [
        f"{size(one.bytes - one.median_of_others_bytes)} more at {_line(one.site, one.function)}"
        for one in joint.more[:_MOST_SITES]
    ]
    said = f"{_name(joint.fullest)} holds most, {peak} at its peak, {size(more)} more than the median of the others"
    yield f"{said}{': by line ' if lines else ''}{', '.join(lines)}."


def _ran_out(first: FirstOut) -> str:
    if first.next_file is None:
        return f"{_name(first.file)} ran out of memory ({size(first.asked_bytes)} asked for)"
    before = f"{duration(first.before_next_ns)} before {_name(first.next_file)} by the clocks of their hosts"
    return f"{_name(first.file)} ran out of memory first ({size(first.asked_bytes)} asked for), {before}"


def _line(site: str | None, function: str | None) -> str:
    return "(no frame)" if site is None else clean(f"{site} {function or ''}".rstrip(), _LONGEST)


def _name(file: str) -> str:
    return middle_cut(clean(file, _LONGEST), 60)
