"""A cause: its entry stands beside this file, and the names of both make its id, example.short-kernels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.rule import Finder, Rule

CAUSE = cause_beside(__name__)


def in_trace(case: Case) -> Iterator[Standing]:
    for rank in case.ranks:
        median = int(np.median(rank.trace.device_events["duration_ns"].to_numpy()))
        if median < CAUSE.threshold("short_ns"):
            yield Standing(
                cause=CAUSE.id,
                attributed_ns=0,
                evidence=(evidence.time("median length of a kernel", median),),
                severity="minor",
                ranks=(rank.rank,),
            )


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events")),))
