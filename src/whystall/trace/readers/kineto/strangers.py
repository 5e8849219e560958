"""Marks events of processes other than the recorded one: merged files and system profilers add some.

They are no part of the job's time, even if their frames have the same names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.trace.readers.kineto import categories
from whystall.trace.readers.kineto.raw import RawTable

# Only the recorded process calls operators and the runtime; frames and annotations are written for any.
_WORK: Final = (categories.OPERATOR, categories.RUNTIME)
FOREIGN_KINDS: Final = (categories.PYTHON, categories.ANNOTATION)
"""Kinds of events that another process's are set aside of."""
_NO_PROCESS: Final = "0"  # Kineto writes it where it does not know the thread of a frame


def foreign_threads(threads: pl.DataFrame, groups: Mapping[str, Sequence[RawTable]]) -> NDArray[np.bool_]:
    """Which threads are of a process that neither called an operator nor the runtime, where another one did."""
    works = np.zeros(len(threads), np.bool_)
    for table in (table for kind in _WORK for table in groups[kind]):
        works[table.thread] = True
    own = set(threads["pid"].filter(pl.Series(works)).to_list())
    known = [pid is None or pid == _NO_PROCESS or pid in own for pid in threads["pid"].to_list()]
    return ~np.array(known, np.bool_) if own else np.zeros(len(threads), np.bool_)
