"""A torch-profiler trace of the server's worker: how a step divides into forward pass, choice of tokens and engine.

The worker's annotation wraps the forward pass alone (vLLM's `execute_model`). The operators between two annotations
choose the tokens: logits processors, grammar, sampling. After the last of them the engine's Python runs until the next
annotation. Only operators of the annotation's own thread count.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from whystall.serving.readers.reader import Source
from whystall.serving.records import Part, StepParts
from whystall.trace.load import load_trace
from whystall.trace.model import Trace
from whystall.vocabulary.engine_steps import engine_step

_FEWEST: Final = 5


class WorkerTrace:
    """Reads a trace of a worker."""

    kind = "worker trace"

    def recognizes(self, head: bytes) -> bool:
        """Whether it is a trace by the profiler that names vLLM."""
        return b'"vllm_version' in head and (b'"traceEvents"' in head or b'"schemaVersion"' in head)

    def read(self, source: Source) -> Part:
        """The parts of a step, in the median over the recorded ones."""
        parts = step_parts(load_trace(source.path, cache=False, limits=source.limits))
        return Part(self.kind, step_parts=parts)


def step_parts(trace: Trace) -> StepParts | None:
    """The median parts of a trace's engine steps; ``None`` for few steps, and for the API server's trace."""
    kinds = [engine_step(str(name)) for name in trace.annotations["name"].to_list()]
    is_step = np.array([kind not in (None, "idle") for kind in kinds], dtype=np.bool_)
    if int(is_step.sum()) <= _FEWEST:
        return None
    begin, length, thread = (trace.annotations[name].to_numpy()[is_step] for name in ("ts_ns", "duration_ns", "thread"))
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], (begin + length)[order]
    own = trace.operators["thread"].to_numpy() == thread[0]
    starts = trace.operators["ts_ns"].to_numpy()[own]
    ends = starts + trace.operators["duration_ns"].to_numpy()[own]
    by_time = np.argsort(starts, kind="stable")
    starts, ends = starts[by_time], ends[by_time]
    found = []
    for done, following in zip(end[:-1].tolist(), begin[1:].tolist(), strict=True):
        first, last = np.searchsorted(starts, (done, following))
        if last > first:
            chosen = min(int(ends[first:last].max()), following)
            found.append((int(starts[first]) - done, chosen - int(starts[first]), following - chosen))
    if len(found) < _FEWEST:
        return None
    before, choosing, after = (int(one) for one in np.median(np.array(found), axis=0))
    return StepParts(len(begin), int(np.median(end - begin)), choosing, before + after, len(trace.device_events) > 0)
