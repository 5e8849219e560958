"""Ray Train: a context for the training function of a worker.

    def train_func(config):
        with watch(output="/shared/runs/first") as watched:
            ...
            watched.step()

Tested against the real package (tests/integrations).
"""

from __future__ import annotations

import os
from typing import Any

from whystall.capture.profile import profile


def watch(*, output: str, **options: Any) -> profile:
    """`whystall.profile` into a folder that all workers share; the rank is the worker's world rank."""
    from ray import train  # noqa: PLC0415 - only a worker of Ray has it

    context = train.get_context()
    os.environ.setdefault("RANK", str(context.get_world_rank()))
    os.environ.setdefault("WORLD_SIZE", str(context.get_world_size()))
    return profile(output=output, **options)
