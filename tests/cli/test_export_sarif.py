from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

from whystall.diagnosis.finding import CodeLocation, Finding, Scope
from whystall.report.schema import encode

from .conftest import empty_report

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Cli


def stored(folder: Path) -> Path:
    finding = Finding(
        id="host.sync",
        title="The host waits",
        severity="critical",
        scope=Scope(ranks=[0], steps=[]),
        attributed_ns_per_step=1,
        gain=None,
        confidence=0.5,
        evidence=[],
        code=[CodeLocation(file=str(folder / "jobs" / "train.py"), line=7, symbol="x.item()")],
        rejected=[],
        missing_signals=[],
        remedy=None,
        verify=None,
    )
    path = folder / "report.json"
    path.write_bytes(encode(msgspec.structs.replace(empty_report(), findings=[finding])))
    return path


def test_sarif_names_code_below_the_folder_where_it_is_made_relative_to_it(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("export", stored(tmp_path), "--format", "sarif")
    assert outcome.code == 0
    (result,) = json.loads(outcome.out)["runs"][0]["results"]
    assert result["level"] == "error"
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "jobs/train.py"


def test_sarif_goes_to_a_file_that_is_not_overwritten_unasked(cli: Cli, tmp_path: Path) -> None:
    path = stored(tmp_path)
    assert cli("export", path, "--format", "sarif", "-o", "out.sarif").out == "out.sarif\n"
    assert json.loads((tmp_path / "out.sarif").read_text())["version"] == "2.1.0"
    assert cli("export", path, "--format", "sarif", "-o", "out.sarif").code == 2
