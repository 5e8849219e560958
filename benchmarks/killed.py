"""What a job that is killed leaves: 50 jobs under ``whystall run --always``, each ended by SIGKILL at a random instant.

    python benchmarks/killed.py [--times 50] [--seed 0]

Each job writes down its own steps, unbuffered. Lost are the steps that it had written down and whose samples are
missing; one may be on its way in either direction.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from whystall.run_folder.layout import samples_name
from whystall.trace.samples import read_samples

JOB = """
import sys, time, torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
mine = open(sys.argv[1], "ab", buffering=0)
step = 0
while True:
    model(torch.randn(16, 64)).sum().backward()
    optimizer.step()
    mine.write(b"%d %d\\n" % (step, time.time_ns()))
    step += 1
    time.sleep(0.002)
"""


def killed(folder: Path, after_s: float) -> tuple[int, int, int, float]:
    """Steps that the job made, steps lost, lines damaged, and the seconds of what was lost."""
    mine, script = folder / "mine", folder / "job.py"
    script.write_text(JOB)
    command = [sys.executable, "-m", "whystall", "run", "-q", "--always", "-o", str(folder / "run"), str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*command, str(mine)], stderr=subprocess.DEVNULL, env=environment) as run:
        while not mine.exists() or mine.stat().st_size == 0:
            time.sleep(0.01)
        time.sleep(after_s)
        for child in psutil.Process(run.pid).children():
            if str(mine) in child.cmdline():
                child.kill()
    steps = [[int(word) for word in line.split()] for line in mine.read_text().splitlines() if line.count(" ") == 1]
    path = folder / "run" / samples_name(0)
    if not path.exists():
        return len(steps), len(steps), 0, (steps[-1][1] - steps[0][1]) / 1e9
    samples = read_samples(path)
    seen = samples.steps["step"].to_list()
    last = seen[-1] if seen else 0
    lost = [at for step, at in steps if step > last]
    gaps = len(set(range(seen[0], last + 1)) - set(seen)) if seen else 0
    return len(steps), len(lost) + gaps, samples.damaged_lines, (steps[-1][1] - lost[0]) / 1e9 if lost else 0.0


def main() -> None:
    """Prints the worst and the mean of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)  # noqa: S311 - no secret
    found = []
    for _ in range(options.times):
        with tempfile.TemporaryDirectory() as folder:
            found.append(killed(Path(folder), draw.uniform(0.0, 4.0)))
    print(f"{len(found)} jobs, {sum(made for made, *_ in found):,} steps in all")
    print(f"lost at most {max(lost for _, lost, _, _ in found)} steps, {max(found, key=lambda one: one[3])[3]:.3f} s")
    print(f"damaged lines: {sum(damaged for _, _, damaged, _ in found)}")


if __name__ == "__main__":
    main()
