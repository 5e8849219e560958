"""How many damaged inputs the fuzz tests make, and from which seed on.

``WHYSTALL_FUZZ_CASES`` sets how many (`make fuzz` makes 2,000). ``WHYSTALL_FUZZ_DAY`` moves all seeds: `.ci/run` gives
the day of the year, so that each day tries other damage. A failure names its seed.
"""

from __future__ import annotations

import os
from typing import Final

CASES: Final = int(os.environ.get("WHYSTALL_FUZZ_CASES", "400"))
FIRST: Final = int(os.environ.get("WHYSTALL_FUZZ_DAY", "0")) * 2_000


def seeds(count: int) -> range:
    """The seeds of ``count`` cases."""
    return range(FIRST, FIRST + count)
