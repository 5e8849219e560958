"""The log of a SGLang server: its settings, a line for each prefill batch, one for every 40th decode, retractions.

Lines as `python/sglang/srt/observability/scheduler_metrics_mixin.py` writes them, older ones with a full stop behind
"batch"; the times of single requests with ``--enable-request-time-stats-logging``. Request ids are not read.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from whystall.serving.readers.reader import Source
from whystall.serving.records import SGLANG, BatchLines, Part, QueueReadings, Settings

_MOST_LINES: Final = 4_000_000
_MOST_DURATIONS: Final = 500_000
_RANK: Final = re.compile(rb"^\[[0-9: .T-]{10,40}?((?: [A-Z_]{2,10}\d{1,5}){0,8})\] ")
_ENGINE: Final = re.compile(rb" DP(\d{1,5})\b")
_PREFILL: Final = re.compile(
    rb"Prefill batch[^,.]{0,20}[,.] #new-seq: (\d{1,9}), #new-token: (\d{1,9}), #cached-token: (\d{1,9}), "
)
_DECODE: Final = re.compile(rb"Decode batch[^,.]{0,20}[,.] #running-req: (\d{1,9})")
_RUNNING: Final = re.compile(rb"#running-req: (\d{1,9})")
_WAITING: Final = re.compile(rb"#queue-req: (\d{1,9})")
_USAGE: Final = re.compile(rb"(?:token|mamba) usage: (\d)\.(\d{2})")
_GRAPH: Final = re.compile(rb"(?:cuda|npu|cpu) graph: (True|False)")
_RETRACTED: Final = re.compile(rb"#retracted_reqs?: (\d{1,9})")
_DURATIONS: Final = re.compile(
    rb"Req Time Stats\(.{0,400}input len=(\d{1,9}), output len=(\d{1,9}), .{0,60}\): .{0,300}"
    rb"queue_duration=(\d{1,9})\.(\d{2})ms, forward_duration=(\d{1,9})\.(\d{2})ms"
)
_NUMBERS: Final = {
    "max_num_seqs": re.compile(rb"\bmax_running_requests=(\d{1,9})\b"),
    "max_num_batched_tokens": re.compile(rb"\bchunked_prefill_size=(\d{1,9})\b"),
    "block_tokens": re.compile(rb"\bpage_size=(\d{1,9})\b"),
}
_FLAGS: Final = {
    "prefix_caching": (rb"\bdisable_radix_cache=(True|False)\b", b"False"),
    "enforce_eager": (rb"\bdisable_cuda_graph=(True|False)\b", b"True"),
    "async_scheduling": (rb"\bdisable_overlap_schedule=(True|False)\b", b"False"),
}
_DEVICE: Final = re.compile(rb"\bdevice='(cpu|cuda|xpu|npu|hpu|musa)'")
_MARKS: Final = (b"Prefill batch", b"Decode batch", b"server_args=ServerArgs(", b"max_total_num_tokens=")


@dataclass(slots=True)
class _Counts:
    """The counts of all lines so far."""

    columns: tuple[array[int], array[int], array[int]] = field(
        default_factory=lambda: (array("q"), array("q"), array("q"))
    )
    prefills: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    decodes: int = 0
    without_graph: int = 0
    retracted: int = 0
    durations: list[tuple[int, int, int, int]] = field(default_factory=list)

    def readings(self) -> QueueReadings | None:
        """The columns, if there is any line on a batch."""
        if not self.columns[0]:
            return None
        running, waiting, cache = (np.array(column, dtype=np.int64) for column in self.columns)
        return QueueReadings(running, waiting, cache)

    def lines(self) -> BatchLines | None:
        """The counts, if there is any line."""
        if not self.columns[0] and not self.durations:
            return None
        return BatchLines(
            self.prefills,
            self.prompt_tokens,
            self.cached_tokens,
            self.decodes,
            self.without_graph,
            self.retracted,
            tuple(self.durations),
        )


class SglangLog:
    """Reads the log of a SGLang server."""

    kind = "SGLang server log"

    def recognizes(self, head: bytes) -> bool:
        """Whether lines of SGLang's own are in the head."""
        return any(mark in head for mark in _MARKS) and not head.lstrip().startswith((b"{", b"[{", b"# "))

    def read(self, source: Source) -> Part:
        """Settings, batches and the times of single requests."""
        counts = _Counts()
        found: dict[str, object] = {}
        engines: set[bytes] = set()
        for line in source.lines():
            if b" batch" in line or b"#retracted_req" in line or b"Req Time Stats(" in line:
                engines.update(_engine(line))
                _add(counts, line)
            elif b"ServerArgs(" in line or b"max_total_num_tokens=" in line:
                _settings(line, found)
            if len(counts.columns[0]) >= _MOST_LINES:
                source.notes.append(f"the log has more batches than are read: the first {_MOST_LINES:,} count")
                break
        running, waiting, _ = counts.columns
        return Part(
            self.kind,
            settings=Settings(server=SGLANG, **found),  # type: ignore[arg-type]  # by the names of its fields
            engines=max(len(engines), 1),
            waiting=tuple(zip(running, waiting, strict=True)),
            readings=counts.readings(),
            batches=counts.lines(),
        )


def _engine(line: bytes) -> tuple[bytes, ...]:
    """The rank of data parallelism in a line's prefix."""
    rank = _RANK.match(line)
    engine = None if rank is None else _ENGINE.search(rank[1])
    return () if engine is None else (engine[1],)


def _add(counts: _Counts, line: bytes) -> None:
    """Adds what a line says."""
    if (prefill := _PREFILL.search(line)) is not None:
        counts.prefills += 1
        counts.prompt_tokens += int(prefill[2])
        counts.cached_tokens += int(prefill[3])
        _add_load(counts, line, int(prefill[1]))
    elif _DECODE.search(line) is not None:
        counts.decodes += 1
        graph = _GRAPH.search(line)
        counts.without_graph += graph is not None and graph[1] == b"False"
        _add_load(counts, line, 0)
    elif (retracted := _RETRACTED.search(line)) is not None:
        counts.retracted += int(retracted[1])
    elif (times := _DURATIONS.search(line)) is not None and len(counts.durations) < _MOST_DURATIONS:
        queue, forward = (int(times[n]) * 1_000_000 + int(times[n + 1]) * 10_000 for n in (3, 5))
        counts.durations.append((queue, forward, int(times[1]), int(times[2])))


def _add_load(counts: _Counts, line: bytes, new: int) -> None:
    """Adds running and waiting requests and the fullest pool of the cache; -1 where a line does not have it."""
    running, waiting = _RUNNING.search(line), _WAITING.search(line)
    if running is None or waiting is None:
        return
    usage = [int(whole) * 1000 + int(part) * 10 for whole, part in _USAGE.findall(line)]
    for column, value in zip(
        counts.columns, (int(running[1]) + new, int(waiting[1]), max(usage, default=-1)), strict=True
    ):
        column.append(value)


def _settings(line: bytes, found: dict[str, object]) -> None:
    """Adds the settings that a line states; later lines have what the server made of them."""
    for name, pattern in _NUMBERS.items():
        if (stated := pattern.search(line)) is not None:
            found[name] = int(stated[1])
    for name, (text, on) in _FLAGS.items():
        if (flag := re.search(text, line)) is not None:
            found[name] = flag[1] == on
    if (device := _DEVICE.search(line)) is not None:
        found["device"] = device[1].decode()
    if b"ServerArgs(" in line:
        found["speculative"] = b"speculative_algorithm=None" not in line and b"speculative_algorithm=" in line
