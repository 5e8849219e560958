"""An allocator that gives its cached memory back to find some for a request."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed, Standing
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.allocation import allocation_calls
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.vocabulary.runtime_calls import is_call

CAUSE: Final = cause_beside(__name__)
_EMPTIES: Final = re.compile(r"\bempty_cache\b|emptyCache")
_LEFT_OUT: Final = Remedy(
    text="Leave torch.cuda.empty_cache() out of the loop: it gives cached memory back to the driver, and the next step "
    "asks for it again. The allocator reuses its cache by itself under any settings.",
    patch="-torch.cuda.empty_cache()",
    risk="Other processes on the device get no memory from this one meanwhile.",
)


def in_trace(case: Case) -> Iterator[Replayed]:
    """Calls that allocate in steps most of which also free memory."""
    for found in allocation_calls(case, CAUSE.id, frees=True):
        [rank] = [one for one in case.ranks if (one.rank,) == found.ranks]
        yield replace(found, remedy=_LEFT_OUT) if _is_asked_for(case, rank) else found


def _is_asked_for(case: Case, rank: RankCase) -> bool:
    """Whether the program itself makes most of the frees, as its Python frames show."""
    begin, end, _ = rank.intervals(rank.host_named(_EMPTIES.search, ("python_functions",)))
    frees = case.nodes(rank, host=rank.host_named(lambda name: is_call(name, "free"), ("runtime_calls",)))
    within = frees & case.host_within(rank, begin, end) if len(begin) else np.zeros(len(frees), np.bool_)
    return case.time_of(within) * 2 > case.time_of(frees)


def in_samples(case: Case) -> Iterator[Standing]:
    """Retries as the allocator counts them; reasoned from torch's documentation, not yet seen on a device."""
    for run in case.runs:
        for one in run.allocators:
            if one.retries:
                yield Standing(
                    cause=CAUSE.id,
                    attributed_ns=0,
                    evidence=(
                        evidence.count("retries of the allocator", one.retries),
                        evidence.count("within this many steps", one.steps),
                        evidence.size("allocated at the peak", one.peak_allocated_bytes),
                    ),
                    severity="minor",
                    method="samples: the allocator counts retries, not what they cost",
                    ranks=(run.rank,),
                    confidence=0.8,
                )


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "device_events", "launch_calls")), Finder(in_samples, ("samples",))))
