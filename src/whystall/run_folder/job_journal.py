"""Reads the journal that a watched process keeps of its parts, also where it was killed amid a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from whystall.errors import InputError
from whystall.json_text import NotJsonError, parse_json
from whystall.run_folder.job_times import MOST_PLACES, JobPlace, JobTimes, by_kind
from whystall.run_folder.layout import journals

_MOST_BYTES: Final = 16 << 20
_MOST_LINES: Final = 200_000
_LATEST_NS: Final = 1 << 62
_NUMBERS: Final = frozenset(
    (
        "rank",
        "process_unix_ns",
        "capture_unix_ns",
        "torch_unix_ns",
        "imported_unix_ns",
        "first_batch_unix_ns",
        "first_step_unix_ns",
        "last_step_unix_ns",
        "ended_unix_ns",
    )
)
_FIELDS: Final = 8
_Where = tuple[str, int, str, str, str, str, str]


def read_journals(folder: Path) -> dict[int, JobTimes]:
    """The times of each process of a run that kept a journal, by its process number."""
    return {pid: times for pid, path in journals(folder) if (times := read_journal(path)) is not None}


def the_first(journals: Mapping[int, JobTimes]) -> JobTimes | None:
    """The times of rank 0, of a job without ranks those of the process that began first; ``None``: no journal."""
    return min(journals.values(), key=_place_of, default=None)


def _place_of(times: JobTimes) -> tuple[bool, int, int]:
    return times.rank is None, times.rank or 0, times.process_unix_ns or times.capture_unix_ns or 0


def latest_place(path: Path) -> JobPlace | None:
    """The line at which the main thread was at last, with the time since it came there; ``None``: not known."""
    found: JobPlace | None = None
    for line in reversed(list(_documents(_text_of(path)))):
        looks: dict[_Where, int] = {}
        _add(looks, line.get("looks"))
        if not looks:
            continue
        longest = _places(looks)[0]
        if found is None:
            found = longest
        elif (longest.file, longest.line) == (found.file, found.line):
            found = msgspec.structs.replace(found, ns=found.ns + longest.ns)
        else:
            break
    return found


def read_journal(path: Path) -> JobTimes | None:
    """The times of one process; ``None`` where its file cannot be read or holds none."""
    numbers: dict[str, int] = {}
    looks: dict[int, dict[_Where, int]] = {}
    for line in _documents(_text_of(path)):
        numbers |= {name: at for name, at in line.items() if name in _NUMBERS and _is_instant(at)}
        if line.get("again"):
            looks = {0: _sum(looks)}
        step = line.get("step")
        if isinstance(step, int) and not isinstance(step, bool) and step >= 0:
            _add(looks.setdefault(step, {}), line.get("looks"))
    return _times(numbers, looks) if numbers else None


def _text_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return b""


def _documents(text: bytes) -> Iterator[dict[str, Any]]:
    for line in text.split(b"\n")[:_MOST_LINES]:
        try:
            found = parse_json(line)
        except (NotJsonError, InputError, msgspec.DecodeError):  # the last one may be cut
            continue
        if isinstance(found, dict):
            yield found


def _is_instant(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LATEST_NS


def _add(places: dict[_Where, int], looks: object) -> None:
    for row in looks if isinstance(looks, list) else ():
        if not isinstance(row, list) or len(row) != _FIELDS or not _is_instant(row[-1]) or not _is_instant(row[1]):
            continue
        file, line, *words, ns = row
        if all(isinstance(word, str) and len(word) < 1_000 for word in (file, *words)):
            where: _Where = (file, line, *words)
            places[where] = min(places.get(where, 0) + ns, _LATEST_NS - 1)


def _sum(looks: dict[int, dict[_Where, int]]) -> dict[_Where, int]:
    found: dict[_Where, int] = {}
    for places in looks.values():
        for where, ns in places.items():
            found[where] = min(found.get(where, 0) + ns, _LATEST_NS - 1)
    return found


def _times(numbers: dict[str, int], looks: dict[int, dict[_Where, int]]) -> JobTimes:
    last = max(looks, default=0)
    before, after = looks.pop(0, {}), looks.pop(last, {}) if last else {}
    before_steps, within_steps, after_steps = (_places(one) for one in (before, _sum(looks), after))
    if not after:
        numbers.pop("last_step_unix_ns", None)
    times = JobTimes(
        before=_within_limits(before_steps),
        within=_within_limits(within_steps),
        before_steps=before_steps[:MOST_PLACES],
        within_steps=within_steps[:MOST_PLACES],
        after_steps=after_steps[:MOST_PLACES],
    )
    return msgspec.structs.replace(times, **numbers)


def _places(looks: dict[_Where, int]) -> list[JobPlace]:
    found = [JobPlace(file, line, function, text, leaf, ns, work, role)
             for (file, line, function, text, leaf, work, role), ns in looks.items()]  # fmt: skip
    return sorted(found, key=lambda place: -place.ns)


def _within_limits(places: list[JobPlace]) -> dict[str, int]:
    """The time of each kind; of hostile numbers no more than a clock shows."""
    return {kind: min(ns, _LATEST_NS - 1) for kind, ns in by_kind(places).items()}
