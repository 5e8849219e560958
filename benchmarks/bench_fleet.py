"""Many ranks grown from a real one: memory of all processes, time per MB against one rank's, what travels, Ray.

    python benchmarks/bench_fleet.py --ranks 64                 # local processes, 1 and 2 workers, and Ray
    python benchmarks/bench_fleet.py --ranks 1024 --local-only  # minutes, and 1.5 GB of disk while it lasts
    python benchmarks/bench_fleet.py --memory                   # what one file takes, by its size

Ranks vary, their clocks are apart, and one of them comes last to every collective: it must be among those looked at.
Memory is the proportional set size of the command and all its children, sampled five times a second. In the run with
the most of Ray's workers one of them is killed on the way.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from grow import grow
from grow_ranks import grow_ranks

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
SOURCE = TRACES / "ddp-2rank-a100.json.gz"
GROWN_FROM = ["recsys-2rank-v100.json.gz", "tp-decode-b200.json.gz"]
LATE = 5
WARM_UP = "import whystall, whystall._api, whystall.report.registry"
ONE = f"""
import resource, sys, time
{WARM_UP}
def cpu():
    return sum(resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime for who in (0, -1))
before, start = cpu(), time.monotonic()
whystall.analyze(sys.argv[1], cache=False)
print(cpu() - before, time.monotonic() - start)
"""
MANY = f"""
import json, sys
{WARM_UP}
options = json.loads(sys.argv[2])
report = whystall.analyze(sys.argv[1], **options)
sys.stdout.write(whystall.render(report, "json"))
"""
SUMMARY = f"""
import sys, msgspec
sys.path.append({str(Path(__file__).resolve().parent / "peers")!r})
from peak import peak_bytes
from whystall.fleet import summarise
from whystall.fleet.inputs import find_files
base = peak_bytes()
task = summarise.Task(of=find_files([sys.argv[1]], [])[0], manner=summarise.Manner())
size = len(summarise.summarise(msgspec.msgpack.encode(task)))
print(base, peak_bytes(), size)
"""


RAYS_WORKER = "ray::_answer"
WORKED_S = 3.0
MOST_WORKERS = 4


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of many ranks."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    output: bytes


def children_cpu_s() -> float:
    """CPU time of all children that have ended, and of theirs that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def sampled(process: psutil.Process, cpu_s: dict[int, float]) -> int:
    """The memory of a process and its descendants, what they share counted once; their CPU times so far."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_full_info().pss
            cpu_s[one.pid] = sum(one.cpu_times()[:2])
        except psutil.Error:
            continue
    return total


def kill_one(process: psutil.Process) -> bool:
    """Kills one of the workers of Ray's that a process has started and that work by now; whether it did."""
    for one in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if one.cmdline()[:1] == [RAYS_WORKER] and sum(one.cpu_times()[:2]) > WORKED_S:
                one.kill()
                return True
    return False


def measured(folder: Path, options: dict[str, object], cache: Path, *, kills: bool = False) -> Measured:
    """A run as a program of its own."""
    environment = os.environ | {"WHYSTALL_CACHE_DIR": str(cache)}
    before, start, peak = children_cpu_s(), time.monotonic(), 0
    cpu_s: dict[int, float] = {}  # nobody waits for the processes that Ray starts
    command = [sys.executable, "-c", MANY, str(folder), json.dumps(options)]
    with (
        tempfile.TemporaryFile() as out,
        subprocess.Popen(command, stdout=out, env=environment) as running,
    ):
        process = psutil.Process(running.pid)
        while running.poll() is None:
            try:
                peak = max(peak, sampled(process, cpu_s))
                kills = kills and not kill_one(process)
            except psutil.Error:
                break
            time.sleep(0.2)
        if running.wait():
            raise SystemExit(f"the run failed: {options}")
        if kills:
            raise SystemExit("no worker was killed")
        out.seek(0)
        output = out.read()
    return Measured(time.monotonic() - start, max(children_cpu_s() - before, sum(cpu_s.values())), peak, output)


def one_rank(path: Path, raw_bytes: int) -> float:
    """MB per CPU second of one rank's analysis by itself, the best of three."""
    runs = [subprocess.run([sys.executable, "-c", ONE, str(path)], check=True, capture_output=True) for _ in range(3)]
    return raw_bytes / 1e6 / min(float(run.stdout.split()[0]) for run in runs)


def travelling(cache: Path) -> tuple[int, int]:
    """The mean and the largest size of a summary."""
    sizes = [path.stat().st_size for path in (cache / "summaries").iterdir()]
    return sum(sizes) // len(sizes), max(sizes)


def many(ranks: int, megabytes: float, ways: Sequence[dict[str, object]]) -> None:
    """Prints what a job of so many ranks takes, each way."""
    with tempfile.TemporaryDirectory() as made:
        folder, cache = Path(made) / "ranks", Path(made) / "cache"
        raw = grow_ranks(SOURCE, folder, ranks, megabytes, LATE)
        alone = one_rank(folder / "rank0.trace.json.gz", raw)
        print(f"\n{ranks:,} ranks of {raw / 1e6:.1f} MB; one rank by itself: {alone:.0f} MB per CPU second\n")
        print("| | wall s | CPU s | MB per CPU s | a rank's time per MB | peak memory GB | report |")
        print("|---|--:|--:|--:|--:|--:|---|")
        for way in ways:
            kills = way == {"engine": "ray", "workers": MOST_WORKERS}
            run = measured(folder, {**way, "cache": way is ways[-1]}, cache, kills=kills)
            rate = ranks * raw / 1e6 / run.cpu_s
            name = f"{way['engine']}, {way['workers']} workers{', one killed' if kills else ''}"
            print(
                f"| {name} | {run.wall_s:.0f} | {run.cpu_s:.0f} | {rate:.0f} | {alone / rate:.2f} x "
                f"| {run.peak_bytes / 1e9:.2f} | {verdict(run.output)} |",
                flush=True,
            )
        again = measured(folder, {**ways[-1], "cache": True}, cache)
        mean, most = travelling(cache)
        print(f"\nWhat travels per rank: {mean:,} bytes, at most {most:,}.")
        print(f"The last again, all summaries known: {again.wall_s:.0f} s, {again.cpu_s:.0f} CPU s.")


def verdict(output: bytes) -> str:
    """A digest of the report, and whether the late rank was looked at."""
    report = json.loads(output)
    looked = LATE in {row["rank"] for row in report["operators"]}
    last = max(report["ranks"], key=lambda row: row["alone_ns"], default={"rank": None})["rank"]
    late = "late rank found" if looked and last == LATE else "LATE RANK MISSED"
    return f"{hashlib.sha256(output).hexdigest()[:8]}, {len(output) / 1e6:.1f} MB, {late}"


def memory() -> None:
    """Prints what summarising one file takes, by its size."""
    print("| file | MB | without a file MB | peak MB | above it / size | summary bytes |")
    print("|---|--:|--:|--:|--:|--:|")
    for name in GROWN_FROM:
        for gigabytes in (0.02, 0.25, 1.0):
            with tempfile.TemporaryDirectory() as made:
                path = Path(made) / "grown.json"
                grow(TRACES / name, path, gigabytes)
                size = path.stat().st_size
                command = [sys.executable, "-c", SUMMARY, str(path)]
                said = subprocess.run(command, check=True, capture_output=True).stdout
            base, peak, summary = map(int, said.split())
            print(
                f"| {name.partition('.')[0]} | {size / 1e6:,.0f} | {base / 1e6:.0f} | {peak / 1e6:,.0f} "
                f"| {(peak - base) / size:.2f} | {summary:,} |",
                flush=True,
            )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--local-only", action="store_true", help="leave Ray and the run of one worker out")
    parser.add_argument("--memory", action="store_true", help="measure what one file takes instead")
    options = parser.parse_args()
    if not TRACES.exists():
        raise SystemExit("the recorded traces are not beside the repository (../shared/traces)")
    if options.memory:
        memory()
        return
    by_ray = [("ray", count) for count in (1, 2, MOST_WORKERS)]
    asked = [("local", 2)] if options.local_only else [("local", 1), *by_ray, ("local", 2)]
    ways: list[dict[str, object]] = [{"engine": engine, "workers": workers} for engine, workers in asked]
    many(options.ranks, options.megabytes, ways)


if __name__ == "__main__":
    main()
