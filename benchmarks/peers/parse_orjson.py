"""Parses each trace of a folder with orjson, as TraceLens does before all else: a bound for its reports.

    python parse_orjson.py FOLDER

Prints {"cpu_s": ...}. Whatever TraceLens makes of what is parsed, its collectives' report, comes on top of it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import orjson
from peak import peak_bytes


def main() -> None:
    """The command line."""
    started = time.process_time()
    events = sum(len(orjson.loads(path.read_bytes())["traceEvents"]) for path in sorted(Path(sys.argv[1]).iterdir()))
    print(json.dumps({"cpu_s": time.process_time() - started, "peak_bytes": peak_bytes(), "events": events}))


if __name__ == "__main__":
    main()
