"""The log of a vLLM server: its settings, a line per engine step, a line of counts every few seconds.

Lines as vLLM 0.32 writes them (`v1/metrics/loggers.py`, `v1/core/kv_cache_utils.py`), the steps with
``--enable-logging-iteration-details``.
"""

from __future__ import annotations

import re
from array import array
from typing import Final

import numpy as np

from whystall.serving.readers.reader import Source
from whystall.serving.records import Iterations, Part, Settings

_MOST_STEPS: Final = 4_000_000
_MOST_COUNTS: Final = 100_000
_STEP: Final = re.compile(
    rb"Engine (\d{1,6}): Iteration\(\d{1,12}\): (\d{1,9}) context requests, (\d{1,9}) context tokens, "
    rb"(\d{1,9}) generation requests, (\d{1,9}) generation tokens, iteration elapsed time: (\d{1,9})\.(\d{1,6}) ms"
    rb"( \(dummy\))?(?:, \w{1,8} KV cache usage: (\d{1,3})\.(\d))?"
)
_COUNTS: Final = re.compile(rb"Engine \d{1,6}: Avg prompt .{0,200}?Running: (\d{1,9}) reqs, Waiting: (\d{1,9}) reqs")
_NUMBERS: Final = {
    "max_num_seqs": re.compile(rb"'max_num_seqs': (\d{1,9})\b"),
    "max_num_batched_tokens": re.compile(rb"'max_num_batched_tokens': (\d{1,9})\b"),
    "block_tokens": re.compile(rb"'block_size': (\d{1,9})\b"),
    "kv_blocks": re.compile(rb"'num_gpu_blocks_override': (\d{1,9})\b"),
}
_CHUNKED: Final = re.compile(rb"Chunked prefill is enabled with max_num_batched_tokens=(\d{1,9})\b")
_ENGINE: Final = re.compile(rb"Initializing a V1 LLM engine \(v(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?)")
_DEVICE: Final = re.compile(rb"device_config=(cpu|cuda|xpu|tpu|hpu|rocm)\b")
_MARKS: Final = (
    b"non-default args: {",
    b"Initializing a V1 LLM engine",
    b"Engine 0",
    b"(APIServer pid=",
    b"(EngineCore",
)


class VllmLog:
    """Reads the log of a vLLM server."""

    kind = "vLLM server log"

    def recognizes(self, head: bytes) -> bool:
        """Whether lines of vLLM's own are in the head."""
        return any(mark in head for mark in _MARKS) and not head.lstrip().startswith((b"{", b"["))

    def read(self, source: Source) -> Part:
        """Settings, steps and counts."""
        columns = [array("q") for _ in range(7)]
        found: dict[str, object] = {}
        counts: list[tuple[int, int]] = []
        engines: set[bytes] = set()
        for line in source.lines():
            step = _STEP.search(line) if b"Iteration(" in line else None
            if step is not None:
                engines.add(step[1])
                _add(columns, step)
            elif b"Running:" in line and (count := _COUNTS.search(line)) and len(counts) < _MOST_COUNTS:
                counts.append((int(count[1]), int(count[2])))
            elif b"args: {" in line or b"Initializing" in line or b"scheduling" in line or b"Chunked" in line:
                _settings(line, found)
            if len(columns[0]) >= _MOST_STEPS:
                source.notes.append(f"the log has more steps than are read: the first {_MOST_STEPS:,} count")
                break
        steps = Iterations(*(np.array(column, dtype=np.int64) for column in columns)) if columns[0] else None
        return Part(
            self.kind,
            iterations=steps,
            settings=Settings(**found),  # type: ignore[arg-type]  # by the names of its fields
            engines=max(len(engines), 1),
            waiting=tuple(counts),
        )


def is_step_line(line: bytes) -> bool:
    """Whether a line is that of an engine step."""
    return _STEP.search(line) is not None


def _add(columns: list[array[int]], step: re.Match[bytes]) -> None:
    for column, group in zip(columns, (2, 3, 4, 5), strict=False):
        column.append(int(step[group]))
    columns[4].append(int(step[6]) * 1_000_000 + int(step[7].ljust(6, b"0")))
    columns[5].append(-1 if step[9] is None else int(step[9]) * 10 + int(step[10]))
    columns[6].append(step[8] is not None)


def _settings(line: bytes, found: dict[str, object]) -> None:
    """Adds the settings that a line states."""
    if b"non-default args: {" in line:
        for name, pattern in _NUMBERS.items():
            if (number := pattern.search(line)) is not None:
                found[name] = int(number[1])
        found["logits_processors"] = b"'logits_processors': [" in line
    elif (engine := _ENGINE.search(line)) is not None:
        found["version"] = engine[1].decode()
        found["enforce_eager"] = b"enforce_eager=True" in line
        found["prefix_caching"] = b"enable_prefix_caching=True" in line
        found["speculative"] = b"speculative_config=None" not in line
        if (device := _DEVICE.search(line)) is not None:
            found["device"] = device[1].decode()
    elif (chunked := _CHUNKED.search(line)) is not None:
        found["max_num_batched_tokens"] = int(chunked[1])
    elif b"Asynchronous scheduling is" in line:
        found["async_scheduling"] = b"is enabled" in line
