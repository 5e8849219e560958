"""start.lock-wait: lines that wait for lock files, with a remedy of their own where the job never took a step."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.capture.conftest import Jobs
from tests.diagnosis.rules.start.jobs import S, found, line

import whystall
from whystall.vocabulary.job_work import precedence_of, work_at


def test_it_adds_up_over_the_whole_job() -> None:
    finding = found(line("locks", 2), after=(line("locks", 1),))["start.lock-wait"]
    assert finding.evidence[0].value == 3 * S
    assert finding.saves is not None
    assert finding.saves.floor_ns == 0, "a holder that is at work needs its time"
    assert finding.saves.ceiling_ns == 3 * S


def test_other_work_is_none() -> None:
    assert "start.lock-wait" not in found(line("code generation", 4), after=(line("", 4),))


@pytest.mark.parametrize(
    ("module", "function", "work"),
    [
        ("torch.utils.file_baton", "wait", "locks"),
        ("torch.utils.cpp_extension", "load", "code generation"),
        ("filelock._api", "acquire", "locks"),
        ("filelock._api", "release", ""),
        ("filelocker", "acquire", ""),
    ],
)
def test_who_waits_for_a_lock_file(module: str, function: str, work: str) -> None:
    assert work_at(precedence_of(module, function)) == work


LOADS = """
import threading
from torch.utils.cpp_extension import load
from pathlib import Path
lock = Path("build/lock")
threading.Timer(9, lock.unlink).start()
load("nothing", ["nothing.cpp"], build_directory="build")
"""


def test_a_build_that_was_killed_left_its_lock(tmp_path: Path) -> None:
    """The real builder of torch's waits for a lock file that nobody holds; no step follows."""
    pytest.importorskip("torch", reason="a real job runs")
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "lock").touch()
    (tmp_path / "nothing.cpp").write_text("#include <no_such_header>")
    (tmp_path / "job.py").write_text(LOADS)
    Jobs(tmp_path).whystall("job.py", PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    report = whystall.analyze(tmp_path / "run", cache=False)
    finding = next(one for one in report.findings if one.id == "start.lock-wait")
    waited = finding.evidence[0].value
    assert isinstance(waited, int | float)
    assert 5 * S < waited < 12 * S
    assert "killed" in (finding.remedy.text if finding.remedy else "")
