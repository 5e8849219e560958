"""The pace at which a loader's workers make batches: other repairs do not shorten steps that wait for these."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

import numpy as np

from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Times

_ENTRIES: Final = tomllib.loads((files("whystall.diagnosis") / "supply.toml").read_text("utf-8"))
_FEWEST_BATCHES: Final = int(_ENTRIES["fewest_batches"]["value"])
_LEAST_WAIT: Final = float(_ENTRIES["least_wait"]["value"])
_LEAST_WAIT_NS: Final = float(_ENTRIES["least_wait_ns"]["value"])
_NEARLY_ALL: Final = float(_ENTRIES["nearly_all"]["value"])
_HANDS_OUT: Final = re.compile(r"_MultiProcessingDataLoaderIter\.__next__")


@dataclass(frozen=True, slots=True)
class Supply:
    """The begin and end of each wait for a batch on the training thread, and the mean time between two batches (ns)."""

    begin: Times
    end: Times
    pace_ns: float

    def taken_ns(self, begin: int, end: int) -> int:
        """The time in which the workers make the batches that arrive between two instants."""
        return round(self.pace_ns * int(np.count_nonzero((self.end > begin) & (self.end <= end))))


def supply_of(rank: RankCase) -> Supply | None:
    """A rank's supply if its training thread waits for nearly every batch, so that its workers never rest."""
    begin, end, _ = rank.intervals(rank.host_named(_HANDS_OUT.search, ("annotations", "operators")))
    begin, end = np.sort(begin), np.sort(end)
    if len(end) < _FEWEST_BATCHES:
        return None
    between = np.diff(end)
    least = max(_LEAST_WAIT * float(np.median(between)), _LEAST_WAIT_NS)
    waited = float(np.mean(end - begin >= least))
    return Supply(begin, end, float(between.mean())) if waited >= _NEARLY_ALL else None
