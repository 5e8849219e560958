"""Results of communication logs, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whystall.fleet.logs import Behind, CommLog, CommRow, Missing, RankWait
from whystall.report.document import columns
from whystall.report.format import UNKNOWN, count, duration, plural, rate, share, size

_MOST_ROWS = 60
_MOST_RANKS = 12
_WITHOUT_WAITING = {"PyTorch traces": "from when the last rank has come until the first is done"}


def render_logs(found: Sequence[CommLog]) -> str:
    """Every log's verdict, tables and notes."""
    return "\n\n".join("\n\n".join(_parts(one)) for one in found) + "\n"


def summarize(found: CommLog) -> str:
    """One sentence on a log."""
    if found.format == "NCCL RAS":
        return _state(found)
    late = [one for one in found.waits if one.stands_out]
    if late:
        worst = max(late, key=lambda one: one.kept_waiting_ns)
        return (
            f"Rank {worst.rank} of communicator {worst.communicator} comes last in {worst.last:,} of "
            f"{worst.collectives:,} collectives and keeps the others waiting {duration(worst.kept_waiting_ns)}, "
            f"beside {duration(worst.transfer_ns)} of transfer."
        )
    kinds = sorted({row.collective or "unknown kind" for row in found.rows})
    best = max((row.bus_bytes_per_s or 0.0 for row in found.rows), default=0.0)
    reached = f"; at best {rate(best, 'B/s')} on the bus" if best else ""
    return f"{found.format}: {plural(len(found.rows), 'row')} of {', '.join(kinds)}{reached}."


def _state(found: CommLog) -> str:
    stuck = [one for one in found.behind if one.moved is False]
    parts = []
    if found.missing:
        dead = sum(one.dead for one in found.missing)
        gone = sorted({one.rank for one in found.missing if one.rank is not None})
        told = f"rank {', '.join(map(str, gone[:_MOST_RANKS]))}" if gone else "a process"
        parts.append(f"{told} did not answer{' and counts as dead' if dead else ''}")
    if stuck:
        ranks = sorted({one.rank for one in stuck})
        parts.append(f"rank {', '.join(map(str, ranks[:_MOST_RANKS]))} launched nothing more and is behind")
    elif found.behind:
        most = max(one.most_launched - one.launched for one in found.behind)
        who = {(one.communicator, one.rank) for one in found.behind}
        parts.append(f"{plural(len(who), 'rank')} launched fewer collectives than others, by {most:,} at most")
    text = "; ".join(parts) or "all ranks that it names answered and launched the same"
    return f"NCCL RAS: {text}."


def _parts(found: CommLog) -> Iterator[str]:
    yield summarize(found)
    files = "" if found.files == 1 else f" of {found.files:,} files"
    groups = "" if found.communicators is None else f", {plural(found.communicators, 'communicator')}"
    yield f"{found.format}{files}{groups}"
    if found.rows:
        yield _rows(found.rows, _WITHOUT_WAITING.get(found.format, "the shortest over ranks"))
    if found.waits:
        yield _waits(found.waits)
    if found.behind:
        yield _behind(found.behind)
    if found.missing:
        yield "\n".join(_missing(one) for one in found.missing[:_MOST_ROWS])
    corrections = dict.fromkeys(f"{row.collective}: {row.note}" for row in found.rows if row.note)
    if corrections or found.notes:
        yield "\n".join((*corrections, *found.notes))


def _rows(rows: Sequence[CommRow], without_waiting: str) -> str:
    lines = [["collective", "ranks", "size", "count", "time", "algorithm", "bus", "printed", "slowest process"]]
    for row in rows[:_MOST_ROWS]:
        slowest = UNKNOWN if row.slowest_process is None else f"{row.slowest_process:.2f} x mean"
        lines.append(
            [
                row.collective or "unknown kind",
                count(row.ranks),
                size(row.bytes),
                count(row.count),
                duration(round(row.time_ns)) + (" *" if row.without_waiting else ""),
                rate(row.algorithm_bytes_per_s, "B/s"),
                rate(row.bus_bytes_per_s, "B/s"),
                rate(row.printed_bus_bytes_per_s, "B/s"),
                slowest,
            ]
        )
    below = [f"* without waiting: {without_waiting}"] if any(row.without_waiting for row in rows) else []
    more = [f"and {len(rows) - _MOST_ROWS:,} more rows (--json has all)"] if len(rows) > _MOST_ROWS else []
    return "\n".join([columns(lines), *below, *more])


def _waits(waits: Sequence[RankWait]) -> str:
    lines = [
        ["rank", "communicator", "collectives", "waited", "of its time", "transfer", "comes last", "keeps waiting"]
    ]
    for one in sorted(waits, key=lambda one: (-one.kept_waiting_ns, one.wait_ns))[:_MOST_ROWS]:
        whole = one.wait_ns + one.transfer_ns
        lines.append(
            [
                str(one.rank),
                str(one.communicator),
                count(one.collectives),
                duration(one.wait_ns),
                share(one.wait_ns / whole) if whole else UNKNOWN,
                duration(one.transfer_ns),
                count(one.last),
                duration(one.kept_waiting_ns) + (" !" if one.stands_out else ""),
            ]
        )
    marked = ["! comes last more often than by chance"] if any(one.stands_out for one in waits) else []
    return "\n".join([columns(lines), *marked])


def _behind(behind: Sequence[Behind]) -> str:
    moves = {None: UNKNOWN, True: "yes", False: "no"}
    lines = [["rank", "communicator", "collective", "launched", "others", "behind", "moves"]]
    for one in behind[:_MOST_ROWS]:
        counts = (one.launched, one.most_launched, one.most_launched - one.launched)
        lines.append([str(one.rank), str(one.communicator), one.collective, *map(count, counts), moves[one.moved]])
    return columns(lines)


def _missing(one: Missing) -> str:
    who = f"rank {one.rank}" if one.rank is not None else "a process"
    where = "" if one.communicator is None else f" of communicator {one.communicator}"
    process = "" if one.process is None else f" (process {one.process})"
    return f"{who}{where}{process} did not answer{': NCCL counts it as dead' if one.dead else ''}"
