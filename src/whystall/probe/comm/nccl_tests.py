"""A sweep in the layout of nccl-tests' JSON (``-J``, version 3), for the tools that read that.

nccl-tests measures one collective a run: here ``experiment_name`` is each row's collective. Its times are microseconds
and means over iterations, its rates 10^9 bytes per second. Nothing of the environment is written.
"""

from __future__ import annotations

from statistics import fmean, median, pstdev
from typing import Any, Final

import msgspec

from whystall.probe.comm.plan import ELEMENT_BYTES, groups_of
from whystall.probe.comm.results import REDUCING, ROOTED, CommProbe, Measured
from whystall.vocabulary.collectives import bandwidth, convention

VERSION: Final = 3


def nccl_tests_json(found: CommProbe) -> str:
    """The sweep as text of JSON."""
    sizes = [row.bytes for row in found.results] or [0]
    body = {
        "version": VERSION,
        "start_time": found.measured_on,
        "args": [],
        "env": [],
        "nccl_version": None,
        "config": {
            "nthreads": 1,
            "ngpus": 1 if found.kind == "gpu" else 0,
            "minimum_bytes": min(sizes),
            "maximum_bytes": max(sizes),
            "step_factor": 4,
            "per_iter_timing": "true",
            "blocking_collectives": "false",
            "devices": [
                {"rank": rank, "group": number, "device": rank, "device_info": found.device}
                for number, members in enumerate(groups_of(found.ranks, found.split))
                for rank in members
            ],
        },
        "results": [_row(row) for row in found.results],
        "end_time": found.measured_on,
    }
    return msgspec.json.format(msgspec.json.encode(body), indent=1).decode()


def _row(row: Measured) -> dict[str, Any]:
    slowest = [max(each) / 1e3 for each in zip(*row.times_ns, strict=True)]
    mean_us = fmean(slowest)
    rates = bandwidth(row.collective, row.bytes, mean_us * 1e3, row.ranks)
    each = row.ranks if convention(row.collective).total == "count x ranks" else 1
    reduces = row.collective in REDUCING
    return {
        "experiment_name": row.collective,
        "size": row.bytes,
        "count": row.bytes // ELEMENT_BYTES // each,
        "type": "float",
        "redop": "sum" if reduces else "none",
        "root": "0" if row.collective in ROOTED else "-1",
        "out_of_place": None,
        "in_place": {
            "time": mean_us,
            "alg_bw": rates.algorithm_bytes_per_s / 1e9,
            "bus_bw": (rates.bus_bytes_per_s or 0.0) / 1e9,
            "nwrong": "N/A",
        },
        "in_place_per_iter": _iterations(row, slowest),
        "actual_iterations": len(slowest),
    }


def _iterations(row: Measured, slowest: list[float]) -> dict[str, Any]:
    ordered, mean_us = sorted(slowest), fmean(slowest)
    spread = pstdev(slowest)
    return {
        "skipped_iterations": 0,
        "min_us": ordered[0],
        "max_us": ordered[-1],
        "avg_us": mean_us,
        "p50_us": median(ordered),
        "p95_us": ordered[min(int(len(ordered) * 0.95), len(ordered) - 1)],
        "p99_us": ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)],
        "stdev_us": spread,
        "cv_pct": 100 * spread / mean_us,
        "times_us": slowest,
        "per_process_max_times_us": [[time / 1e3 for time in own] for own in row.times_ns],
    }
