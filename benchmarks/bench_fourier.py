"""What a Fourier transform takes for each place, by the prime factors of its length, on one thread of this CPU.

python benchmarks/bench_fourier.py

Beside each length stands the next one with factors of 2, 3 and 5 alone, and what that leaves of the time. The ratios
stand in `compute.misaligned-shape`'s thresholds; each time is the best of seven of a transform and its inverse.
"""

from __future__ import annotations

import time

import torch

from whystall.diagnosis.detectors.fourier import largest_factor, next_smooth

LENGTHS = (257, 509, 1001, 1003, 1007, 1021, 1031, 2003, 4100, 4199, 4202, 4206, 4211, 4212, 4214, 4219, 4222, 4250)
LONG = (5003, 16411, 65537, 100003, 262147)
ROWS = 64
TIMES = 7


def whole_ms(length: int) -> float:
    """The best time of a transform of real numbers and back, for all rows."""
    data = torch.randn(ROWS, length)
    best = float("inf")
    for _ in range(TIMES):
        begin = time.perf_counter()
        torch.fft.irfft(torch.fft.rfft(data), n=length)
        best = min(best, time.perf_counter() - begin)
    return best * 1e3


def main() -> None:
    """Print a table."""
    torch.set_num_threads(1)
    print("| length | largest factor | ms | next of small factors | ms | left |\n|--:|--:|--:|--:|--:|--:|")
    for length in (*LENGTHS, *LONG):
        other = next_smooth(length)
        took, smooth = whole_ms(length), whole_ms(other)
        left = min(smooth / took, 1.0)
        print(f"| {length} | {largest_factor(length)} | {took:.2f} | {other} | {smooth:.2f} | {left:.2f} |")


if __name__ == "__main__":
    main()
