"""Operators that the host carries out itself in a job on a device."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from whystall.cost import kind_of
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import matching
from whystall.trace.link import rows_of
from whystall.vocabulary.copies import BOTH_WAYS

_OPERATORS: Final = "aten::"
_NO_WORK: Final = (None, "view", "composite", "communication")
_PASSES: Final = re.compile(r"^(autograd::|Torch-Compiled|CompiledFunction|_*[A-Z])")
"""Operators that are whole passes, or functions of the user's in Python."""
_READS: Final = frozenset({"aten::item", "aten::_local_scalar_dense", "aten::pin_memory", "aten::_pin_memory"})
"""These wait for a device, or ask its driver for memory."""


def carried_out_by_the_host(rank: RankCase) -> Mask:
    """The operators with work of their own that launch nothing, neither themselves nor by what they call.

    None where the trace does not link kernels to operators: then it is not known.
    """
    table = rank.trace.operators
    nothing = np.zeros(len(table), np.bool_)
    launcher = rows_of(rank.trace.device_events["operator"])
    if table.is_empty() or not (launcher >= 0).any():
        return nothing
    calls = nothing.copy()
    for operator in (launcher, rows_of(rank.trace.runtime_calls["operator"])):
        calls[operator[operator >= 0]] = True
    computes = matching(table["name"], _computes)
    return computes & ~calls & ~rank.workings.tree.around(calls)


def goes_on_at_the_host(rank: RankCase, least_ns: float) -> tuple[Mask, Mask]:
    """Operators that copy tensors to the host and work on there, and the copies that they launch.

    The own time of such an operator is at least ``least_ns``; operators that it calls copy to the host and back, since
    its result is a tensor on the device.
    """
    table, events = rank.trace.operators, rank.trace.device_events
    nothing = np.zeros(len(table), np.bool_)
    copies = np.zeros(len(events), np.bool_)
    if table.is_empty():
        return nothing, copies
    launcher = rows_of(events["operator"])
    found = matching(table["name"], lambda name: not _PASSES.match(name)) & (table["self_ns"].to_numpy() >= least_ns)
    for way in BOTH_WAYS:
        moves = rank.device_named(lambda name, way=way: any(part in name for part in way))  # type: ignore[misc]
        moves &= launcher >= 0
        calls = nothing.copy()
        calls[launcher[moves]] = True
        found &= rank.workings.tree.around(calls) & ~calls
        copies |= moves
    below = np.append(rank.workings.tree.below(found), False)
    return found, copies & below[launcher]


def _computes(name: str) -> bool:
    return name.startswith(_OPERATORS) and name not in _READS and kind_of(name) not in _NO_WORK
