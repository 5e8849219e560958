"""Communication in logs without a trace: nccl-tests, NCCL's inspector and RAS, DeepSpeed's comms log."""

from __future__ import annotations

from whystall.fleet.logs.read import is_operation_log, read_logs
from whystall.fleet.logs.results import Behind, CommLog, CommRow, Missing, RankWait
from whystall.fleet.logs.traces import is_trace

__all__ = ["Behind", "CommLog", "CommRow", "Missing", "RankWait", "is_operation_log", "is_trace", "read_logs"]
