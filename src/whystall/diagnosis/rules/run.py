"""What a recording or the samples of a whole run show as such: an empty window, growth, workers, contention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from whystall.diagnosis.case import Case
from whystall.diagnosis.rule import Candidate, Rule
from whystall.diagnosis.rules import facts

# Less of a recording with device events says little of a job.
_MOSTLY_EMPTY: Final = 0.1


def perturbed(case: Case) -> Iterator[Candidate]:
    """A recording in which the device hardly works, without step marks that would say what is usual."""
    for rank in case.ranks:
        if not rank.on_device or len(rank.trace.steps) > 1:
            continue
        events = rank.trace.device_events
        tables = (rank.trace.operators, rank.trace.annotations, rank.trace.python_functions, rank.trace.runtime_calls)
        starts = [int(table["ts_ns"][0]) for table in tables if len(table)]
        end = int((events["ts_ns"] + events["duration_ns"]).max())  # type: ignore[arg-type]
        whole = max(end - min([*starts, int(events["ts_ns"][0])]), 1)
        busy = sum(device.busy_ns for device in rank.analysis.devices)
        if busy >= _MOSTLY_EMPTY * whole or not _waits_at_once(rank.trace.device_events["ts_ns"].to_numpy(), whole):
            continue
        yield Candidate(
            cause="capture.perturbed",
            attributed_ns=whole - busy,
            evidence=(
                facts.time("length of the recording", whole),
                facts.time("of it with device events", busy),
            ),
            saved=(0.0, 0.0, 0.0),
            method="none: the recording says too little",
            ranks=(rank.rank,),
            hidden=f"the recording is mostly empty: device events fill {busy / 1e6:.3g} of {whole / 1e6:.4g} ms, and a "
            "single gap is most of the rest; record a window in which the device works",
        )


def _waits_at_once(start: np.ndarray, whole: int) -> bool:
    """Whether one gap between device events is more than half of the recording."""
    gaps = np.diff(start)
    return bool(len(gaps)) and int(gaps.max()) * 2 > whole


RULES: Final = (Rule("capture.perturbed", ("trace", "device"), perturbed),)
