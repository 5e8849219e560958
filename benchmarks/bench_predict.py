"""What a prediction of a Llama of 7 billion parameters costs: seconds and resident memory of the whole command.

    python benchmarks/bench_predict.py

Aims: under 5 s and under 600 MB, imports included. Memory is that of the command and of its simulator together, looked
at every 20 ms; a page that both share counts twice.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil

MODEL = Path(__file__).parents[1] / "tests" / "model" / "prediction" / "models.py"
COMMAND = ("-m", "whystall", "model", "-q", f"{MODEL}:llama_7b", "--predict", "--dtype", "bf16")
DEVICE = "NVIDIA H100 80GB HBM3"
RUNS = 5
EVERY_S = 0.02
AIM_S, AIM_BYTES = 5.0, 600_000_000


def run() -> tuple[float, int]:
    """Seconds and the most resident bytes of one prediction."""
    began, most = time.monotonic(), 0
    process = subprocess.Popen([sys.executable, *COMMAND, "--device", DEVICE], stdout=subprocess.DEVNULL)
    watched = psutil.Process(process.pid)
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):
            most = max(most, sum(one.memory_info().rss for one in (watched, *watched.children(recursive=True))))
        time.sleep(EVERY_S)
    if process.returncode:
        sys.exit(f"the prediction ended with exit code {process.returncode}")
    return time.monotonic() - began, most


def main() -> None:
    """Prints a row."""
    run()  # what is read from the disk for the first time is not the prediction's cost
    times, sizes = zip(*(run() for _ in range(RUNS)), strict=True)
    print("| seconds, median | from | to | aim | resident, MB | aim |")
    print("|--:|--:|--:|--:|--:|--:|")
    spread = f"{min(times):.2f} | {max(times):.2f} | {AIM_S:g}"
    print(f"| {statistics.median(times):.2f} | {spread} | {max(sizes) / 1e6:.0f} | {AIM_BYTES / 1e6:.0f} |")


if __name__ == "__main__":
    main()
