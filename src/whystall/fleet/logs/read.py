"""Finds the format of a log by content: names of files are ignored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from whystall.disk import reading
from whystall.errors import InputError
from whystall.fleet.logs import deepspeed, inspector, nccl_tests, ras, traces
from whystall.fleet.logs.results import CommLog
from whystall.fleet.logs.values import documents, mapping, text_of

__all__ = ["is_operation_log", "read_logs"]

_PARQUET: Final = b"PAR1"
_KNOWN: Final = (
    "an operation log (Parquet), text or JSON of nccl-tests, JSON lines of NCCL's inspector, an answer of NCCL's RAS, "
    "DeepSpeed's comms log or a trace of the PyTorch profiler"
)
_LINES_LOOKED_AT: Final = 50


def is_operation_log(path: Path) -> bool:
    """Whether a file is to be read as an operation log: it is Parquet, or is called so."""
    try:
        with reading.opened(path) as file:
            return file.read(len(_PARQUET)) == _PARQUET or path.suffix == ".parquet"
    except OSError:
        return False


def read_logs(paths: Sequence[Path], group_sizes: dict[str | None, int]) -> list[CommLog]:
    """The results of the logs; those of one inspected job, its traces, and answers of one RAS are joined.

    A folder stands for the files in it. ``group_sizes`` is for logs without them (DeepSpeed's). Raises ``InputError``
    if a file is none of the formats; in a folder only if no file is.
    """
    read = _Read(group_sizes)
    for path, must in _files(paths):
        try:
            read.add(path, named=must)
        except InputError as error:
            if must:
                raise InputError(f"{path.name}: {error}") from None
    found = read.result()
    if not found:
        raise InputError(f"nothing in {', '.join(path.name for path in paths)} is {_KNOWN}")
    return found


@dataclass(slots=True)
class _Read:
    """The logs read so far: those that stand alone, and those that only give a result together."""

    group_sizes: dict[str | None, int]
    alone: list[CommLog] = field(default_factory=list)
    inspected: inspector.Inspected = field(default_factory=inspector.Inspected)
    answers: list[ras.Answer] = field(default_factory=list)
    answered: int = 0
    recorded: list[Path] = field(default_factory=list)
    named_trace: bool = False

    def add(self, path: Path, *, named: bool) -> None:
        """Takes in a file. Raises ``InputError`` where it is none of the formats, and was ``named`` or holds text."""
        if traces.is_trace(path):
            self.recorded.append(path)
            self.named_trace |= named
            return
        if not named and _holds_no_text(path):
            return
        text = text_of(path)
        own = _answers(text)
        if own is not None:
            self.answers += own
            self.answered += 1
        elif _is_inspected(text):
            self.inspected.add(text)
        else:
            self.alone.append(_single(text, self.group_sizes))

    def result(self) -> list[CommLog]:
        """The results of all; traces that lie beside logs in a folder may hold no collective."""
        found = list(self.alone)
        if self.inspected.files:
            found.append(self.inspected.result())
        if self.answered:
            found.append(ras.result(self.answers, self.answered))
        if self.recorded:
            try:
                found.append(traces.from_traces(self.recorded))
            except InputError:
                if self.named_trace or not found:
                    raise
        return found


def _holds_no_text(path: Path) -> bool:
    """Whether a file found in a folder, a core dump for instance, is none of these logs by its first bytes."""
    try:
        with reading.opened(path) as file:
            start = file.read(1 << 12)
    except OSError:
        return True
    return b"\0" in start and not start.startswith(b"\x1f\x8b")


def _files(paths: Sequence[Path]) -> list[tuple[Path, bool]]:
    """The files, and whether each was named itself."""
    out: list[tuple[Path, bool]] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(one for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
            out += [(one, False) for one in inside]
        else:
            out.append((path, True))
    return out


def _answers(text: str) -> list[ras.Answer] | None:
    """The answers of RAS in a text, none where it is cut off, or None where it is no such text."""
    if ras.is_text(text):
        return ras.answers_of_text(text)
    if not text.lstrip().startswith("{"):
        return None
    known = [ras.answer_of_json(each) for each in map(mapping, documents(text)) if ras.is_json(each)]
    if not known and '"communicators_count"' in text[:4096]:
        return []
    return known or None


def _is_inspected(text: str) -> bool:
    lines = [line for line in text[: 1 << 20].splitlines()[:_LINES_LOOKED_AT] if line.lstrip().startswith("{")]
    return any(inspector.is_line(mapping(next(documents(line), None))) for line in lines)


def _single(text: str, group_sizes: dict[str | None, int]) -> CommLog:
    if text.lstrip().startswith("{"):
        document = mapping(next(documents(text), None))
        if nccl_tests.is_json(document):
            return nccl_tests.from_json(document)
        if '"results"' in text or '"nccl_version"' in text[:65536]:
            raise InputError("it begins like JSON of nccl-tests and is damaged or cut off")
    if deepspeed.is_text(text):
        return deepspeed.from_text(text, group_sizes)
    if nccl_tests.is_text(text):
        return nccl_tests.from_text(text)
    raise InputError(f"it is none of {_KNOWN}")
