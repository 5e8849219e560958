"""Logs of NCCL's inspector plug-in: JSON lines with the time of each collective on each rank.

The format is recognised by its fields: the version string did not change when fields were added. ``coll_sn`` counts per
communicator and function, so that (id, coll, coll_sn) is the same collective on all ranks. ``coll_exec_time_us`` is the
kernel's time on that rank and includes waiting: the shortest over ranks is the transfer, the rest waiting. The size is
that of one rank's count (NCCL plugins/profiler/inspector).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from whystall.errors import InputError
from whystall.fleet.logs.lateness import stands_out
from whystall.fleet.logs.results import CommLog, CommRow, RankWait
from whystall.fleet.logs.values import mapping, number, whole
from whystall.json_text import parse_json
from whystall.trace.metadata import MOST_RANKS
from whystall.vocabulary.collectives import bandwidth, convention, kind_named

__all__ = ["Inspected", "is_line"]

_LONGEST_US: Final = 1e12


def is_line(document: dict[str, Any]) -> bool:
    """Whether a line of JSON is the inspector's."""
    return "header" in document and bool({"coll_perf", "p2p_perf", "metadata"} & document.keys())


@dataclass(slots=True)
class _Meeting:
    """One collective: its kind, the bytes of a rank's count, and nanoseconds by rank."""

    kind: str
    count_bytes: int
    ranks: int
    time_ns: dict[int, int]


@dataclass(slots=True)
class Inspected:
    """The content of the logs read so far."""

    files: int = 0
    damaged: int = 0
    unknown: int = 0
    on_host: int = 0
    communicators: dict[str, int] = field(default_factory=dict)
    meetings: dict[tuple[int, str, int], _Meeting] = field(default_factory=dict)
    messages: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, text: str) -> None:
        """Adds the log of one process."""
        self.files += 1
        for line in text.splitlines():
            if not line.strip():
                continue
            try:
                document = mapping(parse_json(line))
            except ValueError:
                self.damaged += 1
                continue
            self._add(document)

    def _add(self, document: dict[str, Any]) -> None:
        head = mapping(document.get("header"))
        own, peers = mapping(document.get("coll_perf")), mapping(document.get("p2p_perf"))
        if not own and not peers:
            return
        rank, ranks = whole(head.get("rank"), MOST_RANKS), whole(head.get("n_ranks"), MOST_RANKS)
        prefix, perf = ("coll", own) if own else ("p2p", peers)
        size, time_us = whole(perf.get(f"{prefix}_msg_size_bytes")), number(perf.get(f"{prefix}_exec_time_us"))
        number_ = whole(perf.get(f"{prefix}_sn"))
        if rank is None or not ranks or size is None or not time_us or time_us > _LONGEST_US or number_ is None:
            self.damaged += 1
            return
        self.on_host += perf.get(f"{prefix}_timing_source") not in (None, "kernel_gpu")
        time_ns = max(round(time_us * 1e3), 1)
        if not own:
            self.messages[ranks, size].append(time_ns)
            return
        kind = kind_named(str(perf.get("coll"))[:100])
        if kind is None:
            self.unknown += 1
            return
        name = str(head.get("id"))[:100]
        communicator = self.communicators.setdefault(name, len(self.communicators))
        key = (communicator, kind, number_)
        self.meetings.setdefault(key, _Meeting(kind, size, ranks, {})).time_ns[rank] = time_ns

    def result(self) -> CommLog:
        """Bandwidths without waiting, and each rank's waits. Raises ``InputError`` where nothing was logged."""
        if not self.meetings and not self.messages:
            raise InputError("no collective is in the inspector's log: it records none below 8,192 bytes")
        whole_ones = {key: one for key, one in self.meetings.items() if len(one.time_ns) >= one.ranks}
        return CommLog(
            format="NCCL inspector",
            files=self.files,
            rows=(*_rows(self.meetings, set(whole_ones)), *self._message_rows()),
            waits=tuple(_waits(whole_ones)),
            communicators=len(self.communicators),
            notes=tuple(self._notes(len(self.meetings) - len(whole_ones))),
        )

    def _message_rows(self) -> Iterator[CommRow]:
        for (_, size), times in sorted(self.messages.items()):
            mean_ns = sum(times) / len(times)
            rates = bandwidth("send_recv", size, mean_ns, 2)
            yield CommRow(
                collective="send_recv", bytes=size, ranks=2, count=len(times), time_ns=mean_ns,
                algorithm_bytes_per_s=rates.algorithm_bytes_per_s, bus_bytes_per_s=rates.bus_bytes_per_s,
            )  # fmt: skip

    def _notes(self, partial: int) -> Iterator[str]:
        if partial:
            yield (
                f"{partial:,} collectives are not in the logs of all their ranks: waiting and transfer cannot be "
                f"separated "
                "there (give the logs of all processes; the inspector keeps the last 1,024 of a communicator)"
            )
        if self.unknown:
            yield f"{self.unknown:,} records are of functions that no convention is known for"
        if self.on_host:
            yield f"{self.on_host:,} records were timed by the CPU and not by the kernel"
        if self.damaged:
            yield f"{self.damaged:,} damaged records are left out"


def _rows(meetings: dict[tuple[int, str, int], _Meeting], complete: set[tuple[int, str, int]]) -> Iterator[CommRow]:
    grouped: defaultdict[tuple[str, int, int, bool], list[int]] = defaultdict(list)
    for key, one in meetings.items():
        grouped[one.kind, one.count_bytes, one.ranks, key in complete].append(min(one.time_ns.values()))
    for (kind, count_bytes, ranks, all_there), times in sorted(grouped.items()):
        total, mean_ns = convention(kind).total_bytes(count_bytes, ranks), sum(times) / len(times)
        rates = bandwidth(kind, total, mean_ns, ranks)
        yield CommRow(
            collective=kind,
            bytes=total,
            ranks=ranks,
            count=len(times),
            time_ns=mean_ns,
            algorithm_bytes_per_s=rates.algorithm_bytes_per_s,
            bus_bytes_per_s=rates.bus_bytes_per_s,
            without_waiting=all_there,
        )


@dataclass(slots=True)
class _Sums:
    collectives: int = 0
    wait_ns: int = 0
    transfer_ns: int = 0
    last: int = 0
    kept_waiting_ns: int = 0


def _waits(meetings: dict[tuple[int, str, int], _Meeting]) -> Iterator[RankWait]:
    sums: defaultdict[int, defaultdict[int, _Sums]] = defaultdict(lambda: defaultdict(_Sums))
    decided: Counter[int] = Counter()
    for (communicator, _, _), one in meetings.items():
        if one.ranks < 2:
            continue
        shortest, second, *_ = sorted(one.time_ns.values())
        decided[communicator] += second > shortest
        for rank, time_ns in one.time_ns.items():
            into = sums[communicator][rank]
            into.collectives += 1
            into.wait_ns += time_ns - shortest
            into.transfer_ns += shortest
            if time_ns == shortest < second:
                into.last += 1
                into.kept_waiting_ns += second - shortest
    for communicator, ranks in sorted(sums.items()):
        for rank, own in sorted(ranks.items()):
            known = decided[communicator]
            yield RankWait(
                communicator=communicator,
                rank=rank,
                collectives=own.collectives,
                wait_ns=own.wait_ns,
                transfer_ns=own.transfer_ns,
                last=own.last,
                decided=known,
                kept_waiting_ns=own.kept_waiting_ns,
                stands_out=stands_out(own.last, known, len(ranks), own.kept_waiting_ns, own.transfer_ns),
            )
