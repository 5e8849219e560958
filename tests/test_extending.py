"""A package of somebody else's, installed for real, adds to whystall without touching it.

And the page that shows it is true.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tests" / "foreign_package"
MODULES = sorted(path for path in (PACKAGE / "src").rglob("*.py") if path.stem != "__init__")


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the package was installed into, without network."""
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--disable-pip-version-check", "--target", str(target), str(PACKAGE)], check=True)
    return target


def whystall(folder: Path, installed: Path | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a folder, with the package or without it."""
    path = {} if installed is None else {"PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, "-m", "whystall", *arguments],
        cwd=folder, capture_output=True, text=True, check=False, env=os.environ | path,
    )  # fmt: skip


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A file in a format that only the package knows."""
    (tmp_path / "gpu0.kernels").write_text("#kernels\n4000 5000 relu\n1000 3000 gemm\n")
    return tmp_path


def report(ended: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_its_reader_reads_what_whystall_cannot(recording: Path, installed: Path) -> None:
    refused = whystall(recording, None, "analyze", "gpu0.kernels")
    assert refused.returncode == 3
    assert "gpu0.kernels is in no format that whystall reads. It reads " in refused.stderr

    for given in ("gpu0.kernels", "."):
        found = report(whystall(recording, installed, "analyze", given, "--json"))
        assert (found["devices"][0]["window_ns"], found["devices"][0]["busy_ns"]) == (4_000, 3_000)
        assert [row["name"] for row in found["kernels"]] == ["gemm", "relu"]
        assert (found["source"]["framework"], found["source"]["warnings"]) == (None, [])


def test_its_reader_serves_the_export_of_tables(recording: Path, installed: Path) -> None:
    ended = whystall(recording, installed, "export", ".", "--format", "csv", "-o", "tables")
    assert ended.returncode == 0, ended.stderr
    assert (recording / "tables" / "device_events.csv").read_text().splitlines()[1].startswith("0,1000,gemm,2000,")


def test_its_section_stands_in_every_format(recording: Path, installed: Path) -> None:
    printed = whystall(recording, installed, "analyze", ".", "-o", "report.md", "-o", "report.html", "-o", "report.txt")
    assert printed.returncode == 0, printed.stderr
    assert "TINY KERNELS\nKernel  Count     Mean\ngemm        1  2.00 µs\nrelu        1  1.00 µs\n" in printed.stdout
    assert "TINY KERNELS" in (recording / "report.txt").read_text()
    assert "<details><summary>Tiny kernels</summary>" in (recording / "report.md").read_text()
    page = (recording / "report.html").read_text()
    assert '<a href="#r0-sec-tiny-kernels">Tiny kernels</a>' in page
    assert '<section id="r0-sec-tiny-kernels">\n<h2>Tiny kernels</h2>' in page

    (recording / "gpu0.kernels").write_text("#kernels\n1000 90000 gemm\n")
    assert whystall(recording, installed, "report", ".", "-o", "empty.html").returncode == 0
    assert "<strong>Tiny kernels</strong>: no kernel is shorter than 5 µs." in (recording / "empty.html").read_text()


def test_its_cause_is_found_and_explained(recording: Path, installed: Path) -> None:
    found = report(whystall(recording, installed, "analyze", ".", "--json"))
    [finding] = [one for one in found["findings"] if one["id"] == "example.short-kernels"]
    assert (finding["title"], finding["severity"], finding["evidence"][0]["value"]) == (
        "Kernels are short",
        "minor",
        1_500,
    )
    assert found["verdict"]["cause"] == "example.short-kernels"

    page = whystall(recording, installed, "explain", "example.short-kernels").stdout
    assert "Each kernel takes so little time" in page
    assert "5,000: median length of a kernel (what a launch takes)" in page
    assert "example.short-kernels" in whystall(recording, installed, "explain").stdout
    assert whystall(recording, None, "explain", "example.short-kernels").returncode == 2

    logged = whystall(recording, installed, "export", ".", "--format", "sarif", "-o", "report.sarif")
    assert logged.returncode == 0, logged.stderr
    assert "example.short-kernels" in (recording / "report.sarif").read_text()


def test_its_kernel_classes_come_after_the_users_own(recording: Path, installed: Path) -> None:
    (recording / "gpu0.kernels").write_text("#kernels\n4000 5000 exchange_a\n1000 3000 gemm\n")
    found = report(whystall(recording, installed, "analyze", ".", "--json"))
    assert found["devices"][0]["communication_ns"] == 1_000
    (recording / "mine.toml").write_text("[[rule]]\nclass = 'compute'\nfamily = 'mine'\npattern = 'exchange'\n")
    found = report(whystall(recording, installed, "analyze", ".", "--json", "--kernel-classes", "mine.toml"))
    assert found["devices"][0]["communication_ns"] == 0


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_the_page_shows_the_modules_as_they_are(module: Path) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs" / "extending.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert module.read_text() in blocks


def test_the_page_names_the_entry_points_of_the_package() -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    entries = re.findall(
        r"^(\[project\.entry-points\..+?\]\n.+?\n)", (PACKAGE / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert entries
    assert all(entry in page for entry in entries)
