from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from whystall.hardware.calibration import calibration_folder, read_calibrations
from whystall.trace.cache import default_folder

if TYPE_CHECKING:
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
