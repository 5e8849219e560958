"""Which cores a job may run on, which of them are near its device, and whether its threads are bound already."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from whystall.capture.ranks import ranks_of

_BINDS: Final = ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_DEVICES: Final = Path("/sys/bus/pci/devices")


def affinity_seen(torch: Any, devices: Path = _DEVICES) -> dict[str, Any]:
    """Facts about CPU affinity: ``bound`` by a variable, how many ``ranks``, cores ``near`` the device in use."""
    return {
        "bound": any(os.environ.get(name) for name in _BINDS),
        "ranks": ranks_of(torch),
        "near": _near_the_device(torch, devices),
    }


def _near_the_device(torch: Any, devices: Path) -> str | None:
    """The cores on the device's side of the machine, as Linux lists them, if the process may use others as well."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return None
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    place: list[Any] = [getattr(found, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
    if None in place:
        return None
    try:
        listed = (devices / "{:04x}:{:02x}:{:02x}.0".format(*place) / "local_cpulist").read_text("ascii").strip()
        near = cores_of(listed)
    except (OSError, ValueError):
        return None
    allowed = os.sched_getaffinity(0)
    return listed if near and near & allowed and allowed - near else None


def bind(listed: str) -> None:
    """Restricts this process, and its later children, to the listed cores."""
    os.sched_setaffinity(0, cores_of(listed))


def cores_of(listed: str) -> set[int]:
    """The numbers that a list of Linux's stands for. Raises ``ValueError`` for another form.

    >>> sorted(cores_of("0-2,8"))
    [0, 1, 2, 8]
    """
    found: set[int] = set()
    for part in filter(None, listed.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
