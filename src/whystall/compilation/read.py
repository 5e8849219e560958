"""Reads structured logs into the compile account: files, or folders of them, of one process or of many ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from whystall.compilation.events import breaks_of, cache_uses, failures_of, recompiles_of, saved_ns
from whystall.compilation.findings import Missed, findings_of, merged
from whystall.compilation.folding import UNREAD_KINDS, ProcessLog, wants_payload
from whystall.compilation.one_compile import Room
from whystall.compilation.results import Account, GraphRecordings, Phases, ProcessAccount
from whystall.compilation.wording import file_name
from whystall.errors import InputError
from whystall.trace.files import Limits
from whystall.trace.readers.structured_log import StructuredLog, is_structured_log

__all__ = ["find_logs", "holds_log", "read_account"]

_MOST_PROCESSES: Final = 10_000
_MOST_KEYS: Final = 200_000
_MOST_SHOWN: Final = 5
_MOST_LOOKED_AT: Final = 64
_HOW: Final = "set TORCH_TRACE=FOLDER before the job starts: torch writes one file a process there"


def read_account(paths: Sequence[Path], limits: Limits | None = None) -> Account:
    """The compile account of logs; a folder stands for the logs in it.

    Raises `InputError` where no path names a structured log, and where no process compiled anything.
    """
    read: list[tuple[str, ProcessLog]] = []
    notes: list[str] = []
    room = Room()
    logs, others = find_logs(paths)
    notes += [f"Left out: {other}." for other in others[:_MOST_SHOWN]]
    for path in logs:
        read += [(path.name, one) for one in _processes(path, limits or Limits(), room, notes)]
    if room.left_out:
        notes.append(f"{room.left_out:,} compiles or notes on them beyond what is kept are left out.")
    if not read:
        raise InputError(f"{_named(paths)}: these logs hold no compile; the functions ran without torch.compile")
    missed = _first_misses([one for _, one in read])
    accounts = sorted((_account(file, one, missed) for file, one in read), key=lambda one: (-one.total_ns, one.file))
    if not any(one.has_cache_records for _, one in read) and any(one.phases.inductor_ns for one in accounts):
        notes.append(
            "The logs have no records of the compile cache: torch 2.4 leaves it off unless "
            "TORCHINDUCTOR_FX_GRAPH_CACHE=1 is set."
        )
    stated = Counter(one.rank for one in accounts if one.rank is not None)
    twice = sorted(rank for rank, times in stated.items() if times > 1)
    if twice:
        named = ", ".join(map(str, twice[:_MOST_SHOWN])) + (" …" if len(twice) > _MOST_SHOWN else "")
        notes.append(f"Several processes state rank {named}: their logs may be of different jobs.")
    return Account(tuple(accounts), merged(one.findings for one in accounts), tuple(notes))


def find_logs(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The structured logs that paths name, each once, and a sentence, without folders, for each path that names none.

    Raises `InputError` where no path names one.
    """
    found: dict[Path, Path] = {}
    others: dict[str, str] = {}
    for path in paths:
        try:
            found |= {one.resolve(): one for one in _logs_at(path)}
        except InputError as error:
            others[str(error)] = str(error).replace(str(path), path.name)
    if not found:
        raise InputError("; ".join([*others][:_MOST_SHOWN]) + (" …" if len(others) > _MOST_SHOWN else ""))
    return list(found.values()), list(others.values())


def _logs_at(path: Path) -> list[Path]:
    if path.is_dir():
        inside = [one for one in sorted(path.rglob("*")) if one.is_file() and _is_log(one)]
        if not inside:
            raise InputError(f"{path}: no structured log of torch's compiler in this folder; {_HOW}")
        return inside
    if not is_structured_log(path):
        raise InputError(f"{path.name} is no structured log of torch's compiler; {_HOW}")
    return [path]


def holds_log(path: Path) -> bool:
    """Whether a file is a structured log, or one of the first files in a folder is."""
    if not path.is_dir():
        return _is_log(path)
    return any(_is_log(one) for one in islice(path.iterdir(), _MOST_LOOKED_AT) if one.is_file())


def _is_log(path: Path) -> bool:
    try:
        return is_structured_log(path)
    except InputError:
        return False


def _named(paths: Sequence[Path]) -> str:
    names = [file_name(str(path)) for path in paths[:_MOST_SHOWN]]
    return ", ".join(names) + (" …" if len(paths) > _MOST_SHOWN else "")


def _processes(path: Path, limits: Limits, room: Room, notes: list[str]) -> list[ProcessLog]:
    """The processes of a log that compiled anything. Problems of the file become notes."""
    log = StructuredLog(path, UNREAD_KINDS, wants_payload, limits)
    found: dict[tuple[bytes, int], ProcessLog] = {}
    unread = 0
    for record in log.records():
        key = (record.prefix, record.pid)
        if key not in found and len(found) >= _MOST_PROCESSES:
            unread += 1
            continue
        process = found.setdefault(key, ProcessLog(room, pid=record.pid or None))
        process.hear(record)
    for process in found.values():
        process.end()
    compiled = [one for one in found.values() if one.compiles]
    notes += [f"{path.name}: {warning}." for warning in log.warnings]
    if log.damaged:
        notes.append(f"{path.name}: left out {log.damaged:,} damaged record{'s' * (log.damaged > 1)}.")
    if log.foreign:
        notes.append(f"{path.name}: left out {log.foreign:,} line{'s' * (log.foreign > 1)} of no record.")
    if unread:
        notes.append(f"{path.name}: left out {unread:,} records of processes beyond the first {_MOST_PROCESSES:,}.")
    return compiled


def _first_misses(processes: Sequence[ProcessLog]) -> Missed:
    """When each key of a cache was first filled: at the end of the first compile that missed it."""
    found: Missed = {}
    for process in processes:
        for one in process.compiles:
            if one.start_ns is None or one.times is None:
                continue
            end = one.start_ns + one.total_ns
            for look in one.caches:
                key = f"{look.cache} {look.key}"
                if look.outcome == "miss" and look.key and len(found) < _MOST_KEYS:
                    found[key] = min(end, found.get(key, end))
    return found


def _account(file: str, process: ProcessLog, missed: Missed) -> ProcessAccount:
    timed = [one for one in process.compiles if one.times is not None]
    outer = [one for one in timed if not one.nested]
    total_ns = sum(one.total_ns for one in outer)
    sums: dict[str, int] = defaultdict(int)
    for one in outer:
        for name in ("dynamo_ns", "aot_ns", "inductor_ns", "code_ns", "kernels_ns"):
            sums[name] += getattr(one.phases, name)
    breaks, recompiles = breaks_of(process), recompiles_of(process)
    compiles = tuple(one.result() for one in timed)
    return ProcessAccount(
        file=file_name(file),
        rank=process.rank,
        pid=process.pid,
        torch=process.torch,
        total_ns=total_ns,
        restarts_ns=sum(one.restarts_ns for one in compiles if not one.nested),
        phases=Phases(**sums),
        compiles=compiles,
        breaks=breaks,
        recompiles=recompiles,
        caches=cache_uses(process),
        saved_ns=saved_ns(process),
        failures=failures_of(process),
        cuda_graphs=GraphRecordings(
            process.recordings, process.recording_ns, tuple(process.graph_skips.most_common(_MOST_SHOWN))
        ),
        autotune_ns=process.autotune_ns,
        unfinished=len(process.compiles) - len(timed),
        findings=findings_of(process, total_ns, breaks, recompiles, missed),
    )
