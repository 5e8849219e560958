"""Recordings of torch's own of a few lines, for tests of what their operators show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import whystall
from whystall.diagnosis.finding import Finding


def found_in(step: Callable[[], object], folder: Path, steps: int = 5) -> dict[str, Finding]:
    """What is found in some recorded steps of a function, by cause."""
    step()
    recorded(step, 1)  # starting to record takes long once per process: this recording is discarded
    recorded(step, steps).export_chrome_trace(str(folder / "trace.json"))
    return {one.id: one for one in whystall.analyze(folder / "trace.json", cache=False).findings}


def told_in(
    step: Callable[[], object],
    folder: Path,
    told: Callable[[dict[str, Finding]], Finding | None],
    steps: int = 5,
    worth: float = 1.0,
) -> Finding:
    """What is told of a fault that is worth so much; where others had the cores it is recorded again, four times."""
    for _ in range(4):
        found = told(found_in(step, folder, steps))
        if found is not None and (worth <= 1 or (found.gain is not None and found.gain.expected > worth)):
            return found
    pytest.fail(f"nothing that is worth {worth} is told of it in four recordings")


def recorded(step: Callable[[], object], count: int) -> Any:
    """torch's profiler after some recorded steps of a function."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        for number in range(count):
            with torch.profiler.record_function(f"ProfilerStep#{number}"):
                step()
    return profiler
