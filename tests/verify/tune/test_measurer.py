"""Real runs with settings put in from outside, what fails, and going on where a search was ended."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from whystall.errors import UsageError
from whystall.verify.tune.advice import final_command, lines_to_change
from whystall.verify.tune.candidates import Knob
from whystall.verify.tune.measurer import Measurer, command_of, knob_of
from whystall.verify.tune.results import Outcome, Settings

JOB = """
import os, sys
import torch
from torch.utils.data import DataLoader, TensorDataset

if os.environ.get("OMP_NUM_THREADS") == "3":
    raise MemoryError("no room")
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 2)
data = DataLoader(TensorDataset(torch.ones(640, 4)), batch_size=8)
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for epoch in range(10):
    for (batch,) in data:
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item(), "workers", data.num_workers, "fused", optimizer.defaults["fused"])
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job_to_tune.py"
    path.write_text(JOB)
    return path


def measurer(job: Path, **options: object) -> Measurer:
    given = {"command": (sys.executable, str(job)), "folder": job.parent / "tuning", "steps": 20, **options}
    made = Measurer(**given)  # type: ignore[arg-type]
    made.open(force=False)
    return made


def test_a_run_shows_how_things_were_made_and_where(job: Path) -> None:
    found = measurer(job, loss=re.compile(r"loss (\S+)"))({})
    assert found.step_s is not None
    assert found.step_s > 0
    assert len(found.losses) >= 15
    assert found.seen is not None
    (loader,) = found.seen.loaders
    (optimizer,) = found.seen.optimizers
    lines = JOB.splitlines()
    assert loader["num_workers"] == 0
    assert "DataLoader(" in lines[loader["line"] - 1]
    assert (optimizer["class"], optimizer["foreach"], optimizer["fused"]) == ("AdamW", False, None)
    assert "AdamW" in lines[optimizer["line"] - 1]
    assert found.seen.threads == 1
    assert job.read_text() == JOB


def test_settings_reach_loaders_and_optimizers(job: Path) -> None:
    settings: Settings = {"num_workers": 1, "prefetch_factor": 3, "optimizer": "fused"}
    found = measurer(job, loss=re.compile(r"workers (1) fused True"))(settings)
    assert found.failed_because is None
    assert len(found.losses) >= 15


def test_a_run_that_fails_is_a_result(job: Path) -> None:
    found = measurer(job)({"threads": 3})
    assert found.step_s is None
    assert found.failed_because == "out of memory, exit code 1: MemoryError: no room"


def test_a_search_goes_on_where_it_was_ended(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Settings] = []

    def run(_self: Measurer, settings: Settings) -> Outcome:
        made.append(settings)
        return Outcome(step_s=float(len(made)))

    monkeypatch.setattr(Measurer, "_run", run)
    first = measurer(job)
    assert [first({}).step_s, first({"threads": 2}).step_s] == [1.0, 2.0]

    second = measurer(job)
    again = [second({}).step_s, second({"threads": 2}).step_s, second({"threads": 4}).step_s]

    assert again == [1.0, 2.0, 3.0]
    assert made == [{}, {"threads": 2}, {"threads": 4}]
    with pytest.raises(UsageError, match="is of another search"):
        measurer(job, steps=30)


def test_a_folder_with_other_files_is_left_alone(job: Path) -> None:
    with pytest.raises(UsageError, match="holds other files"):
        measurer(job, folder=job.parent)
    assert sorted(path.name for path in job.parent.iterdir()) == ["job_to_tune.py"]


def test_what_is_kept_names_no_argument(job: Path) -> None:
    made = measurer(job, command=(sys.executable, str(job), "--token=hidden"))
    kept = (made.folder / "tune.json").read_text()
    assert "hidden" not in kept
    assert "job_to_tune" not in kept


def test_how_to_keep_what_won(job: Path) -> None:
    seen = measurer(job)({}).seen
    settings: Settings = {"num_workers": 2, "optimizer": "fused", "threads": 2, "--batch": "16"}
    knob = knob_of("--batch=8,16", ["t.py", "--batch", "8"])
    assert knob == Knob("--batch", ("8", "16"), "8")
    words = command_of(["python", "my job.py", "--batch", "8"], settings, knob)
    command = final_command(words, settings)
    assert command == "OMP_NUM_THREADS=2 python 'my job.py' --batch 16"
    told = "\n".join(lines_to_change(settings, seen))
    assert re.search(r"job_to_tune\.py:11: DataLoader\(…, num_workers=2\)", told)
    assert re.search(r"job_to_tune\.py:12: AdamW\(…, fused=True\)", told)


@pytest.mark.parametrize("text", ["=8,16", "--batch", "--batch="])
def test_a_knob_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--knob takes an argument"):
        knob_of(text, ["t.py"])


def test_a_batch_needs_to_be_known(job: Path) -> None:
    with pytest.raises(UsageError, match="give the command its --batch"):
        knob_of("--batch=8", ["t.py"])
