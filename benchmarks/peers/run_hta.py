"""Holistic Trace Analysis on one trace, in an environment of its own: loading, and the analyses a verdict needs.

    python run_hta.py TRACE load|analyze

Prints {"cpu_s": ...}: CPU seconds without the import of the library.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pandas as pd  # noqa: F401 - its import belongs to the library's, not to the work
from hta.trace_analysis import TraceAnalysis
from peak import peak_bytes


def analyze(analysis: TraceAnalysis) -> dict[str, str]:
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
        target = Path(folder) / ("rank0.json.gz" if trace.suffix == ".gz" else "rank0.json")
        if trace.suffix == ".gz":
            shutil.copy(trace, target)
        else:
            target.symlink_to(trace.resolve())
        started = time.process_time()
        analysis = TraceAnalysis(trace_files={0: str(target)})
        failed = analyze(analysis) if what == "analyze" else {}
    print(json.dumps({"cpu_s": time.process_time() - started, "peak_bytes": peak_bytes(), "failed": failed}))


if __name__ == "__main__":
    main()
