"""Trains on two workers of Ray Train, watched by the adapter: rays.py FOLDER.

Exits with 75 where Ray itself does not start.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer
from torch import nn

STEPS = 12
NOT_HERE = 75


def train_func(config: dict[str, Any]) -> None:
    """What each worker runs."""
    from whystall.integrations.ray import watch

    model = train.torch.prepare_model(nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(output=config["output"]) as watched:
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(4, 16)).square().mean().backward()
            optimizer.step()
            watched.step()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    try:
        ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)
    except Exception as error:  # noqa: BLE001 - whatever keeps it from starting is no matter of the adapter's
        print(f"Ray does not start here: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(NOT_HERE)
    trainer = TorchTrainer(
        train_func,
        train_loop_config={"output": str(folder / "run")},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=str(folder / "ray"), name="job"),
    )
    trainer.fit()
    ray.shutdown()
