"""The commands of ``action.yml``, run in a shell as a runner would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
TRACES = ROOT.parent / "shared" / "traces"


def run(folder: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A step's script, by bash as runners start it; whystall is that of the tests."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path, "GITHUB_STEP_SUMMARY": str(folder / "summary.md"), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_action_annotates_sums_up_and_gates(tmp_path: Path) -> None:
    base, candidate = (str(TRACES / f"resnet50-workers{count}-v100.json.gz") for count in (0, 4))
    _, told, _, gated = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]

    done = run(tmp_path, told["run"], RECORDED=base, PAGE="page.html")
    assert done.returncode == 0, done.stderr
    assert "::error title=Batches are made on the training thread" in done.stdout
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert "Batches are made on the training thread" in (tmp_path / "summary.md").read_text()

    gates = {"BASELINE": base, "RECORDED": candidate}
    assert run(tmp_path, gated["run"], **gates, CONDITIONS="copies>+0\n").returncode == 0
    # 65 copies and fills for 54, and 16 kernels more.
    crossed = run(tmp_path, gated["run"], **gates, CONDITIONS="copies>+0\nlaunches>+0\n")
    assert (crossed.returncode, "crossed: launches>+0" in crossed.stderr) == (1, True)
    assert run(tmp_path, gated["run"], **gates, CONDITIONS="").returncode == 0

    saved = run(tmp_path, 'whystall compare --save main "$BASELINE"', BASELINE=base)
    assert saved.returncode == 0, saved.stderr
    by_name = {**gates, "BASELINE": "main", "CONDITIONS": "copies>+0\nlaunches>+0\n"}
    crossed = run(tmp_path, gated["run"], **by_name)
    assert (crossed.returncode, "crossed: launches>+0" in crossed.stderr) == (1, True)
