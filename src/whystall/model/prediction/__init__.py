"""Predicts a step without running it: memory by phase, work and least time, and whether it fits a device."""

from __future__ import annotations
