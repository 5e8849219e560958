"""Prepares, steps and publishes; kills itself at one of these places, as a machine that runs out of memory does."""

import os
import signal
import sys
import time

import torch

STAGE = sys.argv[1]


def ends(stage: str) -> None:
    """Kills the process if it is at this stage."""
    if stage == STAGE:
        os.kill(os.getpid(), signal.SIGKILL)


def prepares() -> None:
    time.sleep(1.2)


def evaluate() -> None:
    time.sleep(0.8)


def publishes() -> None:
    time.sleep(7.0)


prepares()
ends("start")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    if step == 20:
        evaluate()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
ends("steps")
publishes()
ends("end")
