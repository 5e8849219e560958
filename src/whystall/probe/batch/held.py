"""The most bytes that tensors hold while something runs: by the allocator's own counters, or its events on a CPU."""

from __future__ import annotations

import gc
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from whystall.json_text import parse_json

_BEGIN = "whystall: steps"


def most_held_bytes(
    make: Callable[[], Callable[[], Any]], device: torch.device, *, calls: int = 1
) -> tuple[Callable[[], Any], int]:
    """The step that ``make`` returns, and the peak of tensors' memory during ``calls`` of it, earlier tensors included.

    On a CPU torch's allocator reports its memory only to its profiler, which sees frees of one thread.
    """
    gc.collect()
    if device.type == "cuda":
        step = make()
        torch.cuda.reset_peak_memory_stats(device)
        for _ in range(calls):
            step()
        torch.cuda.synchronize(device)
        return step, int(torch.cuda.max_memory_allocated(device))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the profiler's own, of its next version
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            step = make()
            with record_function(_BEGIN):
                for _ in range(calls):
                    step()
    return step, _highest_level(recorded)


def _highest_level(recorded: Any) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events = parse_json(path.read_text())["traceEvents"]
    began = min(one["ts"] for one in events if one.get("name") == _BEGIN)
    levels = [
        (one["ts"], int(one["args"]["Total Allocated"]), int(one["args"]["Bytes"]))
        for one in events
        if one.get("name") == "[memory]"
    ]
    if not levels:
        return 0
    first = min(levels)  # memory of earlier batches is not this one's
    before = first[1] - first[2]
    at_begin = max((level for level in levels if level[0] < began), default=first)
    return max(at_begin[1], *(total for ts, total, _ in levels if ts >= began)) - before
