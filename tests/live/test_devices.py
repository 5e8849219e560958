"""GPUs of a process: those that it has open, as NVML sees them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from whystall.live.devices import device_facts, open_devices


class NVMLError(Exception):
    pass


def name(handle: int) -> str:
    """The second device answers nothing."""
    if handle:
        raise NVMLError
    return "NVIDIA H100"


NVML = SimpleNamespace(
    NVMLError=NVMLError,
    nvmlInit=lambda: None,
    nvmlDeviceGetHandleByIndex=lambda number: number,
    nvmlDeviceGetName=name,
    nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=37),
    nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=3 << 30),
)


def test_a_process_s_devices_are_those_it_has_open(tmp_path: Path) -> None:
    folder = tmp_path / "5" / "fd"
    folder.mkdir(parents=True)
    for number, target in enumerate(("/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia3", "/dev/null")):
        (folder / str(number)).symlink_to(target)
    assert open_devices(5, proc=tmp_path) == [0, 3]
    assert open_devices(6, proc=tmp_path) == []


@pytest.mark.parametrize("numbers", [[0], [0, 1]])
def test_each_that_answers_has_a_sentence(numbers: list[int]) -> None:
    assert device_facts(numbers, NVML) == [
        "GPU 0 (NVIDIA H100) ran something 37% of the last moments; 3.00 GiB are held."
    ]


def test_where_there_is_none_nothing_is_said() -> None:
    assert device_facts([], NVML) == []
    assert device_facts([0], None) == []
