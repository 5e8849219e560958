"""GPUs of a process: those that it has open, as NVML sees them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from whystall.live.devices import device_facts, open_devices


class NVMLError(Exception):
    pass


class Nvml:
    """Two devices; the second answers nothing."""

    NVMLError = NVMLError

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetName(self, handle: int) -> str:
        if handle:
            raise NVMLError
        return "NVIDIA H100"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=37)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=3 << 30)


def test_a_process_s_devices_are_those_it_has_open(tmp_path: Path) -> None:
    folder = tmp_path / "5" / "fd"
    folder.mkdir(parents=True)
    for number, target in enumerate(("/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia3", "/dev/null")):
        (folder / str(number)).symlink_to(target)
    assert open_devices(5, proc=tmp_path) == [0, 3]
    assert open_devices(6, proc=tmp_path) == []


@pytest.mark.parametrize("numbers", [[0], [0, 1]])
def test_each_that_answers_has_a_sentence(numbers: list[int]) -> None:
    assert device_facts(numbers, Nvml()) == [
        "GPU 0 (NVIDIA H100) ran something 37% of the last moments; 3.00 GiB are held."
    ]


def test_where_there_is_none_nothing_is_said() -> None:
    assert device_facts([], Nvml()) == []
    assert device_facts([0], None) == []
