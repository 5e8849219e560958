"""Holistic Trace Analysis on a trace or a folder of ranks, in an environment of its own: loading, and analyses.

    python run_hta.py TRACE|FOLDER load|analyze

The analyses are those that a verdict needs. Prints {"cpu_s": ...}: CPU seconds without the import of the library,
those of its worker processes included.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import pandas as pd  # noqa: F401 - its import belongs to the library's, not to the work
from hta.trace_analysis import TraceAnalysis
from peak import cpu_s, peak_bytes


def analyze(analysis: TraceAnalysis, *, ranks: bool) -> dict[str, str]:
    """Runs the analyses whose results whystall's report holds too; returns those that failed, with why."""
    calls = {
        "temporal breakdown": lambda: analysis.get_temporal_breakdown(visualize=False),
        "overlap": lambda: analysis.get_comm_comp_overlap(visualize=False),
        "kernels": lambda: analysis.get_gpu_kernel_breakdown(visualize=False),
        "idle time": lambda: analysis.get_idle_time_breakdown(visualize=False),
        "launches": lambda: analysis.get_cuda_kernel_launch_stats(visualize=False),
        "queue length": analysis.get_queue_length_summary,
        "copy bandwidth": analysis.get_memory_bw_summary,
    }
    if ranks:
        calls["stragglers"] = analysis.get_potential_stragglers
    failed = {}
    for name, call in calls.items():
        try:
            call()
        except Exception as error:  # noqa: BLE001 - a peer's failure is a result
            failed[name] = f"{type(error).__name__}: {error}"[:80]
    return failed


def main() -> None:
    """The command line."""
    trace, what = Path(sys.argv[1]), sys.argv[2]
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        files = sorted(trace.iterdir()) if trace.is_dir() else [trace]
        targets = {}
        for rank, file in enumerate(files):
            target = Path(folder) / (f"rank{rank}.json.gz" if file.suffix == ".gz" else f"rank{rank}.json")
            if file.suffix == ".gz":
                shutil.copy(file, target)
            else:
                target.symlink_to(file.resolve())
            targets[rank] = str(target)
        started = cpu_s()
        analysis = TraceAnalysis(trace_files=targets)
        failed = analyze(analysis, ranks=len(files) > 1) if what == "analyze" else {}
    print(json.dumps({"cpu_s": cpu_s() - started, "peak_bytes": peak_bytes(), "failed": failed}))


if __name__ == "__main__":
    main()
