"""Trains a few steps under torchtitan's own profiler, with the adapter as its post-processor: titan.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torchtitan.config.function import Function
from torchtitan.tools.profiler import Profiler

from whystall.integrations.torchtitan import report_on

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=0, world_size=1)
    model = nn.Linear(16, 16)
    config = Profiler.Config(
        enable_profiling=True,
        profile_freq=4,
        profiler_warmup=1,
        profiler_active=2,
        trace_post_processor=Function.Config(fn=report_on),
    )
    with Profiler(config, base_folder=str(folder)) as profiler:
        for _ in range(8):
            model(torch.randn(4, 16)).sum().backward()
            profiler.step()
    torch.distributed.destroy_process_group()
