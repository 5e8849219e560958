"""Further ranks of the job, of which summaries are at hand and no traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.results import Device


@dataclass(frozen=True, slots=True, eq=False)
class Summarised:
    """How many they are, their devices, and what they say of the collectives of those whose traces are at hand.

    ``attended`` has, by rank, the starts (ns on its own clock) of its collectives to which all ranks of the group came,
    none of the others later than those at hand: who was waited for is seen without them.
    """

    ranks: int = 0
    devices: Sequence[Device] = ()
    attended: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)


NONE = Summarised()
