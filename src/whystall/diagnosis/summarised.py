"""Further ranks of the job, with summaries and without traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.results import Device


@dataclass(frozen=True, slots=True, eq=False)
class Summarised:
    """Their number, their devices, and their view of the collectives of ranks with traces.

    ``attended`` has, by rank, the starts (ns on its own clock) of its collectives in which all ranks of the group met
    and no summarised one was last: the straggler is visible without them.
    """

    ranks: int = 0
    devices: Sequence[Device] = ()
    attended: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)


NONE = Summarised()
