"""What NVML says of the job's devices, in torch's order; with stand-ins for both, since no device is at hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from whystall.capture.devices import NoDevices, devices

UUIDS = ["aaaa", "bbbb"]


class Error(Exception):
    """NVML's."""


def nvml(**more: Any) -> Any:
    """Two devices that NVML counts the other way round than torch."""
    clocks = {"GPU-aaaa": 1410, "GPU-bbbb": 1200}
    return SimpleNamespace(
        NVMLError=Error,
        NVML_CLOCK_SM=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=97),
        nvmlDeviceGetClockInfo=lambda handle, _: clocks[handle],
        nvmlDeviceGetMaxClockInfo=lambda *_: 1980,
        nvmlDeviceGetPowerUsage=lambda _: 600_000,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 4,
        **more,
    )


def torch(*, ready: bool = True, uuids: list[str | None] | None = None) -> Any:
    known = uuids if uuids is not None else UUIDS
    return SimpleNamespace(
        cuda=SimpleNamespace(
            is_initialized=lambda: ready,
            device_count=lambda: len(known),
            get_device_properties=lambda index: SimpleNamespace(**({"uuid": known[index]} if known[index] else {})),
        )
    )


def test_devices_are_told_in_the_order_in_which_the_job_knows_them() -> None:
    swapped = devices(nvml(), torch(uuids=["bbbb", "aaaa"])).sample()
    assert [one["sm_mhz"] for one in swapped] == [1200, 1410]
    assert swapped[0] == {
        "use_percent": 97,
        "sm_mhz": 1200,
        "sm_max_mhz": 1980,
        "power_mw": 600_000,
        "throttle_bits": 4,
    }


def test_a_device_that_is_not_in_use_is_not_asked() -> None:
    assert devices(nvml(), torch(ready=False)).sample() == []


def test_devices_that_torch_cannot_name_are_left_out() -> None:
    """Their order may differ: another device's clock would be told."""
    assert devices(nvml(), torch(uuids=["aaaa", None])).sample() == []


def test_without_nvml_there_is_nothing_to_say() -> None:
    def broken() -> None:
        raise Error

    assert isinstance(devices(None, torch()), NoDevices)
    assert isinstance(devices(SimpleNamespace(nvmlInit=broken), torch()), NoDevices)
