"""Loops that do the same to one tensor after the other: each tensor costs its calls and kernels.

The operators repeat in the same order, and their sizes vary from one repetition to the next as those of parameters do.
An algorithm that goes on with one tensor repeats its operators at one size, and cannot be joined.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.intervals import within
from whystall.diagnosis.case import Case
from whystall.diagnosis.detectors.discarded import outside_of_autograd
from whystall.diagnosis.detectors.kernels import close_up, prompt
from whystall.diagnosis.detectors.stretches import work_within
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Change, Mask, Times
from whystall.trace.columns import codes, distinct, judged, matching
from whystall.trace.link import rows_of
from whystall.trace.recorded_sizes import first_size

FEW_KERNELS: Final = 4
"""The kernels that are left of a loop: a list of tensors takes one or a few."""
_TAKES_A_LIST: Final = re.compile(
    r"^aten::(abs|acos|add|addcdiv|addcmul|asin|atan|ceil|clamp|clamp_max|clamp_min|copy|cos|cosh|div|erf|erfc|exp|expm1"
    r"|floor|frac|lerp|lgamma|linalg_vector_norm|log|log10|log1p|log2|maximum|minimum|mul|neg|norm|pow|reciprocal|round"
    r"|rsqrt|sigmoid|sign|sin|sinh|sqrt|sub|tan|tanh|trunc)_?$"
)
"""Operators with a form torch._foreach_* (torch/_refs and native_functions.yaml of torch 2.4 to 2.14)."""
_BETWEEN_HOST_AND_DEVICE: Final = re.compile(r"^Memcpy (HtoD|DtoH|HtoH)|^CopyHostToDevice|^CopyDeviceToHost")


class Least(NamedTuple):
    """The properties of a loop that is worth joining.

    The fewest kernels, repetitions of its operators and sizes of its tensors, the least share of repetitions that are
    alike, and the most operators for one tensor.
    """

    kernels: int
    times: int
    sizes: int
    alike: float
    longest: int


@dataclass(frozen=True, slots=True)
class LoopsOverTensors:
    """The operators of all such loops, the device events launched in them, and when each loop begins and ends.

    ``pattern`` names the operators for each tensor of the longest loop.
    """

    calls: Mask
    launched: Mask
    begin: Times
    end: Times
    pattern: tuple[str, ...]


def loops_over_tensors(rank: RankCase, least: Least) -> LoopsOverTensors | None:
    """The loops on the training thread that are worth joining, outside of autograd and optimizers."""
    rows, run = _candidates(rank)
    takes_a_list = matching(rank.trace.operators["name"], lambda name: bool(_TAKES_A_LIST.search(name)))
    table = rank.trace.operators
    names, code = distinct(table["name"]), codes(table["name"])
    at = table["ts_ns"].to_numpy()
    end = at + table["duration_ns"].to_numpy()
    calls = np.zeros(len(table), np.bool_)
    times: list[tuple[int, int]] = []
    longest: tuple[int, tuple[str, ...]] = (0, ())
    for own in np.split(rows, np.flatnonzero(np.diff(run)) + 1):
        length = _length_of_pattern(code[own], least) if len(own) >= least.kernels else 0
        if not length or len(own) < least.times * length or not takes_a_list[own[:length]].all():
            continue
        if _sizes(rank, own) < least.sizes:
            continue
        calls[own] = True
        times.append((int(at[own[0]]), int(end[own].max())))
        longest = max(longest, (len(own), tuple(str(names[one]) for one in code[own[:length]])))
    if not times:
        return None
    begin, ends = (np.array(column, np.int64) for column in zip(*times, strict=True))
    return LoopsOverTensors(calls, rank.launched_in(begin, ends), begin, ends, longest[1])


def _candidates(rank: RankCase) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The operators that launched kernels, by time, and the number of the stretch without a model's pass for each."""
    table, events = rank.trace.operators, rank.trace.device_events
    at = table["ts_ns"].to_numpy()
    operator = rows_of(events["operator"])
    on_device = (operator >= 0) & ~matching(events["name"], lambda name: bool(_BETWEEN_HOST_AND_DEVICE.search(name)))
    launched = np.zeros(len(table), np.bool_)
    launched[operator[on_device]] = True
    begin, end, _ = rank.optimizer_steps
    own = (table["thread"].to_numpy() == rank.training) & launched & outside_of_autograd(rank)
    own &= (rank.workings.work.dense == 0) & ~within(at, begin, end)
    passes = np.sort(np.concatenate([at[launched & ~own], begin, end]))
    rows = np.flatnonzero(own)
    rows = rows[np.argsort(at[rows], kind="stable")]
    return rows, np.searchsorted(passes, at[rows])


def _length_of_pattern(code: NDArray[np.int64], least: Least) -> int:
    """After how many operators they repeat; 0: they do not."""
    for length in range(1, min(least.longest, len(code) // 2) + 1):
        if np.mean(code[length:] == code[:-length]) >= least.alike:
            return length
    return 0


def _sizes(rank: RankCase, rows: NDArray[np.intp]) -> int:
    """How many sizes the first tensors of some operators have."""
    return len({size for size in judged(rank.trace.operators.select("input_dims")[rows], first_size) if size})


def joined(
    case: Case, rank: RankCase, own: Mask, times: tuple[Times, Times], *, left: float, takes_ns: float
) -> tuple[Mask, Mask, Change]:
    """The nodes of some device events, those of the host within intervals, and the change that joins the events.

    ``left`` is the share of the host's time that stays, and ``takes_ns`` what the joined events take (0: not known, a
    third is assumed).
    """
    graph = case.replayed
    nodes, host = case.nodes(rank, device=own), work_within(case, rank, *times)
    duration = graph.duration.astype(np.float64)
    total = float(duration[nodes].sum())
    duration[nodes] *= min(takes_ns / max(total, 1.0), 1.0) if takes_ns else 1 / 3
    duration[host] *= min(left, 1.0)
    change = Change(duration=duration.astype(np.int64), lag=close_up(case, nodes, 0), delay=prompt(case, nodes))
    return nodes, host, change
