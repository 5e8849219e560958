"""How long the steps of a job on a GPU take: `clock = Stopwatch()` before the loop, `if clock.tick(): break` after each step.

SECONDS says how long (6), STEP_TIMES where the mean time of a step goes (JSON). The device is waited for twice in all: after
the warm-up and at the end. GPU_LOCK names a file: only who holds it uses the GPU (jobs start side by side and run one by one).
"""

import fcntl
import json
import os
import time

import torch


class Stopwatch:
    def __init__(self, warm_up=8):
        if os.environ.get("GPU_LOCK") and os.environ.get("RANK", "0") == "0":
            self.lock = open(os.environ["GPU_LOCK"], "w")
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.seconds = float(os.environ.get("SECONDS", "6"))
        self.warm_up = warm_up
        self.steps = 0
        self.limit = None  # the number of steps, where ranks must agree: STEPS

    def tick(self):
        self.steps += 1
        if self.steps == self.warm_up:
            self.sync()
            self.began = time.perf_counter()
        limit = int(os.environ.get("STEPS", "0"))
        if self.steps <= self.warm_up:
            return False
        over = self.steps >= limit + self.warm_up if limit else time.perf_counter() - self.began > self.seconds
        if over:
            self.sync()
            mean = (time.perf_counter() - self.began) / (self.steps - self.warm_up)
            if os.environ.get("STEP_TIMES") and os.environ.get("RANK", "0") == "0":
                with open(os.environ["STEP_TIMES"], "w") as file:
                    json.dump({"mean_s": mean, "steps": self.steps - self.warm_up}, file)
            if hasattr(self, "lock"):
                fcntl.flock(self.lock, fcntl.LOCK_UN)
            print(f"{self.steps - self.warm_up} steps of {mean * 1e3:.2f} ms")
        return over

    @staticmethod
    def sync():
        if torch.cuda.is_available():
            torch.cuda.synchronize()
