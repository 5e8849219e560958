"""Waits for something outside of torch and never takes a step."""

import time

import torch  # noqa: F401 - a job of torch's is watched

for _ in range(130):
    time.sleep(0.1)
