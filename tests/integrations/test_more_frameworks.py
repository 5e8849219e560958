"""Frameworks that need an environment of their own.

Their jobs run there, and what whystall leaves is looked at here.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

import whystall

HERE = Path(__file__).parent
PYTHON = HERE.parents[1] / ".venv-frameworks" / "bin" / "python"
REPORT_WITHIN_S = 120
# What a job says when its framework does not start on this machine.
NOT_HERE = 75


def needs(package: str) -> None:
    """Skips where the package does not install."""
    found = PYTHON.exists() and subprocess.run([PYTHON, "-c", f"import {package}"], capture_output=True, check=False)
    if not found or found.returncode:
        pytest.skip(f"{package} is not installed (make .venv-frameworks/.ready)")


def run(*line: str, **environment: str) -> None:
    done = subprocess.run(
        [str(PYTHON), *line],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    if done.returncode == NOT_HERE:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr[-3000:]


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


@pytest.fixture(scope="session")
def extensions(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder for what torch builds: in the user's cache a killed build leaves a lock that stops each later job."""
    return str(tmp_path_factory.getbasetemp() / "extensions")


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_deepspeeds_engine_is_watched_without_an_adapter(tmp_path: Path, stage: int, extensions: str) -> None:
    """Also where the optimizer's parameters are partitions of its own."""
    needs("deepspeed")
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    built = {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": extensions}
    job = str(HERE / "jobs" / "speed.py")
    run("-m", "whystall", "run", "-q", "-o", str(tmp_path / "run"), job, str(stage), **rank, **built)
    report = whystall.analyze(tmp_path / "run", cache=False)
    (sampled,) = report.run
    assert sampled.steps == 40 - 1  # the first step has no beginning
    assert sampled.shares["forward"] > 0
    assert sampled.shares["backward"] > 0
    assert (tmp_path / "run" / "rank0.trace.json.gz").exists()


def test_torchtitans_profiler_makes_a_report_after_each_of_its_traces(tmp_path: Path) -> None:
    needs("torchtitan")
    from whystall.integrations.torchtitan import traces_of

    run(str(HERE / "jobs" / "titan.py"), str(tmp_path))
    (trace,) = traces_of(tmp_path)
    assert trace.parent.name == "iteration_8"
    assert whystall.analyze(trace, cache=False).operators
    page = trace.with_name("report.html")
    until = time.monotonic() + REPORT_WITHIN_S
    while not page.exists() and time.monotonic() < until:
        time.sleep(0.2)
    assert "<html" in page.read_text("utf-8")[:200]


def test_ray_train_watches_every_worker(tmp_path: Path) -> None:
    needs("ray.train.torch")
    run(str(HERE / "jobs" / "rays.py"), str(tmp_path), RAY_USAGE_STATS_ENABLED="0")
    report = whystall.analyze(tmp_path / "run", cache=False)
    assert [(sampled.rank, sampled.steps) for sampled in report.run] == [(0, 11), (1, 11)]
    assert all(sampled.shares["backward"] > 0 for sampled in report.run)
