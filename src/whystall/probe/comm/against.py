"""A sweep compared with an earlier one: sizes that became slower or faster by more than either of them scatters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from whystall.errors import UsageError
from whystall.probe.comm.results import Backend, CommProbe

_LEAST: Final = 0.05  # of the earlier time: smaller differences are not worth a word
_SAME: Final = ("backend", "ranks", "kind", "device", "network", "split")

Judgement = Literal["slower", "faster", "same"]


@dataclass(frozen=True, slots=True)
class Changed:
    """One collective at one size, before and now; ``times`` is the time now over the time before."""

    collective: str
    bytes: int
    before_ns: int
    now_ns: int
    times: float
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class Held:
    """The rows of both sweeps, and their other differences."""

    rows: tuple[Changed, ...]
    notes: tuple[str, ...]


def against(earlier: CommProbe, now: CommProbe) -> Held:
    """Every row that both have. Raises ``UsageError`` where the sweeps have nothing in common.

    A row is called slower or faster where four fifths of the iterations of the one lie beyond those of the other, and a
    neighbouring size of the same collective, if any was measured, went the same way.
    """
    check_comparable(earlier, now.ranks, now.backend)
    before = {(row.collective, row.bytes): row for row in earlier.results}
    rows = []
    for row in now.results:
        old = before.get((row.collective, row.bytes))
        if old is None:
            continue
        judgement: Judgement = "same"
        if abs(row.time_ns - old.time_ns) > _LEAST * old.time_ns:
            judgement = "slower" if row.low_ns > old.high_ns else "faster" if row.high_ns < old.low_ns else "same"
        times = row.time_ns / old.time_ns
        rows.append(Changed(row.collective, row.bytes, old.time_ns, row.time_ns, times, judgement))
    rows = [_alone_is_same(row, rows) for row in rows]
    if not rows:
        raise UsageError("the earlier sweep measured no collective at any of these sizes")
    notes = [
        f"{name}: {getattr(earlier, name)} before, {getattr(now, name)} now"
        for name in (*_SAME, "machine", "torch")
        if getattr(earlier, name) != getattr(now, name)
    ]
    return Held(tuple(rows), tuple(notes))


def check_comparable(earlier: CommProbe, ranks: int, backend: Backend) -> None:
    """Raises ``UsageError`` where a sweep of ``ranks`` ranks cannot be compared with the earlier one."""
    if (earlier.ranks, earlier.backend) != (ranks, backend):
        raise UsageError(
            f"the earlier sweep was of {earlier.ranks} ranks on {earlier.backend}, this one is of {ranks} on "
            f"{backend}: measure with --ranks {earlier.ranks} --backend {earlier.backend}"
        )


def _alone_is_same(row: Changed, rows: list[Changed]) -> Changed:
    """A row whose neighbours did not change with it: something else ran just then, more likely than a slower link."""
    own = sorted((one for one in rows if one.collective == row.collective), key=lambda one: one.bytes)
    place = own.index(row)
    beside = own[max(place - 1, 0) : place] + own[place + 1 : place + 2]
    sign = 1 if row.judgement == "slower" else -1
    if row.judgement == "same" or not beside or any(sign * (one.times - 1) > _LEAST for one in beside):
        return row
    return replace(row, judgement="same")
