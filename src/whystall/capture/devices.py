"""Readings of the devices: use, clocks, power, throttling (NVML), and torch's allocator.

Absent hardware is a null object: it has no readings, and callers need not check for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from whystall.run_folder.samples import ALLOCATOR

# The statistics of torch's allocator that diagnoses ask for (torch.cuda.memory_stats).
_ALLOCATOR: Final = dict(
    zip(
        ALLOCATOR,
        (
            "allocated_bytes.all.current",
            "reserved_bytes.all.current",
            "allocated_bytes.all.peak",
            "inactive_split_bytes.all.current",
            "num_alloc_retries",
            "num_ooms",
        ),
        strict=True,
    )
)


class NoDevices:
    """No NVML: no readings."""

    def sample(self) -> list[dict[str, int]]:
        """Nothing."""
        return []


class NvmlDevices:
    """The job's NVIDIA devices in torch's order, through NVML, which counts all of the machine in another."""

    def __init__(self, nvml: Any, torch: Any) -> None:
        self._nvml, self._torch = nvml, torch
        nvml.nvmlInit()
        self._handles: list[Any] | None = None

    def sample(self) -> list[dict[str, int]]:
        """Per device: use in percent, SM clock and its maximum in MHz, power in mW, throttle reasons as bits."""
        cuda = self._torch.cuda
        if self._handles is None and cuda.is_initialized():  # a device that is not in use gets no query for its name
            named = [getattr(cuda.get_device_properties(index), "uuid", None) for index in range(cuda.device_count())]
            known = all(uuid is not None for uuid in named)
            self._handles = [self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}") for uuid in named] if known else []
        return [self._of(handle) for handle in self._handles or ()]

    def _of(self, handle: Any) -> dict[str, int]:
        nvml = self._nvml
        asked: dict[str, Callable[[], Any]] = {
            "use_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "sm_max_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
            "power_mw": lambda: nvml.nvmlDeviceGetPowerUsage(handle),
            "throttle_bits": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        }
        said = {}
        for key, ask in asked.items():
            with contextlib.suppress(nvml.NVMLError):  # not every device answers every question
                said[key] = int(ask())
        return said


def nvml() -> Any:
    """The package that speaks to NVML, an extra of whystall's; ``None`` when it is not installed."""
    try:
        import pynvml  # noqa: PLC0415 - needed only in a process that is watched
    except Exception:  # noqa: BLE001 - absent or broken: all the same here
        return None
    return pynvml


def devices(package: Any, torch: Any) -> NoDevices | NvmlDevices:
    """The job's devices as NVML sees them, if its package is installed and there is a driver."""
    try:
        return NoDevices() if package is None else NvmlDevices(package, torch)
    except Exception:  # noqa: BLE001 - no driver, no permission: all the same here
        return NoDevices()


def allocator(torch: Any) -> list[dict[str, int]]:
    """Memory of torch's caching allocator on each CUDA device in use; queries no device."""
    cuda = torch.cuda
    if (
        not cuda.is_initialized()
    ):  # nor does an unused one get a query for its presence: workers could not be forked then
        return []
    out = []
    for index in range(cuda.device_count()):
        statistics = cuda.memory_stats(index)
        out.append({name: int(statistics.get(key, 0)) for name, key in _ALLOCATOR.items()})
    return out
