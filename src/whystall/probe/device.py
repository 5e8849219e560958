"""The probed device: its name, its clock, and the types it multiplies."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import re
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from whystall.errors import UsageError
from whystall.probe.clock import Clock, DeviceClock, HostClock

_DRIVERS = ("nvidiactl", "kfd", "dxg", "nvhost-ctrl")  # NVIDIA's, AMD's, Windows' below Linux, Jetson's
_CPU_MODEL = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProbedDevice:
    """A device with everything that a probe needs of it."""

    torch: Any
    device: Any
    name: str
    kind: Literal["cpu", "gpu"]
    clock: Clock

    def synchronize(self) -> None:
        """Waits until the device has nothing left to do."""
        if self.kind == "gpu":
            self.torch.cuda.synchronize(self.device)


def open_device(wanted: str | None) -> ProbedDevice:
    """The device called ``wanted`` (``cpu``, ``cuda``, ``cuda:1``); without it the first GPU, else the CPU.

    Raises ``UsageError`` where torch or the device is not there.
    """
    try:
        import torch  # noqa: PLC0415 - takes seconds, and only probing needs it
    except ModuleNotFoundError as error:
        raise UsageError(f"`whystall probe` needs PyTorch in the environment it runs in: {error}") from error
    try:
        device = torch.device(wanted or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise UsageError(f"{wanted!r} is no device: {str(error).splitlines()[0]}") from None
    if device.type == "cpu":
        return ProbedDevice(torch, device, cpu_name(), "cpu", HostClock())
    if device.type != "cuda":
        raise UsageError(f"probing {device.type!r} is not known; cpu and cuda are")
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"there is no {wanted!r} here; run `whystall doctor --import-torch`")
    if device.index is None:  # torch sets no device without its number
        device = torch.device("cuda", torch.cuda.current_device())
    torch.cuda.set_device(device)
    return ProbedDevice(torch, device, torch.cuda.get_device_name(device), "gpu", DeviceClock(torch))


def gpus_here(devices: Path = Path("/dev")) -> int:
    """How many GPUs torch can use.

    torch is imported only where the system has a driver's files: the import takes long. Raises ``UsageError`` where
    torch is not there.
    """
    if importlib.util.find_spec("torch") is None:
        raise UsageError("`whystall probe` needs PyTorch in the environment it runs in: No module named 'torch'")
    if sys.platform == "linux" and not any((devices / name).exists() for name in _DRIVERS):
        return 0
    import torch  # noqa: PLC0415 - takes seconds

    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def name_of(device: Any) -> str | None:
    """The reported name of a torch device; ``None`` for one that holds no data."""
    if device.type == "cpu":
        return cpu_name()
    if device.type != "cuda":
        return None
    import torch  # noqa: PLC0415 - there already: the device is its own

    return str(torch.cuda.get_device_name(device))


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model, as far as the system reports it."""
    try:
        match = _CPU_MODEL.search(cpuinfo.read_text("utf-8", "replace"))
    except OSError:
        match = None
    return match[1].strip() if match else platform.processor() or platform.machine() or "CPU"


def machine_name() -> str:
    """A name for this machine that is the same every time and does not reveal the real one."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12]
