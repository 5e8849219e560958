"""The commands and examples that the pages show are run as they stand."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import subprocess
import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import polars as pl
import pytest
from tests.compilation.builder import training
from tests.fleet.ranks import rank_trace

import whystall

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PLACEHOLDERS = re.compile(r"[…\[\]|]|\b[A-Z]{4,}\b")  # a synopsis, not a command
JOB = """
import torch


def gpt(batch=1):
    layers = [torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)]
    return torch.nn.Sequential(*layers), torch.zeros(batch, 1024, 256)


def llama7b():
    return gpt()


if __name__ == "__main__":
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print("trained")
"""
KERNELS = "[[rule]]\nclass = 'communication'\nfamily = 'mine'\npattern = 'my_ring'\n"


def commands(page: Path) -> list[str]:
    lines = re.findall(r"^ {4}(whystall .+)$", page.read_text(), flags=re.MULTILINE)
    return [line.partition(" #")[0].strip() for line in lines if not PLACEHOLDERS.search(line.partition(" #")[0])]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the pages speak of."""
    recording = files("whystall") / "demo" / "recording.json.gz"
    for name in ("traces", "before", "after"):
        (tmp_path / name).mkdir()
    for name in ("trace.json.gz", "before/trace.json.gz", "after/trace.json.gz"):
        (tmp_path / name).write_bytes(recording.read_bytes())
    for rank in range(2):
        built = rank_trace(rank, 2, late_ns=200_000 * rank)
        (tmp_path / f"traces/rank{rank}.trace.json.gz").write_bytes(gzip.compress(built.json().encode()))
    (tmp_path / "kernels.toml").write_text(KERNELS)
    (tmp_path / "package").mkdir()
    for name in ("train.py", "package/__init__.py", "package/train.py"):
        (tmp_path / name).write_text(JOB if name.endswith("train.py") else "")
    (tmp_path / "launch.sh").write_text("python train.py\n")
    (tmp_path / "dumps").mkdir()
    for rank in range(2):
        dump = {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": []}
        (tmp_path / "dumps" / f"trace_rank_{rank}").write_text(json.dumps(dump))
    (tmp_path / "compile-logs").mkdir()
    training().write(tmp_path / "compile-logs")
    operations = {"dp_rank": [0], "stage": [0], "step": [1], "seq_id": [0], "mc": [0], "mb_id": [0], "gmc": [0]}
    times = {"optype": ["forward-compute"], "start_ts": [0.0], "duration": [1.0]}
    pl.DataFrame(operations | times).write_parquet(tmp_path / "operations.parquet")
    held = {"action": "alloc", "addr": 1 << 40, "size": 512, "stream": 0, "time_us": 7, "frames": []}
    for name in ("snapshot.pickle", "before.pickle", "after.pickle"):
        (tmp_path / name).write_bytes(pickle.dumps({"segments": [], "device_traces": [[held]]}))
    report = whystall.analyze(tmp_path / "trace.json.gz", cache=False)
    for name in ("report.json", "baseline.json", "candidate.json"):
        (tmp_path / name).write_text(whystall.render(report, "json"))
    return tmp_path


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page: Path, folder: Path) -> None:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TMPDIR": str(folder),
        "WHYSTALL_DATA": str(folder / "data"),
        "DISPLAY": "",
        "WAYLAND_DISPLAY": "",
    }

    for command in commands(page):
        (folder / "report.html").unlink(missing_ok=True)
        ended = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, f"{command}: {ended.stderr}"
        assert ended.stdout or ">" in command, command


def test_the_python_example_runs(folder: Path) -> None:
    text = (ROOT / "docs" / "reference" / "python.md").read_text()
    program = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[0]

    ended = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout


@pytest.mark.skipif(find_spec("torch") is None, reason="the example trains with torch")
def test_the_example_trains_the_same_way_twice() -> None:
    command = [sys.executable, str(ROOT / "examples" / "train_gpt.py"), "--steps", "2"]

    first, second = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2))

    assert first == second
    assert first.startswith("step   0  loss 3.")


def test_the_tutorial_begins_with_the_users_own_job() -> None:
    [tutorial] = [page for page in PAGES if page.stem == "tutorial"]
    assert commands(tutorial)[0].startswith("whystall run")
