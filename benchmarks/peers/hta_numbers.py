"""What Holistic Trace Analysis says of one trace: idle, compute and overlap, as JSON.

python hta_numbers.py TRACE
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

from hta.trace_analysis import TraceAnalysis


def main() -> None:
    """The command line."""
    trace = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / ("rank0.json.gz" if trace.suffix == ".gz" else "rank0.json")
        shutil.copy(trace, target)
        try:
            # its default drops the last step; with it, the whole trace is compared
            analysis = TraceAnalysis(trace_files={0: str(target)}, include_last_profiler_step=True)
            times = analysis.get_temporal_breakdown(visualize=False).iloc[0]
            overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]
            said: dict[str, float | str] = {
                "idle_ns": float(times["idle_time(us)"]) * 1e3,
                "compute_ns": float(times["compute_time(us)"]) * 1e3,
                "overlap_percent": float(overlap["comp_comm_overlap_pctg"]),
            }
        except Exception as error:  # noqa: BLE001 - a peer's failure is a result
            said = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:60]}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
