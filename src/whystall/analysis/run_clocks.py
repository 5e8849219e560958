"""The clocks of a run's devices, from NVML's readings about once a second."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from whystall.analysis.run_results import DeviceClocks
from whystall.trace.samples import RunSamples

# The clock of a device that has little to do is low for that reason.
_BUSY_PERCENT: Final = 50
# NVML's reasons (nvml.h, nvmlClocksEventReasons): hardware slowdown, thermal in software and hardware, power brake.
_HELD_BACK: Final = 0x08 | 0x20 | 0x40 | 0x80


def device_clocks(samples: RunSamples) -> list[DeviceClocks]:
    """Per device its clock while it was busy."""
    busy = samples.clocks.filter(pl.col("use_percent") >= _BUSY_PERCENT)
    out = []
    for device in busy["device"].unique().sort().to_list():
        own = busy.filter(pl.col("device") == device)
        clock = own["sm_mhz"].to_numpy()
        out.append(
            DeviceClocks(
                device=device,
                samples=len(own),
                median_mhz=round(float(np.median(clock))),
                low_mhz=round(float(np.quantile(clock, 0.1))),
                held_back=float(np.mean((own["throttle_bits"].to_numpy() & _HELD_BACK) != 0)),
            )
        )
    return out
