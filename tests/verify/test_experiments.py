"""Experiments on a real small job, in which each of the things that they change can be made the slow one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.findings import bare_finding

import whystall
from whystall.cli.run import _experimented
from whystall.diagnosis.experiment import Experiment, bearing, needed, outcome, saved_by
from whystall.diagnosis.finding import Finding, Rejected
from whystall.report.schema import decode
from whystall.verify.experiments import run_experiments

# Each fault costs 20 ms of a step that takes one or two; a sleep stands for work, so that a busy machine changes
# little.
JOB = """
import gc, logging, os, pathlib, sys, time, torch
from torch.utils.data import DataLoader, Dataset
fault, marks = sys.argv[1], pathlib.Path(sys.argv[2])
torch.set_num_threads(2)

class Items(Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, index):
        if fault == "input":
            time.sleep(0.01)
        return torch.full((4,), float(index))

class Slow(logging.Handler):
    def emit(self, record):
        time.sleep(0.02)

log = logging.getLogger("job")
log.setLevel(logging.INFO)
log.addHandler(Slow() if fault == "logging" else logging.NullHandler())
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
seen = []
for epoch in range(3):
    for batch in DataLoader(Items(), batch_size=2):
        seen.append(batch.sum().item())
        held = [[number] for number in range(1000)] if fault == "gc" else None
        if fault == "threads":
            time.sleep(0.01 * torch.get_num_threads())
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
        log.info("step")
        if fault == "gc" and len(seen) == 2:  # torch has imported what it imports late
            gc.callbacks.append(lambda phase, info: time.sleep(0.01) if phase == "start" else None)
            gc.set_threshold(200, 1000, 1000)
with marks.open("a") as out:
    out.write(f"ended after {len(seen)} steps, {len(set(seen))} batches, handled {gc.isenabled()}\\n")
sys.exit(int(os.environ.get("CODE", "0")))
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(JOB)
    return path


def run(job: Path, fault: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "whystall", "run", "-o", "run", *options, str(job), fault, "marks"]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WHYSTALL_CAPTURE")}
    return subprocess.run(
        command, cwd=job.parent, capture_output=True, text=True, check=False, timeout=150, env={**kept, **environment}
    )


def outcomes(job: Path) -> dict[str, Any]:
    report = decode((job.parent / "run" / "report.json").read_bytes())
    return {one.name: one for one in report.experiments}


@pytest.mark.parametrize(
    ("fault", "cause", "tells"),
    [
        ("input", "input.synchronous-loader", "making or waiting for batches holds the step up"),
        ("gc", "host.gc", "garbage collection holds the step up"),
        ("logging", "episodic.logging", "logging holds the step up"),
    ],
)
@pytest.mark.alone
def test_what_was_found_is_tried_and_its_gain_is_the_one_that_was_measured(
    job: Path, fault: str, cause: str, tells: str
) -> None:
    done = run(job, fault, "--experiments")
    assert done.returncode == 0, done.stderr
    report = decode((job.parent / "run" / "report.json").read_bytes())
    found = outcomes(job)
    assert fault in found, done.stderr  # which says what was found instead, and why nothing was tried
    assert found[fault].tells == f"{tells}; this speaks for {cause}"
    assert found[fault].speedup > 1.4
    assert report.verdict.cause == cause
    gain = report.findings[0].gain
    assert gain is not None
    assert "experiment" in gain.method
    if fault != "input":  # a batch that is handed out again is more than workers can do
        assert gain.expected == pytest.approx(found[fault].speedup, rel=0.01)
    assert gain.expected <= found[fault].speedup * (1 + max(0.03, 2 * found[fault].noise)) + 0.01
    # The first run went to its own end untouched; those after it were ended before theirs.
    assert (job.parent / "marks").read_text() == "ended after 72 steps, 24 batches, handled True\n"
    assert tells in (job.parent / "run" / "report.html").read_text()
    assert tells in " ".join(done.stderr.split())
    again = whystall.analyze(job.parent / "run", cache=False)
    assert (again.findings, again.experiments) == (report.findings, report.experiments)


@pytest.mark.alone
def test_experiments_that_are_asked_for_by_name(job: Path) -> None:
    command = [sys.executable, str(job), "threads", str(job.parent / "marks")]
    gc, threads = run_experiments(command, [], names=("threads", "gc"))
    assert threads.tells == "the number of threads holds the step up"
    assert threads.change == "1 threads instead of 2"
    assert threads.speedup is not None
    assert threads.speedup > 1.4
    assert threads.base_step_ns is not None
    assert threads.step_ns is not None
    assert threads.speedup == pytest.approx(threads.base_step_ns / threads.step_ns, abs=1e-3)
    assert "holds the step up" not in gc.tells


def test_nothing_is_run_again_where_no_experiment_bears_on_what_was_found(job: Path) -> None:
    notes: list[str] = []
    console: Any = SimpleNamespace(note=notes.append)
    report: Any = SimpleNamespace(findings=[finding("compute.fusible")])
    launch: Any = SimpleNamespace(command=[sys.executable, str(job), "none", str(job.parent / "marks")])
    assert not _experimented(job.parent, report, launch, 0, console)
    assert notes == ["whystall: no experiments: none bears on what was found"]
    assert not (job.parent / "marks").exists()


def test_without_the_option_the_command_runs_once(job: Path) -> None:
    assert run(job, "none").returncode == 0
    assert outcomes(job) == {}
    assert "experiment" not in run(job, "none", "-f").stderr


def test_the_exit_code_is_that_of_the_first_run_and_a_failed_job_is_not_repeated(job: Path) -> None:
    done = run(job, "none", "--experiments", CODE="3")
    assert done.returncode == 3
    assert "no experiments, since the command ended with exit code 3" in done.stderr
    assert (job.parent / "marks").read_text().count("ended") == 1


ONCE = """
import pathlib, sys, torch
if pathlib.Path("been").exists():
    sys.exit("cannot be run twice")
pathlib.Path("been").touch()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for step in range(30):
    model(torch.ones(2, 4)).mean().backward()
    optimizer.step()
"""


def test_a_command_that_cannot_be_repeated_costs_a_line(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(job.parent)
    job.write_text(ONCE)
    (job.parent / "been").touch()
    found = run_experiments([sys.executable, str(job)], [finding("host.gc"), finding("input.cpu-bound")])
    assert {one.name: one.tells for one in found} == dict.fromkeys(
        ("input", "gc"), "nothing: the run without a change failed: the command ended with exit code 1"
    )
    assert all(one.speedup is None for one in found)


def test_an_experiment_that_changes_nothing_is_said_to_show_nothing(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(job.parent)
    job.write_text(ONCE)
    job.write_text(ONCE.replace('sys.exit("cannot be run twice")', "pass"))
    (found,) = run_experiments([sys.executable, str(job)], [finding("input.cpu-bound")])
    assert found.tells == "nothing: no DataLoader handed out batches"
    assert found.speedup is None


def finding(name: str, *rivals: str) -> Finding:
    return bare_finding(name, rejected=[Rejected(id=rival, because="") for rival in rivals])


DOES_NOT_HOLD = "what was changed does not hold the step up"


@pytest.mark.parametrize(
    ("step_ns", "bases_ns", "tells"),
    [
        (50, (100, 100), "making or waiting for batches holds the step up; this speaks for input.cpu-bound"),
        (99, (100, 100), "the input does not hold the step up, to within 3 %; this speaks against input.cpu-bound"),
        (150, (100, 100), f"a step is longer with it: {DOES_NOT_HOLD}; this speaks against input.cpu-bound"),
        (96, (98, 102), "the input does not hold the step up, to within 8 %; this speaks against input.cpu-bound"),
        (90, (90, 110), "nothing beyond the noise of 20 %: repeat it on a quieter machine"),
    ],
)  # fmt: skip
def test_what_is_told_depends_on_the_noise(step_ns: int, bases_ns: tuple[int, ...], tells: str) -> None:
    found = outcome(
        "input",
        step_ns * 10**6,
        [ns * 10**6 for ns in bases_ns],
        None,
        [finding("input.cpu-bound"), finding("host.gc")],
    )
    assert found.tells == tells


def test_what_bears_on_findings_or_on_their_rivals_is_needed() -> None:
    assert needed([finding("host.python", "host.cpu-contention", "host.gc"), finding("compute.fusible")]) == [
        "gc",
        "threads",
    ]
    assert needed([]) == []


def measured(name: str, speedup: float, noise: float = 0.0) -> Experiment:
    return outcome(
        name, round(10**8 / speedup), [round(10**8 * (1 - noise / 2)), round(10**8 * (1 + noise / 2))], None, []
    )


@pytest.mark.parametrize(
    ("experiment", "cause", "bears"),
    [
        (measured("gc", 1.5), "host.gc", True),
        (measured("gc", 1.0), "host.gc", True),
        (measured("gc", 1.0, noise=0.2), "host.gc", False),
        (measured("gc", 1.5, noise=0.2), "host.gc", True),
        (measured("gc", 1.5), "host.python", False),
        (measured("input", 1.5), "input.storage-bound", True),
        (measured("threads", 1.5), "host.cpu-contention", True),
        (measured("threads", 1.0), "host.cpu-contention", False),  # it may be others who take the cores
    ],
)
def test_an_experiment_bears_on_its_causes_unless_it_is_lost_in_noise(
    experiment: Experiment, cause: str, *, bears: bool
) -> None:
    assert (bearing([experiment], cause) is experiment) == bears


@pytest.mark.parametrize("speedup", [0.5, 1.0, 1.3, 10.0])
def test_shares_saved_are_ordered_and_never_negative(speedup: float) -> None:
    low, middle, high = saved_by(measured("gc", speedup, noise=0.04))
    assert 0 <= low <= middle <= high < 1
