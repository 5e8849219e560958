"""Finds flight recorder dumps, and their ranks: a dump does not state it, its file's name does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whystall.disk import reading
from whystall.errors import InputError
from whystall.fleet.recorder_dumps import Dump, read_dump
from whystall.run_folder.layout import rank_files

__all__ = ["RankDump", "read_dumps"]

_LARGEST: Final = 512 << 20  # bytes; 2,000 entries with deep stacks are about 3 MB
_RANK: Final = re.compile(r"rank[_-]?([0-9]{1,7})(?!.*rank[_-]?\d)", re.IGNORECASE)
_LAST_NUMBER: Final = re.compile(r"([0-9]{1,7})\D*$")
_SUFFIXES: Final = frozenset({".json", ".pickle", ".pkl", ".txt", ".log", ".dump"})
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class RankDump:
    """One rank's dump and where it was read."""

    rank: int
    path: Path
    dump: Dump


def read_dumps(paths: Sequence[Path]) -> tuple[list[RankDump], list[str]]:
    """The dumps by rank, one a rank, and a sentence for each file that was left out.

    A folder stands for the files in it. Raises ``InputError`` where a path does not exist, and where no file is a dump.
    """
    found: dict[int, RankDump] = {}
    told: list[str] = []
    twice: list[str] = []
    for path in _files(paths):
        one = _read(path, told)
        if one is None:
            continue
        other = found.get(one.rank)
        if other is not None:
            better, worse = (one, other) if _worth(one) > _worth(other) else (other, one)
            twice.append(f"{worse.path.name} (rank {one.rank}; {better.path.name} holds the same or more)")
            found[one.rank] = better
        else:
            found[one.rank] = one
    if not found:
        why = f": {'; '.join(told[:_MOST_NAMED])}" if told else ""
        raise InputError(f"no flight recorder dump in {', '.join(map(str, paths))}{why}")
    if twice:
        named = "; ".join(twice[:_MOST_NAMED]) + (" …" if len(twice) > _MOST_NAMED else "")
        told.append(f"left out, since another file is of the same rank: {named}")
    return [found[rank] for rank in sorted(found)], told


def rank_of(name: str) -> int | None:
    """The rank in a file's name: the number after "rank", else the last number in it.

    >>> rank_of("nccl_trace_rank_12"), rank_of("comm_lib_trace_rank_3.json"), rank_of("node2.7"), rank_of("trace")
    (12, 3, 7, None)
    """
    found = _RANK.search(name) or _LAST_NUMBER.search(name)
    return int(found[1]) if found is not None else None


def _worth(one: RankDump) -> tuple[bool, int]:
    """Stacks count before entries: pickles have them, JSON has not."""
    return any(entry.place is not None for entry in one.dump.entries), len(one.dump.entries)


def _files(paths: Iterable[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            own = rank_files(path, "flight")  # a run folder has much that is no dump
            files += own or sorted(one for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
        elif path.is_file():
            files.append(path)
        else:
            raise InputError(f"no such file or folder: {path}")
    return list(dict.fromkeys(files))


def _read(path: Path, told: list[str]) -> RankDump | None:
    try:
        if path.stat().st_size > _LARGEST:
            told.append(f"{path.name} is left out: larger than {_LARGEST >> 20} MiB, which no recorder writes")
            return None
        dump = read_dump(reading.content(path))
    except InputError as error:
        told.append(f"{path.name} is left out: {error}")
        return None
    except OSError as error:
        told.append(f"{path.name} is left out: {error.strerror or error}")
        return None
    stem = path.name.removesuffix(path.suffix) if path.suffix.lower() in _SUFFIXES else path.name
    rank = rank_of(stem)
    if rank is None:
        told.append(f"{path.name} is left out: its name holds no rank; end it in the rank's number, as torch does")
        return None
    if dump.skipped:
        told.append(f"{path.name}: {dump.skipped:,} damaged entries are left out")
    return RankDump(rank, path, dump)
