"""TraceLens' report on the collectives of a folder of ranks, by a Python that has AMD's TraceLens installed.

    python run_tracelens.py FOLDER

Its report is that of ``TraceLens_generate_multi_rank_collective_report_pytorch`` with its defaults, as CSV. Prints
{"cpu_s": ...}: CPU seconds without the import of the library.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path

from peak import cpu_s, peak_bytes
from TraceLens.Reporting.generate_multi_rank_collective_report_pytorch import generate_collective_report


def main() -> None:
    """The command line."""
    files = sorted(Path(sys.argv[1]).iterdir())
    pattern = files[0].name.replace("0", "*", 1)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        started = cpu_s()
        generate_collective_report(
            trace_pattern=str(files[0].with_name(pattern)), world_size=len(files), output_csvs_dir=folder
        )
        used = cpu_s() - started
    print(json.dumps({"cpu_s": used, "peak_bytes": peak_bytes()}))


if __name__ == "__main__":
    main()
