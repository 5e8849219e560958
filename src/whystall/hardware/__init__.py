"""Facts about hardware: the table of accelerators, and this machine's parts."""

from __future__ import annotations

from whystall.hardware.accelerators import Accelerator, alike, find

__all__ = ["Accelerator", "alike", "find"]
