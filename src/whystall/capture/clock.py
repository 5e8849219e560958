"""The clocks as Python brought them.

A job may replace the functions of ``time`` while it runs (``mock.patch``, freezegun), and counts on who asks the
replacements. freezegun looks for the functions in all modules: here they are behind an object of their own.
"""

from __future__ import annotations

import time
from functools import partial

monotonic = partial(time.monotonic)
monotonic_ns = partial(time.monotonic_ns)
perf_counter_ns = partial(time.perf_counter_ns)
thread_time_ns = partial(time.thread_time_ns)
time_ns = partial(time.time_ns)
