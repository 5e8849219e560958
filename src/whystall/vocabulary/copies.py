"""Parts of the names of copies between host and device, for CUDA and for ROCm."""

from __future__ import annotations

from typing import Final

TO_DEVICE: Final = ("HtoD", "HostToDevice")
TO_HOST: Final = ("DtoH", "DeviceToHost")
BOTH_WAYS: Final = (TO_DEVICE, TO_HOST)
