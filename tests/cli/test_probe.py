from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from whystall.hardware.calibration import calibration_folder, read_calibrations
from whystall.trace.cache import default_folder

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli

QUICK = ("--seconds", "0.0001", "--device", "cpu", "--dtype", "fp32")


def test_compute_prints_products_and_keeps_them(cli: Cli) -> None:
    outcome = cli("probe", "compute", *QUICK)
    assert outcome.code == 0
    assert "FLOP/s" in outcome.out
    assert "smallest operator" in outcome.out
    ((kept,), problems) = read_calibrations(calibration_folder(default_folder()))
    assert problems == []
    assert {one.precision for one in kept.matmul} == {"fp32"}
    assert "kept as" in outcome.err


def test_json_is_the_calibration(cli: Cli) -> None:
    outcome = cli("probe", "memory", "--seconds", "0.0001", "--device", "cpu", "--json", "--no-save")
    body = json.loads(outcome.out)
    assert body["schema"] == "whystall.calibration/1"
    assert body["matmul"] == []
    assert all(one["bytes_per_s"] > 0 for one in body["copy"])
    assert read_calibrations(calibration_folder(default_folder())) == ([], [])


def test_a_page_is_written_beside_what_is_printed(cli: Cli, tmp_path: Path) -> None:
    arguments = (
        "probe",
        "memory",
        "--seconds",
        "0.0001",
        "--device",
        "cpu",
        "--no-save",
        "-o",
        tmp_path / "probe.html",
    )
    assert cli(*arguments).code == 0
    page = (tmp_path / "probe.html").read_text()
    assert "Copies of tensors" in page
    assert "measured on" in page
    assert cli(*arguments).code == 2  # it exists


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("compute", "--seconds", "0"), "--seconds wants a number"),
        (("compute", "--seconds", "fast"), "--seconds wants a number"),
        (("compute", "--device", "cuda:99"), "there is no 'cuda:99' here"),
        (("compute", "--device", "cpu", "--dtype", "fp8"), "fp8 cannot be measured"),
    ],
)
def test_what_makes_no_sense_is_said(cli: Cli, arguments: tuple[str, ...], sentence: str) -> None:
    outcome = cli("probe", *arguments)
    assert outcome.code == 2
    assert sentence in outcome.err


LOADER = """
import time, torch
from torch.utils.data import DataLoader

class Slow:
    def __len__(self): return 64
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.zeros(3)

loader = DataLoader(Slow(), batch_size=4)
broken = lambda: [][1]
"""


def test_data_says_what_to_set(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "loader_of_cli.py").write_text(LOADER)
    page = tmp_path / "loader.html"
    outcome = cli("probe", "data", "loader_of_cli.py:loader", "--seconds", "0.05", "--step", "20ms", "-o", page)
    assert outcome.code == 0, outcome.err
    assert "<h1>Set num_workers=" in page.read_text()
    assert "storage" in outcome.out
    assert "Set num_workers=" in outcome.out
    assert "there is no GPU here" in outcome.out


def test_data_as_json(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "loader_of_cli.py").write_text(LOADER)
    outcome = cli("probe", "data", "loader_of_cli.py:loader", "--seconds", "0.02", "--json", "--step", "5s")
    body = json.loads(outcome.out)
    assert body["schema"] == "whystall.data/1"
    assert body["nothing_to_gain"] is True
    assert [one["workers"] for one in body["workers"]][:5] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("data",), 2, "probe data wants a loader"),
        (("compute", "a.py:b"), 2, "that is for probe data"),
        (("data", "loader_of_cli.py:loader", "--step", "soon"), 2, "--step wants a time"),
        (("data", "loader_of_cli.py:loader", "--batch", "0"), 2, "--batch wants a whole number"),
        (("data", "loader_of_cli.py:broken"), 3, "failed: IndexError"),
    ],
)
def test_a_request_for_a_loader_that_makes_no_sense_is_said(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    (tmp_path / "loader_of_cli.py").write_text(LOADER)
    outcome = cli("probe", *arguments)
    assert outcome.code == code
    assert sentence in outcome.err
