from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pytest

from whystall.hardware import checkup

if TYPE_CHECKING:
    from pathlib import Path


def test_every_check_answers_on_any_machine() -> None:
    checks = checkup.checkup()

    assert checks[0].name == "python"
    assert all(check.found for check in checks)
    assert len({check.name for check in checks}) == len(checks)


def test_asking_does_not_import_torch() -> None:
    program = "import sys; from whystall.hardware.checkup import checkup; checkup(); print('torch' in sys.modules)"

    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert answer.stdout.strip() == "False"


def test_missing_torch_is_no_obstacle_to_analysing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", no_version)

    check = checkup.torch()

    assert check.status == "missing"
    assert check.advice is not None
    assert "analysing traces works" in check.advice


@pytest.mark.parametrize(
    ("version_file", "build"),
    [
        ("cuda: str | None = '12.8'\nhip: str | None = None\n", "CUDA 12.8"),
        ("cuda = None\nhip = '6.4.2'\n", "ROCm 6.4.2"),
        ("cuda = None\n", "the CPU"),
        ("not python at all(", "the CPU"),
    ],
)
def test_torch_build_is_read_from_its_version_file(
    version_file: str, build: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (tmp_path / "torch" / "version.py").write_text(version_file)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    assert checkup._torch_build() == build


def test_device_nodes_are_found(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    assert checkup.accelerator(tmp_path).status == "missing"

    (tmp_path / "dev" / "kfd").touch()
    assert checkup.accelerator(tmp_path).found == "AMD: kfd"

    (tmp_path / "dev" / "nvidia0").touch()
    (tmp_path / "dev" / "nvidiactl").touch()
    assert checkup.accelerator(tmp_path).found == "NVIDIA: nvidia0"


def test_a_device_without_access_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch()
    monkeypatch.setattr(os, "access", lambda *_: False)

    check = checkup.accelerator(tmp_path)

    assert check.status == "warning"
    assert "add your user to its group" in (check.advice or "")


def test_counters_restricted_to_administrators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = tmp_path / "proc" / "driver" / "nvidia" / "params"
    parameters.parent.mkdir(parents=True)
    parameters.write_text("ModifyDeviceFiles: 1\nRmProfilingAdminOnly: 1\n")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert checkup.counters(tmp_path).status == "warning"

    parameters.write_text("RmProfilingAdminOnly: 0\n")
    assert checkup.counters(tmp_path).status == "ok"


def test_a_cache_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WHYSTALL_CACHE_DIR", str(tmp_path / "not" / "yet"))
    assert checkup.cache_folder() == checkup.Check("cache", "ok", str(tmp_path / "not" / "yet"))

    monkeypatch.setattr(os, "access", lambda *_: False)
    assert checkup.cache_folder().status == "warning"


def test_a_cache_folder_that_is_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WHYSTALL_CACHE_DIR", str(tmp_path / "file"))

    assert checkup.cache_folder().status == "warning"


def test_a_torch_that_fails_to_import_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "Traceback\nOSError: libcudart.so.12: cannot open\n")

    monkeypatch.setattr(subprocess, "run", fails)

    check = checkup.ask_torch()

    assert check.status == "warning"
    assert "libcudart" in check.found


def test_a_torch_that_answers_names_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, 'a banner\n[["NVIDIA H200"], ["CPU", "CUDA"]]\n', "")

    monkeypatch.setattr(subprocess, "run", answers)

    assert checkup.ask_torch().found == "devices: NVIDIA H200; profiles: CPU, CUDA"
