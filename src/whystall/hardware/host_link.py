"""The link between a device and its host."""

from __future__ import annotations

import re
from typing import Final

# By the lowest compute capability that has it; 16 lanes in one direction (PCI-SIG: 16, 32, 64 and 128 GB/s).
_PEAK_OF_PCIE: Final = ((10, 128e9), (9, 64e9), (8, 32e9), (0, 16e9))
# Grace Hopper and Grace Blackwell have the processor beside the device (NVLink-C2C: 900 GB/s in both directions).
_BESIDE: Final = re.compile(r"\bG[HB][23]00\b")
_PEAK_BESIDE: Final = 450e9


def host_link_bytes_per_s(name: str, capability: int) -> float:
    """The peak in one direction of the link of a device, in bytes a second, from its name and capability (major).

    A capability that is not known is 0; the link of a device in a slot with fewer lanes is slower.

    >>> host_link_bytes_per_s("NVIDIA H100 80GB HBM3", 9) / 1e9
    64.0
    """
    if _BESIDE.search(name):
        return _PEAK_BESIDE
    return next(rate for least, rate in _PEAK_OF_PCIE if max(capability, 0) >= least)
