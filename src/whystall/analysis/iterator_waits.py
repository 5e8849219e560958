"""Waits of the training thread for its next batch, within iterators other than torch's loader.

Its behaviour identifies such an iterator (of batchgenerators, ffcv, WebDataset, or a user's own), not its name: within
its ``__next__`` the thread sleeps, or waits for a queue, a lock or a pipe, until another thread or process has a batch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.intervals import within
from whystall.trace.columns import codes, matching
from whystall.trace.link import rows_of
from whystall.trace.model import Trace
from whystall.trace.steps import OPTIMIZER_STEP, is_of_an_engine
from whystall.vocabulary.copies import TO_DEVICE, TO_HOST

_ITERATOR: Final = re.compile(r": __next__$|^<built-in (function|method) next\b")
_QUEUE: Final = re.compile(r"(^|[/\\])(queue|multiprocessing[/\\](queues|connection))\.py\(\d+\): (get|recv)$")
_WAIT: Final = re.compile(
    rf"{_QUEUE.pattern}"
    r"|^<built-in (function|method) (sleep|acquire|select|poll|recv\w*|wait\w*|TFE_Py_FastPathExecute|share_outputs)\b"
    r"|(^|[/\\])threading\.py\(\d+\): (wait|wait_for|join)$|(^|[/\\])selectors\.py\(\d+\): select$"
    r"|(^|[/\\])multiprocessing[/\\](connection|synchronize)\.py\(\d+\): (wait|poll|_poll|recv_bytes|_recv\w*)$"
    r"|(^|[/\\])concurrent[/\\]futures[/\\]_base\.py\(\d+\): (result|wait)$"
)
# An iterator that calls the model's backward pass is the training loop, not a loader.
_TRAINS: Final = re.compile(r"(^|[/\\])torch[/\\](_tensor\.py|autograd[/\\]\w+\.py)\(\d+\): backward$")
# Within these the thread waits for other ranks.
_DISTRIBUTED: Final = re.compile(r"(^|[/\\])torch[/\\]distributed[/\\]")
_PRODUCTS: Final = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution"})
_MOSTLY: Final = 0.5


def iterator_waits(trace: Trace, torchs: re.Pattern[str]) -> NDArray[np.bool_]:
    """Which calls of Python functions are such waits, on the thread that runs the steps where that is known.

    Where an iterator's calls mostly wait, all of their time counts, as for torch's own loader: the rest hands the
    batch over. An iterator that multiplies matrices is the loop of a model. A wait for a queue counts without an
    iterator around it if a copy to the device comes next, and no copy to the host came before: after such a copy the
    wait may be for an answer.
    ``torchs`` matches the names of torch's own loader, whose waits are known without this.
    """
    frames = trace.python_functions
    waits = matching(frames["name"], _WAIT.search)
    if not waits.any() or is_of_an_engine(trace.steps_from) or not _trains(trace):
        return waits & False
    if not trace.steps.is_empty():
        waits &= np.isin(frames["thread"].to_numpy(), trace.steps["thread"].to_numpy())
    begin, end = _times(trace, "python_functions")
    computes = np.sort(np.concatenate([_begins_of_training(trace), _begins_of_products(trace)]))
    iterates = matching(frames["name"], _ITERATOR.search) & (_count_in(computes, begin, end) == 0)
    inside = within(begin, begin[iterates], end[iterates])
    queues = matching(frames["name"], _QUEUE.search) & _copied_next(trace, end)
    queues &= ~_answers(trace, begin, end, queues)
    by_torch = np.zeros(len(begin), np.bool_)
    for table in ("annotations", "python_functions"):
        named = matching(getattr(trace, table)["name"], lambda name: torchs.search(name) or _DISTRIBUTED.search(name))
        by_torch |= within(begin, *(times[named] for times in _times(trace, table)))
    waits &= ~by_torch
    thread = frames["thread"].to_numpy()
    calls = iterates & ~by_torch & np.isin(thread, thread[waits])
    found: NDArray[np.bool_] = waits & (inside | queues)
    found |= calls & _mostly(frames["name"], _waited_ns(begin, end, waits), end - begin, calls)
    return found


def _waited_ns(begin: NDArray[np.int64], end: NDArray[np.int64], waits: NDArray[np.bool_]) -> NDArray[np.int64]:
    """How long a thread waits within each interval, for waits that may be nested."""
    order = np.flatnonzero(waits)[np.lexsort((-end[waits], begin[waits]))]
    ahead = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, end[order]))[:-1]
    order = order[begin[order] >= ahead]
    sums = np.append(0, np.cumsum(end[order] - begin[order]))
    waited: NDArray[np.int64] = sums[np.searchsorted(begin[order], end)] - sums[np.searchsorted(begin[order], begin)]
    return waited


def _mostly(
    names: pl.Series, part: NDArray[np.int64], whole: NDArray[np.int64], chosen: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Which calls have a name whose chosen calls together spend most of their time in ``part``."""
    name = codes(names)
    count = int(name.max(initial=0)) + 1
    parts, wholes = (np.bincount(name[chosen], weights=of[chosen], minlength=count) for of in (part, whole))
    mostly: NDArray[np.bool_] = (parts > _MOSTLY * wholes)[name]
    return mostly


def _times(trace: Trace, table: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rows = getattr(trace, table)
    begin = rows["ts_ns"].to_numpy()
    return begin, begin + rows["duration_ns"].to_numpy()


def _begins_of_training(trace: Trace) -> NDArray[np.int64]:
    """When backward passes and steps of optimizers begin, in order."""
    passes = trace.python_functions["ts_ns"].to_numpy()[matching(trace.python_functions["name"], _TRAINS.search)]
    updates = trace.annotations["ts_ns"].to_numpy()[matching(trace.annotations["name"], OPTIMIZER_STEP.search)]
    return np.sort(np.concatenate([passes, updates]))


def _begins_of_products(trace: Trace) -> NDArray[np.int64]:
    """When operators that multiply matrices or convolve begin."""
    return trace.operators["ts_ns"].to_numpy()[matching(trace.operators["name"], _PRODUCTS.__contains__)]


def _answers(
    trace: Trace, begin: NDArray[np.int64], end: NDArray[np.int64], queues: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Which waits for a queue follow a copy to the host that was launched since the wait before."""
    out = np.zeros(len(begin), np.bool_)
    rows = np.flatnonzero(queues)[np.argsort(begin[queues], kind="stable")]
    since = np.append(np.iinfo(np.int64).min, end[rows])[:-1]
    launched, copies = _launched(trace, TO_HOST)
    out[rows] = _count_in(launched[copies], since, begin[rows]) > 0
    return out


def _launched(trace: Trace, way: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """When device events were launched, in order, and which of them are copies of one way."""
    launch = rows_of(trace.device_events["launch"])
    known = launch >= 0
    at = trace.runtime_calls["ts_ns"].to_numpy()[launch[known]]
    copies = matching(trace.device_events["name"], lambda name: any(part in name for part in way))[known]
    order = np.argsort(at, kind="stable")
    return at[order], copies[order]


def _trains(trace: Trace) -> bool:
    return bool(len(_begins_of_training(trace))) or bool((trace.operators["forward_thread"].fill_null(0) > 0).any())


def _count_in(at: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of some instants, in order, lie in each interval."""
    return np.searchsorted(at, end) - np.searchsorted(at, begin)


def _copied_next(trace: Trace, at: NDArray[np.int64]) -> NDArray[np.bool_]:
    """After which instants the next thing that any thread launches is a copy to the device."""
    launched, copies = _launched(trace, TO_DEVICE)
    return np.append(copies, np.False_)[np.searchsorted(launched, at)]
