"""A job written step by step: a host thread that launches, and a device whose streams run in order what it launched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from whystall.diagnosis.finding import Finding
from whystall.testing import TraceBuilder, trace
from whystall.testing.builder import MAIN_THREAD

CALL_NS: Final = 4_000
"""How long a launch takes the host."""
LATENCY_NS: Final = 6_000
"""When a kernel begins at the earliest, after its launch did."""
GAP_NS: Final = 1_000
"""What lies between two kernels that were queued."""

V100: Final = {"id": 0, "name": "Tesla V100-SXM2-32GB", "computeMajor": 7, "computeMinor": 0}
A100: Final = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0}
H100: Final = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0}
MI300X: Final = {"id": 0, "name": "AMD Instinct MI300X", "computeMajor": 9, "computeMinor": 4, "warpSize": 64}


def shaped(*sizes: list[int], dtype: str = "float") -> dict[str, Any]:
    """What Kineto records of an operator's tensors."""
    return {"Input Dims": list(sizes), "Input type": [dtype] * len(sizes)}


class Job:
    """Where the host is, and until when each stream is busy.

    ``api`` is "cuda" or "hip", as its calls are named; ``number`` is that of its device.
    """

    def __init__(self, device: dict[str, Any] | None = None, *, api: str = "cuda", number: int = 0) -> None:
        self.built: TraceBuilder = trace(**({"deviceProperties": [{**device, "id": number}]} if device else {}))
        self.api = api
        self.number = number
        self.at = 0
        self.busy_until: dict[int, int] = {}
        self._begins: list[int] = []

    @property
    def step_ns(self) -> float:
        """How long a step takes from its begin to that of the next, without the first and the last."""
        return (self._begins[-1] - self._begins[1]) / (len(self._begins) - 2)

    def steps(self, count: int) -> Iterator[int]:
        """The numbers of steps, each of which is marked around what is done with it."""
        for _ in range(count):
            number, begin = len(self._begins), self.at
            self._begins.append(begin)
            yield number
            self.built.step(number, at=begin, lasts=self.at - begin)

    def python(self, lasts: int) -> None:
        """The host does something that no event names."""
        self.at += lasts

    @contextmanager
    def module(self, name: str) -> Iterator[None]:
        """A module's call around all that is done meanwhile."""
        begin = self.at
        self.at += 1_000
        yield
        self.at += 1_000
        self.built.python(f"nn.Module: {name}", at=begin, lasts=self.at - begin)

    def call(self, name: str, lasts: int) -> None:
        """A runtime call; ``name`` is without "cuda" or "hip"."""
        self.built.runtime(f"{self.api}{name}", at=self.at, lasts=lasts)
        self.at += lasts

    def launch(self, kernel: str, lasts: int, *, stream: int = 7, call: str = "LaunchKernel", **more: Any) -> None:
        """A kernel, behind what its stream still has to do."""
        runs = max(self.at + LATENCY_NS, self.busy_until.get(stream, -GAP_NS) + GAP_NS)
        named = f"{self.api}{call}"
        self.built.launch(
            kernel,
            at=self.at,
            call=named,
            call_lasts=CALL_NS,
            runs_at=runs,
            lasts=lasts,
            stream=stream,
            device=self.number,
            **more,
        )
        self.busy_until[stream] = runs + lasts
        self.at += CALL_NS

    def operator(
        self, name: str, kernel: str = "", lasts: int = 0, *, stream: int = 7, thread: int = MAIN_THREAD, **more: Any
    ) -> None:
        """An operator of 10 us that launches a kernel, if one is given."""
        begin = self.at
        self.built.operator(name, at=begin, lasts=10_000, thread=thread, **more)
        self.at += 2_000
        if kernel:
            self.launch(kernel, lasts, stream=stream, thread=thread)
        self.at = begin + 10_000

    @contextmanager
    def inside(self, name: str, *, thread: int = MAIN_THREAD, **more: Any) -> Iterator[None]:
        """An operator around all that is done meanwhile."""
        begin = self.at
        self.at += 1_000
        yield
        self.at += 1_000
        self.built.operator(name, at=begin, lasts=self.at - begin, thread=thread, **more)

    @contextmanager
    def marked(self, name: str) -> Iterator[None]:
        """An annotation around all that is done meanwhile."""
        begin = self.at
        yield
        self.built.annotation(name, at=begin, lasts=self.at - begin)

    def wait(self) -> None:
        """The host waits until the device is done."""
        until = max(max(self.busy_until.values(), default=0), self.at) + 2_000
        self.built.runtime(f"{self.api}DeviceSynchronize", at=self.at, lasts=until - self.at)
        self.at = until


def is_worth(finding: Finding, speedup: float, *, within: float = 0.05) -> None:
    """A speed-up that is known by construction lies inside the bounds, and what is expected is near it."""
    assert finding.gain is not None
    assert finding.gain.floor <= speedup <= finding.gain.ceiling
    assert finding.gain.expected == pytest.approx(speedup, rel=within)


def message(
    collective: str, size: int, *, ranks: tuple[int, ...] = (0, 1), group: str = "0", dtype: str = "BFloat16"
) -> dict[str, Any]:
    """What Kineto records of a collective of 16-bit elements; ``size`` is in bytes."""
    return {
        "Collective name": collective,
        "In msg nelems": size // 2,
        "Out msg nelems": size // 2,
        "Group size": len(ranks),
        "dtype": dtype,
        "Process Group Name": group,
        "Process Group Ranks": str(list(ranks)),
    }


def together(jobs: list[Job], count: int) -> Iterator[int]:
    """The numbers of steps that all ranks make."""
    for numbers in zip(*(job.steps(count) for job in jobs), strict=True):
        yield numbers[0]


def meet(
    jobs: list[Job], kernel: str, transfer_ns: int, *records: dict[str, Any], stream: int = 7, **record: Any
) -> None:
    """A collective: it begins on each rank when that comes to it, and ends on all some time after the last one came.

    What is recorded of it is the same on all ranks, or given for each.
    """
    begins = [max(job.at + LATENCY_NS, job.busy_until.get(stream, -GAP_NS) + GAP_NS) for job in jobs]
    for job, begin, own in zip(jobs, begins, records or (record,) * len(jobs), strict=True):
        job.launch(kernel, max(begins) + transfer_ns - begin, stream=stream, **own)
