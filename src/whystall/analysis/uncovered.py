"""Device time with unknown work, by operator, with the reason: uncovered work is never a silent zero."""

from __future__ import annotations

from typing import Final

import numpy as np

from whystall.analysis.host_states import COLLECTIVE_NAME
from whystall.analysis.kernel_classes import COMMUNICATION, Classified
from whystall.analysis.operators import OperatorTree
from whystall.analysis.results import Device
from whystall.analysis.work import EventWork
from whystall.analysis.work_results import UncoveredWork
from whystall.cost.registry import kind_of
from whystall.trace.link import rows_of
from whystall.trace.model import Trace

NO_OPERATOR: Final = "no operator launched it, or its launch is not in the file"
NO_SHAPES: Final = "its shapes were not recorded (record_shapes=True)"
NO_FORMULA: Final = "whystall has no formula for it (whystall.cost.register adds one)"
NO_ARGUMENTS: Final = "its recorded arguments do not determine its work"
NO_WORK: Final = "it moves or starts data without a cost of its own"
_MOST_ROWS: Final = 100


def uncovered_work(
    trace: Trace, device: Device, tree: OperatorTree, owner: EventWork, classified: Classified
) -> list[UncoveredWork]:
    """The innermost operators of events that no cost covers, most time first; ``None`` stands for no operator.

    Communication is left out: it has a table of its own, and no formula could give it FLOPs.
    """
    events = trace.device_events
    open_ = (events["device"].to_numpy() == device.device) & (owner.owner < 0)
    open_ &= classified.class_of != COMMUNICATION
    rows = rows_of(events["operator"])[open_]
    duration = events["duration_ns"].to_numpy()[open_]
    shaped = trace.operators["input_dims"].is_not_null().to_numpy()
    name = np.where(rows >= 0, tree.name_of[np.maximum(rows, 0)], -1) if len(tree.name_of) else rows * 0 - 1
    known = (rows >= 0) & (shaped[np.maximum(rows, 0)] if len(shaped) else rows >= 0)
    key = name.astype(np.int64) * 2 + known
    found = []
    for one in np.unique(key).tolist():
        mine = key == one
        operator = None if one < 0 else tree.names[one // 2]
        if operator is not None and _communicates(operator):
            continue
        found.append(
            UncoveredWork(
                operator=operator,
                events=int(np.count_nonzero(mine)),
                device_ns=int(duration[mine].sum()),
                because=_reason(operator, shaped=bool(one % 2)),
            )
        )
    return sorted(found, key=lambda row: (-row.device_ns, row.operator or "", row.because))[:_MOST_ROWS]


def _communicates(operator: str) -> bool:
    return kind_of(operator) == "communication" or COLLECTIVE_NAME.search(operator) is not None


def _reason(operator: str | None, *, shaped: bool) -> str:
    if operator is None:
        return NO_OPERATOR
    kind = kind_of(operator)
    if kind == "view":
        return NO_WORK
    if kind is None or kind == "composite":
        return NO_FORMULA
    return NO_ARGUMENTS if shaped else NO_SHAPES
