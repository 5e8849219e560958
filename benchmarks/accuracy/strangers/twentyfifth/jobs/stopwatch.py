"""Writes mean step times where STEP_TIMES names a file."""

import json
import os

import torch.distributed as dist


def report(seconds, skip=10):
    path = os.environ.get("STEP_TIMES")
    mine = sum(seconds[skip:]) / max(1, len(seconds) - skip)
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    if path and dist.get_rank() == 0:
        with open(path, "w") as f:
            json.dump(
                {"mean_ms": 1000 * max(everyone), "ranks_ms": [1000 * x for x in everyone], "steps": len(seconds)}, f
            )
