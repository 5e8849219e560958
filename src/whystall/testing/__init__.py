"""Helpers for tests of code that reads traces: a builder of small traces whose truth is known.

>>> from whystall.testing import trace
>>> built = trace().launch("gemm", at=0, runs_at=5_000, lasts=2_000).launch("relu", at=1_000, runs_at=7_000, lasts=500)
>>> built.load().device_events["duration_ns"].to_list()
[2000, 500]
"""

from whystall.testing.builder import TraceBuilder, trace

__all__ = ["TraceBuilder", "trace"]
