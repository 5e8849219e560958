"""The input case of the reference: what whystall says of a loader without workers, and what the workers it names bring.

    python benchmarks/bench_input.py [--rounds N]     # a minute a round; the machine should do nothing else

A sample takes 20 ms of pause, a batch has eight, and the rest of a step takes 40 ms of pauses and calls: 80 % of a step
waits for its input. The job is watched, its patch is taken at its word, and plain runs with and without those workers
alternate. Of a loader that takes 1 ms a batch nothing is to be said (that its step pauses in Python is another matter).
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

JOB = """
import json, sys, time
import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __init__(self, sample_s):
        self.sample_s = sample_s

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        time.sleep(self.sample_s)
        return torch.full((16,), float(index))


if __name__ == "__main__":
    sample_s, workers, steps, out = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    began, times = time.perf_counter(), []
    for batch in DataLoader(Slow(sample_s), batch_size=8, num_workers=workers, persistent_workers=workers > 0):
        loss = model(batch).square().mean()
        loss.backward()
        time.sleep(0.039)
        optimizer.step()
        optimizer.zero_grad()
        now = time.perf_counter()
        times.append(now - began)
        began = now
        if len(times) == steps:
            break
    if out != "-":
        json.dump(times, open(out, "w"))
"""


def step_s(script: Path, sample_s: float, workers: int) -> float:
    """The mean step of a plain run, without its first fifth."""
    times = script.with_name("times.json")
    command = [sys.executable, str(script), str(sample_s), str(workers), "60", str(times)]
    subprocess.run(command, check=True, capture_output=True)
    found: list[float] = json.loads(times.read_text())
    return statistics.fmean(found[len(found) // 5 :])


def told(script: Path, folder: Path, sample_s: float) -> list[dict[str, Any]]:
    """The findings that count of a watched run without workers."""
    whystall = str(Path(sys.executable).with_name("whystall"))
    job = [sys.executable, str(script), str(sample_s), "0", "120" if sample_s > 0.01 else "400", "-"]
    subprocess.run([whystall, "run", "-f", "-q", "-o", str(folder), "--", *job], check=False, capture_output=True)
    report = json.loads((folder / "report.json").read_text())
    return [one for one in report["findings"] if one["severity"] != "info"]


def one_round(folder: Path) -> None:
    """Watches both jobs, and measures what the remedy of the first brings."""
    script = folder / "job.py"
    script.write_text(JOB)
    findings = told(script, folder / "slow", 0.02)
    if not findings:
        print("nothing is said")
        return
    first = findings[0]
    share = next((one["value"] for one in first["evidence"] if one["unit"] == "share"), 0.0)
    named = re.search(r"num_workers=(\d+)", (first["remedy"] or {}).get("patch") or "")
    if named is None:
        print(f"{first['id']}: no number of workers is named")
        return
    workers = int(named[1])
    ratios = [step_s(script, 0.02, 0) / step_s(script, 0.02, workers) for _ in range(2)]
    gain, measured = first["gain"]["expected"], statistics.fmean(ratios)
    quick = [one["id"] for one in told(script, folder / "quick", 0.001 / 8) if one["id"].startswith("input.")]
    print(
        f"{first['id']}, {share:.0%} of the step, {workers} workers: told {gain:.2f}, measured {measured:.2f} "
        f"({gain / measured - 1:+.1%}); of 1 ms a batch: {', '.join(quick) or 'nothing'}",
        flush=True,
    )


def main() -> None:
    """Runs so many rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    for _ in range(parser.parse_args().rounds):
        with tempfile.TemporaryDirectory() as folder:
            one_round(Path(folder))


if __name__ == "__main__":
    main()
