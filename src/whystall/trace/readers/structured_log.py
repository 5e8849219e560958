"""The structured log of torch's compiler (TORCH_TRACE), record by record, of any size.

A record is a line in glog's form whose message is a JSON object; lines that begin with a tab are its payload. The
object holds the kind, with the fields of that kind, and the ids of the compile. Payloads hold the model's code: only
those that a caller wants are kept, and no line is kept longer than the next record. Source of the format:
torch/_logging/_internal.py, `trace_structured`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from whystall.json_text import NotJsonError, parse_json
from whystall.trace.files import HEAD_BYTES, Limits, gunzipped, head_of, is_gzip, opened

__all__ = ["LogRecord", "StructuredLog", "is_structured_log"]

_CHUNK: Final = 1 << 20
_LONGEST_LINE: Final = 16 << 20
_LARGEST_PAYLOAD: Final = 16 << 20
_MOST_HELD: Final = 64 << 20
"""Bytes of payloads that are held at once: of several ranks whose lines alternate."""
_MOST_PREFIXES: Final = 4096
_LARGEST_PID: Final = 1 << 22
"""The largest process id of Linux; torch 2.4 and 2.5 write the id of a thread in its place, which is an address."""
_PREFIX: Final = rb"(?P<prefix>\[(?:rank|default)(?P<rank>\d{1,7})\]: ?)?"
_HEADER: Final = re.compile(
    _PREFIX + rb"[VDIWEC]\d{4} \d\d:\d\d:\d\d\.\d+ +(?P<number>\d{1,20}) [^\s\]]+:\d+\] (?P<body>\{.*)", re.DOTALL
)
_PAYLOAD: Final = re.compile(_PREFIX + rb"\t")
_FIRST_KEY: Final = re.compile(rb'\{\s*"([A-Za-z_]+)"')
_ENVELOPE: Final = frozenset(
    {"rank", "frame_id", "frame_compile_id", "attempt", "compiled_autograd_id", "subgraph_name", "has_payload", "stack"}
)


@dataclass(slots=True)
class LogRecord:
    """One record. ``name`` is that of an artifact, else empty; ``pid`` is 0 where the log has the thread instead."""

    kind: str
    name: str
    value: Any
    rank: int | None
    """The rank that the record states, or the prefix of its line."""
    pid: int
    compiled_autograd_id: int | None
    frame_id: int | None
    frame_compile_id: int | None
    attempt: int
    digest: str
    """The MD5 sum of the payload as the log states it; empty where there is no payload."""
    prefix: bytes = b""
    """The mark of the rank before the line, as a launcher writes it."""
    payload: bytes = b""


@dataclass(slots=True)
class _Pending:
    record: LogRecord
    wanted: bool
    parts: list[bytes] = field(default_factory=list)
    size: int = 0


Wanted = Callable[[LogRecord], bool]


@dataclass(slots=True)
class StructuredLog:
    """A log to be read once, and the count of its problems, which grows meanwhile.

    ``skipped_kinds`` are not even parsed. Payloads are kept where ``wants_payload`` says so, up to 16 MiB.
    """

    path: Path
    skipped_kinds: frozenset[str] = frozenset()
    wants_payload: Wanted = lambda _: False
    limits: Limits = field(default_factory=Limits)
    n_records: int = 0
    damaged: int = 0
    """Records whose JSON cannot be parsed, or that have no kind."""
    foreign: int = 0
    """Lines that belong to no record."""
    payload_bytes: int = 0
    warnings: list[str] = field(default_factory=list)
    _held: int = 0

    def records(self) -> Iterator[LogRecord]:
        """The records in the order in which they end. Raises `InputError` where the file cannot be opened."""
        pending: dict[bytes, _Pending | None] = {}
        for line in self._lines():
            if line[:1] == b"\t":  # most lines: no pattern is tried on them
                self.payload_bytes += len(line) - 1
                self._append(pending.get(b""), line, 1)
                continue
            header = _HEADER.match(line)
            if header is not None:
                prefix = header["prefix"] or b""
                done = pending.get(prefix)
                if done is not None:
                    yield self._ended(done)
                if prefix in pending or len(pending) < _MOST_PREFIXES:
                    pending[prefix] = self._begun(header)
                continue
            found = _PAYLOAD.match(line)
            if found is None:
                self.foreign += bool(line.strip())
                continue
            self.payload_bytes += len(line) - found.end()
            self._append(pending.get(found["prefix"] or b""), line, found.end())
        for last in pending.values():
            if last is not None:
                yield self._ended(last)

    def _begun(self, header: re.Match[bytes]) -> _Pending | None:
        """The record that a line begins, if it is wanted and sound."""
        self.n_records += 1
        body = header["body"]
        first = _FIRST_KEY.match(body)
        if first is not None and first[1].decode() in self.skipped_kinds:
            return None
        try:
            record = _record(parse_json(body), header)
        except (NotJsonError, ValueError):
            self.damaged += 1
            return None
        if record.kind in self.skipped_kinds:
            return None
        return _Pending(record, wanted=bool(record.digest) and self.wants_payload(record))

    def _append(self, pending: _Pending | None, line: bytes, begin: int) -> None:
        if pending is None or not pending.wanted or pending.size > _LARGEST_PAYLOAD or self._held > _MOST_HELD:
            return
        pending.parts.append(line[begin:])
        pending.size += len(line) + 1
        self._held += len(line) + 1

    def _ended(self, pending: _Pending) -> LogRecord:
        self._held -= pending.size
        pending.record.payload = b"\n".join(pending.parts)
        pending.parts = []
        return pending.record

    def _lines(self) -> Iterator[bytes]:
        """The lines without their ends; a line that is too long for a record is cut."""
        with opened(self.path) as (file, size):
            packed = is_gzip(file)
            pieces = gunzipped(file, self.warnings) if packed else iter(lambda: file.read(_CHUNK), b"")
            most = min(
                self.limits.raw_bytes,
                max(self.limits.unpacked_times * size, self.limits.unpacked_bytes) if packed else 1 << 62,
            )
            done, rest, cut = 0, b"", False
            for piece in pieces:
                done += len(piece)
                if done > most:
                    self.warnings.append(f"the file unpacks to more than what is read ({most:,} bytes)")
                    return
                first, *others = piece.split(b"\n")
                if not cut:
                    rest += first
                if others:
                    yield rest.removesuffix(b"\r")
                    for line in others[:-1]:
                        yield line.removesuffix(b"\r")
                    rest, cut = others[-1], False
                if len(rest) > _LONGEST_LINE:
                    rest, cut = rest[:_LONGEST_LINE], True
            if rest:
                yield rest


def is_structured_log(path: Path) -> bool:
    """Whether a file's first 64 KiB hold a record of the structured log. Raises `InputError` where it is empty."""
    return holds_record(head_of(path).content)


def holds_record(head: bytes) -> bool:
    r"""Whether one of the lines is the beginning of a record.

    >>> holds_record(b'noise\nV1128 11:59:04.163000 25813 torch/_dynamo/utils.py:2350] {"chromium_event": {}}\n')
    True
    >>> holds_record(b'V1128 11:59:04.163000 25813 torch/_dynamo/utils.py:2350] compiling f\n')
    False
    """
    return any(
        (found := _HEADER.match(line)) is not None and _FIRST_KEY.match(found["body"]) is not None
        for line in head[:HEAD_BYTES].split(b"\n")
    )


def _record(raw: Any, header: re.Match[bytes]) -> LogRecord:
    """The record of a JSON object. Raises `ValueError` where it has no kind."""
    if not isinstance(raw, dict):
        raise ValueError("a record is a JSON object")  # noqa: TRY004 - the same as another damage
    kind = next((key for key in raw if key not in _ENVELOPE), None)  # torch writes it first
    if kind is None:
        raise ValueError("a record has a kind")
    value = raw[kind]
    name = value.get("name") if kind == "artifact" and isinstance(value, dict) else ""
    number = int(header["number"])
    stated = _whole(raw.get("rank"))
    return LogRecord(
        kind=kind,
        name=name if isinstance(name, str) else "",
        value=value,
        rank=int(header["rank"]) if stated is None and header["rank"] is not None else stated,
        pid=number if number <= _LARGEST_PID else 0,
        compiled_autograd_id=_whole(raw.get("compiled_autograd_id")),
        frame_id=_whole(raw.get("frame_id")),
        frame_compile_id=_whole(raw.get("frame_compile_id")),
        attempt=_whole(raw.get("attempt")) or 0,
        prefix=header["prefix"] or b"",
        digest=digest if isinstance(digest := raw.get("has_payload"), str) else "",
    )


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 31 else None
