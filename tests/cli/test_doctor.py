from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from whystall.hardware import checkup

if TYPE_CHECKING:
    import pytest

    from .conftest import Cli


def test_every_check_has_a_line_and_its_advice(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [
        checkup.Check("python", "ok", "3.11.7"),
        checkup.Check("torch", "missing", "not installed", "needed to capture"),
        checkup.Check("disk", "warning", "0.5 GiB free"),
    ]
    monkeypatch.setattr(checkup, "checkup", lambda **_: checks)

    outcome = cli("doctor")

    assert outcome.code == 0
    assert outcome.out.splitlines() == [
        "ok    python  3.11.7",
        "none  torch   not installed",
        "              needed to capture",
        "warn  disk    0.5 GiB free",
    ]


def test_json_names_every_check(cli: Cli) -> None:
    answer = json.loads(cli("doctor", "--json").out)

    assert answer["schema"] == "whystall.doctor/1"
    assert {"python", "torch", "accelerator", "CUPTI", "cache", "disk"} <= {row["check"] for row in answer["checks"]}


def test_torch_is_asked_on_request_alone(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "ask_torch", lambda: checkup.Check("torch, asked", "ok", "devices: none"))

    assert "torch, asked" not in cli("doctor").out
    assert "torch, asked" in cli("doctor", "--import-torch").out


def test_the_counter_is_compiled_on_request(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    native = importlib.import_module("whystall.model.native")
    monkeypatch.setattr(checkup, "ask_torch", lambda: checkup.Check("torch, asked", "ok", "devices: none"))
    monkeypatch.setattr(native, "load", lambda: None)
    monkeypatch.setattr(native, "build", lambda: None)

    assert "FLOP counter" not in cli("doctor").out
    assert cli("doctor", "--import-torch").out.splitlines()[-2:] == [
        "ok    FLOP counter   counts by Python alone",
        "                     twice as fast after whystall doctor --build-counter",
    ]
    monkeypatch.setattr(native, "load", lambda: native)
    assert cli("doctor", "--build-counter").out.splitlines()[-1] == "ok    FLOP counter   compiled for this torch"


def test_a_counter_that_does_not_compile_is_one_sentence(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    importlib.import_module("whystall.model.native")
    monkeypatch.setenv("PATH", str(tmp_path))

    outcome = cli("doctor", "--build-counter")

    assert outcome.code == 1
    assert "no C++ compiler was found: install g++" in outcome.err
    assert not outcome.out
