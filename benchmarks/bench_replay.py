"""How long it takes to draw the dependency graph of a large recording, to play it, and to diagnose it.

    python benchmarks/bench_replay.py

A real trace is grown to about a million events; times are CPU seconds of this process, the best of some.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from grow import grow

import whystall
from whystall.analysis.trace_analysis import analyze_trace
from whystall.diagnosis.case import Case
from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rules import RULES
from whystall.replay.build import build_graph
from whystall.replay.graph import play

TRACE = Path(__file__).resolve().parents[2] / "shared" / "traces" / "recsys-2rank-v100.json.gz"
_Returned = TypeVar("_Returned")


def timed(work: Callable[[], _Returned], times: int) -> tuple[float, _Returned]:
    """CPU seconds of the fastest of some calls, and what it returned."""
    found = []
    for _ in range(times):
        began = time.process_time()
        value = work()
        found.append((time.process_time() - began, value))
    return min(found, key=lambda pair: pair[0])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=0.25)
    gigabytes = parser.parse_args().gigabytes
    if not TRACE.exists():
        sys.exit(f"{TRACE} is not here")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "grown.json"
        grow(TRACE, path, gigabytes)
        trace = whystall.load(path, cache=False)
    events = len(trace.host_order) + len(trace.device_events)
    drawn_s, graph = timed(lambda: build_graph([(0, trace)], most_events=1 << 62), 2)
    played_s, _ = timed(lambda: play(graph), 5)
    analysis = analyze_trace(trace)
    diagnosed_s, _ = timed(
        lambda: diagnose(Case(ranks=(RankCase(0, trace, analysis),), graph=build_graph([(0, trace)])), RULES), 2
    )
    million = events / 1e6
    print(
        f"| of {events:,} events ({len(graph.start):,} nodes, {len(graph.source):,} edges) | CPU s | a million events |"
    )
    print("|---|--:|--:|")
    for what, seconds in (
        ("draw the graph", drawn_s),
        ("play it once", played_s),
        ("diagnose (a part of it is replayed)", diagnosed_s),
    ):
        print(f"| {what} | {seconds:.3f} | {seconds / million:.3f} |")


if __name__ == "__main__":
    main()
