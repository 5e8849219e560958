"""A run's clocks: of busy devices alone, with what holds them back."""

from __future__ import annotations

import polars as pl

from whystall.analysis.run_clocks import device_clocks
from whystall.analysis.run_results import DeviceClocks
from whystall.trace.samples import RunSamples

POWER_CAP, THERMAL = 0x04, 0x20


def test_clocks_are_those_of_a_busy_device() -> None:
    """Idle samples are left out; a power cap in software is usual, heat is not."""
    rows = [(step, 0, 99, 1980, POWER_CAP) for step in range(15)]
    rows += [(step, 0, 98, 1500, THERMAL) for step in range(15, 20)]
    rows += [(step, 0, 3, 300, THERMAL) for step in range(20, 90)]
    names = ["step", "device", "use_percent", "sm_mhz", "throttle_bits"]
    clocks = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Int64), orient="row")
    samples = RunSamples("r", 0, 0, pl.DataFrame(), pl.DataFrame(), 0, clocks=clocks)
    assert device_clocks(samples) == [DeviceClocks(device=0, samples=20, median_mhz=1980, low_mhz=1500, held_back=0.25)]
