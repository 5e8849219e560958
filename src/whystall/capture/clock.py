"""The clocks as Python brought them.

A job may replace the functions of ``time`` (``mock.patch``, freezegun), and may count the calls of its replacements.
freezegun replaces these functions in every module; wrapped in ``partial`` it does not find them.
"""

from __future__ import annotations

import time
from functools import partial

monotonic = partial(time.monotonic)
monotonic_ns = partial(time.monotonic_ns)
perf_counter_ns = partial(time.perf_counter_ns)
thread_time_ns = partial(time.thread_time_ns)
time_ns = partial(time.time_ns)
boottime_ns = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
