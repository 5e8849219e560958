"""Prints the CPU and wall seconds of a job's steps at its end."""

import argparse
import os
import time


def arguments(steps):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--fixed", action="store_true")
    return parser.parse_args()


class Clock:
    def __init__(self, warm_up=5):
        self.warm_up = warm_up
        self.count = 0
        self.start = self.last = (0.0, 0.0)

    def tick(self):
        self.count += 1
        self.last = (sum(os.times()[:4]), time.perf_counter())
        if self.count <= self.warm_up:
            self.start = self.last

    def report(self):
        cpu, wall = (last - start for last, start in zip(self.last, self.start, strict=True))
        print(f"steps={self.count - self.warm_up} cpu_s={cpu:.2f} wall_s={wall:.2f}", flush=True)
