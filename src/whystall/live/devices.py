"""How busy the GPUs are that a process has open, by NVML; nothing where its package or a driver is missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from whystall.report.format import size
from whystall.report.names import clean

_OPEN: Final = re.compile(r"^/dev/nvidia(\d+)$")


def open_devices(pid: int, *, proc: Path = Path("/proc")) -> list[int]:
    """The numbers of the NVIDIA devices that a process has open.

    In a container, too, where NVML knows the process by another number.
    """
    found = set()
    try:
        for one in (proc / str(pid) / "fd").iterdir():
            match = _OPEN.match(str(one.readlink()))
            if match:
                found.add(int(match[1]))
    except OSError:  # gone, or another user's
        pass
    return sorted(found)


def device_facts(numbers: list[int], nvml: Any) -> list[str]:
    """A sentence for each device (by NVML's numbers): its use in the last moments, and the memory held on it."""
    if not numbers or nvml is None:
        return []
    out = []
    try:
        nvml.nvmlInit()
        for number in numbers:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            name, use = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUtilizationRates(handle).gpu
            held = size(int(nvml.nvmlDeviceGetMemoryInfo(handle).used))
            known = f"GPU {number} ({clean(str(name), 60)})"
            out.append(f"{known} ran something {int(use)}% of the last moments; {held} are held.")
    except nvml.NVMLError:
        return out
    return out


def package() -> Any:
    """The package that speaks to NVML; ``None`` where it is not installed."""
    try:
        import pynvml  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        return None
    return pynvml
