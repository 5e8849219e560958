"""whystall on a trace or a folder of ranks: bytes to columns, the linked trace, the report, or collectives alone.

    python run_whystall.py TRACE|FOLDER columns|load|analyze|collectives

Prints {"cpu_s": ..., "wall_s": ..., "events": ...}: seconds without the import of the library. No cache.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line does: numpy's idle threads would spin

from peak import cpu_s, peak_bytes

import whystall
from whystall import _api  # its import belongs to the library's, not to the work
from whystall.fleet.logs import read_logs
from whystall.report.comm_log_text import render_logs
from whystall.trace.readers.kineto.scan import scan_file


def run(trace: Path, what: str) -> int:
    """Does the work; returns how many events there were."""
    if what == "columns":
        scan = scan_file(trace)
        return sum(table["rows"] for table in scan.scanner.take_tables())
    if what == "load":
        return _api.load(trace, cache=False).source.events
    if what == "collectives":
        render_logs(read_logs([trace], {}))
        return 0
    report = whystall.analyze(trace, cache=False)
    whystall.render(report, "terminal")
    whystall.render(report, "html")
    return report.source.events


def main() -> None:
    """The command line."""
    trace, what = Path(sys.argv[1]), sys.argv[2]
    started, began = cpu_s(), time.perf_counter()
    events = run(trace, what)
    spent_s, wall_s = cpu_s() - started, time.perf_counter() - began
    print(json.dumps({"cpu_s": spent_s, "wall_s": wall_s, "peak_bytes": peak_bytes(), "events": events}))


if __name__ == "__main__":
    main()
