"""The link between a device and its host."""

from __future__ import annotations

import re
from typing import Final

_PCIE_3, _PCIE_4, _PCIE_5, _PCIE_6 = 16e9, 32e9, 64e9, 128e9
"""16 lanes in one direction, in bytes a second (PCI-SIG)."""
# By the lowest compute capability: V100, T4; A100, Ada; H100, B200; B300; RTX 50 (NVIDIA's data sheets).
_OF_NVIDIA: Final = (((12, 0), _PCIE_5), ((10, 3), _PCIE_6), ((9, 0), _PCIE_5), ((8, 0), _PCIE_4), ((6, 0), _PCIE_3))
_OF_AMD: Final = (((9, 4), _PCIE_5),)  # MI300X and later; the numbers of older parts do not show the link
# Grace Hopper and Grace Blackwell have the processor beside the device (NVLink-C2C: 900 GB/s in both directions).
_BESIDE: Final = re.compile(r"\bG[HB][23]00\b")
_PEAK_BESIDE: Final = 450e9
_AMD: Final = re.compile(r"\bAMD\b|Instinct|Radeon|^gfx")


def host_link_bytes_per_s(name: str, capability: tuple[int, int] | None) -> float | None:
    """The peak in one direction of the link of a device, in bytes a second; ``None`` where the part is not known.

    In a slot with fewer lanes, or of an older version, the link is slower.

    >>> host_link_bytes_per_s("NVIDIA H100 80GB HBM3", (9, 0)) == 64e9
    True
    """
    if _BESIDE.search(name):
        return _PEAK_BESIDE
    table = _OF_AMD if _AMD.search(name) else _OF_NVIDIA
    return next((rate for least, rate in table if capability is not None and capability >= least), None)
