"""The function that is mapped over files: reads one, analyses it, and returns no more than summaries."""

from __future__ import annotations

import contextlib
import gc
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from whystall.analysis.kernel_classes import KernelClass, KernelClasses
from whystall.analysis.results import EventClass
from whystall.analysis.trace_analysis import analyze_trace
from whystall.errors import InputError
from whystall.fleet.inputs import RecordedFile
from whystall.fleet.remote import fetched, is_address
from whystall.fleet.summary import RankSummary, summary_of
from whystall.fleet.summary_cache import SummaryCache
from whystall.hardware.calibration import Calibration
from whystall.trace.files import Limits
from whystall.trace.load import load_traces
from whystall.trace.manifest import Stated, as_stated
from whystall.trace.model import Trace
from whystall.trace.readers.registry import installed_readers
from whystall.trace.recordings import holding
from whystall.trace.windows import as_one

FUNCTION: Final = "whystall.fleet.summarise:summarise"
_MOST_BYTES: Final = 256 << 20
_LEVEL: Final = 6


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """How the files of a run are read and analysed. ``kernel_classes`` are class, family, pattern and its flags."""

    kernel_classes: tuple[tuple[EventClass, str, str, int], ...] = ()
    calibrations: tuple[Calibration, ...] = ()
    limits: Limits | None = None

    def classes(self) -> KernelClasses:
        """The kernel classes in use."""
        return tuple(
            KernelClass(class_, family, re.compile(pattern, flags))
            for class_, family, pattern, flags in self.kernel_classes
        )


class Window(msgspec.Struct, frozen=True):
    """A recording of a rank: its file, its number in the file, and the shift of its events in ns."""

    file: RecordedFile
    place: int
    moved_ns: int


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The recordings to summarise: each recording in a file, or the windows of one rank as one recording.

    Without a ``cache`` folder nothing is kept. ``scratch`` is the folder for fetched files.
    """

    of: RecordedFile | list[Window]
    manner: Manner
    cache: str | None = None
    scratch: str | None = None

    @property
    def files(self) -> list[RecordedFile]:
        """The files that are read."""
        return [one.file for one in self.of] if isinstance(self.of, list) else [self.of]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a task: a summary for each recording, and sentences on unreadable ones."""

    summaries: list[RankSummary] = []
    failures: list[str] = []


def in_manner(kernel_classes: KernelClasses, calibrations: Sequence[Calibration], limits: Limits | None) -> Manner:
    """The manner from an analysis's arguments."""
    classes = tuple((one.class_, one.family, one.pattern.pattern, one.pattern.flags) for one in kernel_classes)
    return Manner(kernel_classes=classes, calibrations=tuple(calibrations), limits=limits)


def summarise(item: bytes) -> bytes:
    """The packed `Outcome` for a packed `Task`: from the cache where it is known, else from its files."""
    task = msgspec.msgpack.decode(item, type=Task)
    store = SummaryCache(Path(task.cache)) if task.cache and all(file.mark for file in task.files) else None
    what = (msgspec.msgpack.encode(task.of), msgspec.msgpack.encode(task.manner), _readers())
    key = store.key(*what) if store else ""
    known = store.read(key) if store else None
    if known is not None and _opens(known):
        return known
    outcome = _outcome(task)
    gc.collect()
    body = zlib.compress(msgspec.msgpack.encode(outcome), _LEVEL)
    if store and outcome.summaries:
        store.write(key, body)
    return body


def unpacked(body: bytes) -> Outcome:
    """The outcome of a file. Raises ``ValueError`` (msgspec's errors are some) for invalid bytes."""
    opened = zlib.decompressobj()
    try:
        text = opened.decompress(body, _MOST_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    return msgspec.msgpack.decode(text, type=Outcome)


@contextlib.contextmanager
def at_hand(address: str, scratch: str | None) -> Iterator[Path]:
    """The file as a path: its own, or that of a temporary copy of a remote one."""
    if is_address(address):
        with fetched(address, Path(scratch) if scratch else None) as path:
            yield path
    else:
        yield Path(address)


def recordings_in(
    path: Path, stated: Stated | None, limits: Limits | None, failures: list[str], *, cache: bool
) -> list[Trace]:
    """The recordings in a file that hold anything; on the others, and on a file that cannot be read, a sentence."""
    readers, unusable = installed_readers()
    failures += unusable
    try:
        found = load_traces(path, cache=cache, readers=readers, limits=limits)
    except InputError as error:
        failures.append(str(error))
        return []
    return as_stated(holding(found, failures), stated, failures)


def joined(
    windows: Sequence[Window], limits: Limits | None, failures: list[str], *, cache: bool, scratch: str | None = None
) -> Trace:
    """The windows of a rank as one recording. Raises `InputError` where one of them is not there any more."""
    traces = []
    for one in windows:
        with at_hand(one.file.address, scratch) as path:
            found = recordings_in(path, one.file.stated, limits, failures, cache=cache and not one.file.is_remote)
        if one.place >= len(found):
            raise InputError(f"{one.file.name}: what was recorded is not there any more")
        traces.append(found[one.place])
    return as_one(traces, [one.moved_ns for one in windows])


def _outcome(task: Task) -> Outcome:
    """The outcome of a reading. A file that cannot be analysed does not stop the others."""
    failures: list[str] = []
    summaries: list[RankSummary] = []
    manner = task.manner
    try:
        traces = _traces(task, failures)
        for place in range(len(traces)):
            trace, traces[place] = traces[place], None  # type: ignore[call-overload]  # one after another is given up
            analysis = analyze_trace(trace, classes=manner.classes(), calibrations=manner.calibrations)
            summaries.append(summary_of(trace, analysis, place))
    except InputError as error:
        failures.append(str(error))
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - named, and left out
        failures.append(f"{task.files[-1].name}: could not be analysed ({type(error).__name__}: {error})")
    return Outcome(summaries=summaries, failures=failures)


def _traces(task: Task, failures: list[str]) -> list[Trace]:
    """The recordings to summarise; adds a sentence on unreadable ones."""
    if isinstance(task.of, list):
        return [joined(task.of, task.manner.limits, failures, cache=False, scratch=task.scratch)]
    with at_hand(task.of.address, task.scratch) as path:
        return recordings_in(path, task.of.stated, task.manner.limits, failures, cache=False)


def _readers() -> str:
    """The readers and their versions: another version may read the same file otherwise."""
    return " ".join(f"{reader.name}/{reader.version}" for reader in installed_readers()[0])


def _opens(body: bytes) -> bool:
    try:
        unpacked(body)
    except ValueError:
        return False
    return True
