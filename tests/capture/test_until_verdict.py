"""``--until-verdict``: a job that would go on for long ends with its first verdict that is sure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.capture.conftest import Jobs

SLOW = """
import signal, sys, torch

MOST_STEPS = 200_000

def features(numbers):
    return [sum(divmod(number * 7, 13)) for number in numbers]

def last_words(number, frame):
    print("asked to end", flush=True)
    sys.exit(4)

signal.signal(signal.SIGTERM, last_words)
model = torch.nn.Linear(256, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(MOST_STEPS):
    x = torch.tensor([features(range(256)) for _ in range(64)], dtype=torch.float32)
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
print("went through")
"""


@pytest.fixture
def slow_job(tmp_path: Path) -> str:
    (tmp_path / "slow.py").write_text(SLOW)
    return "slow.py"


def test_a_slow_job_is_ended_by_its_verdict(jobs: Jobs, slow_job: str) -> None:
    ran = jobs.whystall(slow_job, options=("--until-verdict",))

    assert ran.code == 0, ran.stderr  # the job's own is 4: that it was ended is what was asked for
    assert ran.stdout == "asked to end\n"
    run = json.loads((ran.folder / "run.json").read_text())
    report = json.loads((ran.folder / "report.json").read_text())
    assert run["exit_code"] == 0
    assert report["verdict"]["cause"] == "host.python"
    assert 0 < len(ran.steps()) < 200_000
    so_far = [line for line in ran.stderr.splitlines() if line.startswith("whystall: so far: ")]
    assert so_far
    assert (ran.folder / "report.html").is_file()
