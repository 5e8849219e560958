"""Optimizers that step on the host, and the work that their state takes there."""

from __future__ import annotations

from typing import Final

import numpy as np

from whystall.analysis.host_states import INPUT_NAME
from whystall.diagnosis.case import Case
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import matching
from whystall.trace.link import rows_of
from whystall.vocabulary.copies import TO_HOST
from whystall.vocabulary.runtime_calls import is_call

_COPIES: Final = frozenset({"aten::copy_", "aten::to", "aten::_to_copy", "aten::_foreach_copy_"})
"""Operators that move an optimizer's state, and do nothing else."""


def work_on_state(case: Case, rank: RankCase, *, gradients: bool = False) -> Mask:
    """The work around an optimizer's steps on the host: from the call before each to the last copy of its state.

    Gradients are scaled and clipped there, and updated weights go to the device. The next batch and other work of the
    host are left out. With ``gradients`` it includes the copies of gradients to the host, which backward passes partly
    hide.
    """
    calls = rank.trace.runtime_calls
    start = calls["ts_ns"].to_numpy()
    until = np.sort(start + calls["duration_ns"].to_numpy())
    launches = np.sort(start[matching(calls["name"], lambda name: is_call(name, "kernel", "graph"))])
    begin, end, _ = rank.optimizer_steps
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], end[order]
    before = np.append(until, 0)[np.searchsorted(until, begin, side="right") - 1]
    first = np.maximum(before, np.append(0, end[:-1]))
    last = np.append(launches, end.max(initial=0))[np.searchsorted(launches, end)]
    table = rank.trace.operators
    others = (rows_of(table["parent"]) < 0) & ~matching(table["name"], _COPIES.__contains__)
    hosts = [table["ts_ns"].to_numpy()[others], rank.trace.steps["ts_ns"].to_numpy()]
    hosts.append(rank.intervals(rank.host_named(INPUT_NAME.search, ("annotations", "operators")))[0])
    begun = np.sort(np.concatenate(hosts))
    last = np.maximum(np.minimum(last, np.append(begun, last.max(initial=0))[np.searchsorted(begun, end)]), end)
    copied = rank.device_named(lambda name: gradients and any(part in name for part in TO_HOST))
    return case.host_within(rank, first, last) | case.nodes(rank, device=rank.launched_in(first, last) | copied)
