"""The same untouched script under every launcher: what it prints and returns stays, what it did is recorded."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
from pathlib import Path

import pytest
from tests.capture.conftest import JOBS, Jobs, Ran

import whystall
from whystall.capture.samples import SampleWriter
from whystall.run_folder.description import LEAST_ACTIVE, MOST_OF_ROUNDS, RunDescription, encode

TRAIN = str(JOBS / "train.py")
STEPS = 20


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The script as it runs without us."""
    return Jobs(tmp_path_factory.mktemp("plain")).command(sys.executable, TRAIN)


def assert_recorded(ran: Ran, ranks: int = 1) -> None:
    assert ran.code == 0, ran.stderr
    assert [rank["rank"] for rank in ran.ranks()] == list(range(ranks))
    for rank in range(ranks):
        assert ran.ranks()[rank]["steps"] == STEPS
        assert len(ran.steps(rank)) == STEPS - 1  # the first step has no beginning
        assert (ran.folder / f"rank{rank}.trace.json.gz").exists()
        assert ran.ranks()[rank]["not_recorded"] == {}
    report = whystall.analyze(ran.folder, cache=False)
    assert sorted({device.rank for device in report.devices}) == list(range(ranks))
    most = MOST_OF_ROUNDS if ranks == 1 else LEAST_ACTIVE  # a busy machine makes a step a long one
    assert all(LEAST_ACTIVE <= len(device.steps) <= most for device in report.devices)
    assert (ran.folder / "report.html").exists()


def what_ran(ran: Ran) -> tuple[str, str, str]:
    told = json.loads((ran.folder / "run.json").read_text())
    return told["kind"], told["command"], told["whystall"]


def test_script(jobs: Jobs, plain: Ran) -> None:
    ran = jobs.whystall(TRAIN)
    assert_recorded(ran)
    assert ran.stdout == plain.stdout
    assert what_ran(ran) == ("script", "train.py", whystall.__version__)
    assert ran.ranks()[0]["python"] == platform.python_version()
    before = " ".join(ran.stderr.split())
    assert before.index("it stands still while their trace is written") < before.index("watching cost")
    assert "held the job up for" in before
    assert "next: whystall report" not in before  # which is written
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith(("next: whystall explain", "next: whystall fix", "next: open"))


def test_what_comes_after_the_last_step_is_of_no_step_though_a_window_is_open(jobs: Jobs) -> None:
    script = jobs.home / "short.py"
    script.write_text(
        "import time, torch\n"
        "model = torch.nn.Linear(64, 64)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(100):\n"
        "    model(torch.ones(64, 64)).sum().backward()\n"
        "    optimizer.step()\n"
        "    time.sleep(0.01)\n"
        "time.sleep(2)\n"
    )
    # On a busy machine steps are steady late: the window is open at the end whenever it was opened.
    ran = jobs.whystall(str(script), options=("--active", "1000"))
    steps = whystall.analyze(ran.folder, cache=False).devices[0].steps
    assert steps
    assert max(step.window_ns for step in steps) < 2e9


def test_module(jobs: Jobs, plain: Ran) -> None:
    shutil.copy(TRAIN, jobs.home / "job_module.py")
    ran = jobs.whystall("-m", "job_module", "--steps", str(STEPS))
    assert_recorded(ran)
    assert ran.losses() == plain.losses()
    assert what_ran(ran) == ("module", "job_module", whystall.__version__)
    assert "--steps" not in (ran.folder / "run.json").read_text()


def test_shell_command_that_starts_python(jobs: Jobs, plain: Ran) -> None:
    ran = jobs.whystall("--", "sh", "-c", f"echo before; {sys.executable} {TRAIN}; echo after")
    assert_recorded(ran)
    assert ran.stdout == f"before\n{plain.stdout}after\n"
    assert what_ran(ran) == ("command", "sh", whystall.__version__)


def test_over_torchrun(jobs: Jobs) -> None:
    ran = jobs.whystall("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29561", TRAIN)
    assert_recorded(ran, ranks=2)
    assert len(ran.losses()) == STEPS


def test_under_torchrun(jobs: Jobs) -> None:
    jobs.folder.mkdir()
    kept = {"rank0.txt": "mine", "resnet.py": "mine"}
    earlier = RunDescription(whystall="1", kind="script", command="x", exit_code=0, began_unix_ns=0, schedule=None)
    old = {"rank5.samples.jsonl": "old", "rank0.window1.trace.json.gz": "old", "run.json": encode(earlier).decode()}
    for name, text in (kept | old).items():
        (jobs.folder / name).write_text(text)
        os.utime(jobs.folder / name, (1_000_000_000, 1_000_000_000))
    whystall_run = ["-m", "whystall", "run", "--force", "-o", str(jobs.folder), TRAIN]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29562"]
    ran = jobs.command(*launcher, *whystall_run)
    assert_recorded(ran, ranks=2)
    assert {name: (jobs.folder / name).read_text() for name in kept} == kept
    assert not (jobs.folder / "rank5.samples.jsonl").exists()
    assert not (jobs.folder / "rank0.window1.trace.json.gz").exists()


def test_accelerate_launch(jobs: Jobs, plain: Ran) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    launcher = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1"]
    ran = jobs.whystall(*launcher, "--mixed_precision", "no", "--dynamo_backend", "no", TRAIN)
    assert_recorded(ran)
    assert ran.losses() == plain.losses()


def test_arguments_of_the_script_are_its_own(jobs: Jobs) -> None:
    ran = jobs.whystall(TRAIN, "--steps", "6", "--accumulate", "3")
    assert ran.code == 0
    assert ran.ranks()[0]["steps"] == 6


@pytest.mark.parametrize(
    ("how", "code"), [("exit-3", 3), ("quick", 4), ("killed", -9), ("terminated", -15), ("raise", 1)]
)
def test_exit_codes_pass_through(jobs: Jobs, how: str, code: int) -> None:
    ran = jobs.whystall(TRAIN, "--end", how, "--steps", "60")  # a window that is open when a job is killed is lost
    assert ran.code == code
    assert len(ran.steps()) == 59
    assert (ran.folder / "rank0.trace.json.gz").exists()
    assert (ran.folder / "report.html").exists()
    [rank] = ran.ranks()
    # who is killed has said what there was when its window ended; no signal is taken from a job
    assert rank["ended"] is (how not in {"killed", "terminated"})
    assert rank["facts"]["torch_threads"] > 0
    if how == "raise":
        assert re.search(r" at train\.py:\d+$", rank["ended_by"])
        assert "The job ended with exit code 1 (" in (ran.folder / "report.html").read_text()


def test_traceback_is_the_users_own(jobs: Jobs) -> None:
    without = jobs.command(sys.executable, TRAIN, "--end", "raise")
    ran = jobs.whystall(TRAIN, "--end", "raise")

    def traceback_of(text: str) -> str:
        found = re.search(r"Traceback .*?mistake\n", text, re.DOTALL)
        assert found is not None
        return found[0]

    assert traceback_of(ran.stderr) == traceback_of(without.stderr)


def test_traceback_from_inside_a_data_loader_has_no_frame_of_ours(jobs: Jobs) -> None:
    ran = jobs.whystall(str(JOBS / "broken_loader.py"))
    assert ran.code == 1
    trace = ran.stderr[ran.stderr.index("Traceback") : ran.stderr.index("KeyError: 'no such sample'")]
    assert str(Path(whystall.__file__).parent) not in trace


def test_nothing_to_record_is_said(jobs: Jobs) -> None:
    (jobs.home / "hello.py").write_text("print('hello')\n")
    ran = jobs.whystall("hello.py")
    assert (ran.code, ran.stdout) == (0, "hello\n")
    assert "no training step was seen" in ran.stderr


def test_a_job_that_fails_before_its_first_step_is_said_to_have_failed(jobs: Jobs) -> None:
    (jobs.home / "fails.py").write_text("import nothing_of_this_name\n")
    ran = jobs.whystall("fails.py")
    assert ran.code == 1
    assert "ended with exit code 1, and no training step was seen" in ran.stderr


@pytest.mark.parametrize("option", ["-I", "-S", "-E"])
def test_python_that_looks_away_is_named(jobs: Jobs, option: str) -> None:
    (jobs.home / "hello.py").write_text("print('hello')\n")
    ran = jobs.whystall("--", sys.executable, option, "hello.py")
    assert (ran.code, ran.stdout) == (0, "hello\n")
    assert option in ran.stderr


@pytest.mark.parametrize("chosen", [".", "link"])
def test_force_in_a_folder_of_the_users_removes_nothing(jobs: Jobs, chosen: str) -> None:
    (jobs.home / "hello.py").write_text("print('hello')\n")
    kept = ["resnet.py", "requirements.txt", "results.csv", "ranking.py", "rank0.txt", "README.md", "hello.py"]
    for name in kept[:-1]:
        (jobs.home / name).write_text("mine")
    (jobs.home / "link").symlink_to(jobs.home, target_is_directory=True)
    for _ in range(2):  # the second finds a run there
        ran = jobs.command(sys.executable, "-m", "whystall", "run", "--force", "-o", chosen, "hello.py")
        assert (ran.code, ran.stdout) == (0, "hello\n"), ran.stderr
    assert sorted(path.name for path in jobs.home.iterdir()) == sorted([*kept, "link", "run.json"])
    assert all((jobs.home / name).read_text() == "mine" for name in kept[:-1])


def test_a_report_of_the_users_own_stops_the_run_before_it_starts(jobs: Jobs) -> None:
    (jobs.home / "hello.py").write_text("print('hello')\n")
    (jobs.home / "report.html").write_text("mine")
    ran = jobs.command(sys.executable, "-m", "whystall", "run", "--force", "-o", ".", "hello.py")
    assert (ran.code, ran.stdout) == (2, "")
    assert "report.html" in ran.stderr
    assert (jobs.home / "report.html").read_text() == "mine"


def test_a_profile_takes_a_rank_of_which_there_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "rank0.trace.json.gz").write_text("mine")
    (tmp_path / "rank1.run.json").write_text("mine")
    (tmp_path / "rank2.txt").write_text("mine")
    writer = SampleWriter(tmp_path)
    writer.open(0, {})
    writer.close()
    assert writer.rank == 2
    assert (tmp_path / "rank2.samples.jsonl").exists()


def test_a_run_is_not_overwritten(jobs: Jobs) -> None:
    assert jobs.whystall(TRAIN, "--steps", "3").code == 0
    again = jobs.whystall(TRAIN, "--steps", "3")
    assert again.code == 2
    assert "holds a run already" in again.stderr
    assert jobs.whystall(TRAIN, "--steps", "3", options=("--force",)).code == 0
