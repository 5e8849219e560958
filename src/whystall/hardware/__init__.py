"""Facts about hardware: the table of accelerators, and what this machine has."""

from __future__ import annotations

from whystall.hardware.accelerators import Accelerator, alike, find

__all__ = ["Accelerator", "alike", "find"]
