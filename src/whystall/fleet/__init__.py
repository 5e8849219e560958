"""Analyses of many ranks: hanging ranks, slow ranks, and the cost for the whole job."""

from __future__ import annotations

from whystall.fleet.dump_files import RankDump, read_dumps
from whystall.fleet.hang_results import Hang, Hangs, Kind, RankCall, Wait
from whystall.fleet.hangs import find_hangs
from whystall.fleet.slowdowns import Share, Slowdowns, slowdowns

__all__ = [
    "Hang",
    "Hangs",
    "Kind",
    "RankCall",
    "RankDump",
    "Share",
    "Slowdowns",
    "Wait",
    "find_hangs",
    "read_dumps",
    "slowdowns",
]
