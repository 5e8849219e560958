"""What the simulated machine can do: accelerators by data sheet, and what calls cost on the host.

Host costs are those seen in recorded traces: a launch takes 3 to 5 us, kernels that are queued follow each other
after about 1 us, an operator spends 5 to 15 us around its launch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

BYTES_PER_ELEMENT = MappingProxyType({"bf16": 2, "fp16": 2, "fp32": 4, "int64": 8, "bool": 1})
SCALAR_TYPE = MappingProxyType(
    {"bf16": "c10::BFloat16", "fp16": "c10::Half", "fp32": "float", "int64": "long int", "bool": "bool"}
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """An accelerator; peaks are dense FLOP/s of the data sheet, bandwidths bytes/s."""

    name: str
    architecture: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    bandwidth: float
    peak: MappingProxyType[str, float]
    pcie_pinned: float
    pcie_pageable: float
    matmul_efficiency: float = 0.70
    vector_efficiency: float = 0.85
    shortest_kernel_ns: int = 1_900

    def matmul_ns(self, flops: float, bytes_moved: float, path: str, efficiency: float = 1.0) -> int:
        """Nanoseconds of a matrix multiplication by roofline.

        ``path`` is the unit that computes, ``simt`` or a dtype.
        """
        rate = self.peak[path] * (0.88 if path == "simt" else self.matmul_efficiency) * efficiency
        return max(round(flops / rate * 1e9), round(bytes_moved / (self.bandwidth * 0.9) * 1e9), 2_600)

    def memory_ns(self, bytes_moved: float) -> int:
        """Nanoseconds of a kernel that only moves data."""
        return max(round(bytes_moved / (self.bandwidth * self.vector_efficiency) * 1e9), self.shortest_kernel_ns)

    def properties(self, index: int) -> dict[str, Any]:
        """The entry of ``deviceProperties`` for one of a node's devices."""
        return {
            "id": index,
            "name": self.name,
            "totalGlobalMem": self.memory_bytes,
            "computeMajor": self.architecture[0],
            "computeMinor": self.architecture[1],
            "maxThreadsPerBlock": 1024,
            "maxThreadsPerMultiprocessor": 2048,
            "regsPerBlock": 65536,
            "warpSize": 32,
            "sharedMemPerBlock": 49152,
            "numSms": self.multiprocessors,
            "regsPerMultiprocessor": 65536,
            "sharedMemPerBlockOptin": 232448 if self.architecture[0] >= 9 else 166912,
            "sharedMemPerMultiprocessor": 233472 if self.architecture[0] >= 9 else 167936,
        }


H100 = Gpu(
    name="NVIDIA H100 80GB HBM3",
    architecture=(9, 0),
    multiprocessors=132,
    memory_bytes=85_045_870_592,
    bandwidth=3.35e12,
    peak=MappingProxyType({"bf16": 989.4e12, "fp16": 989.4e12, "tf32": 494.7e12, "simt": 66.9e12}),
    pcie_pinned=50e9,
    pcie_pageable=9e9,
)
A100 = Gpu(
    name="NVIDIA A100-SXM4-80GB",
    architecture=(8, 0),
    multiprocessors=108,
    memory_bytes=85_028_765_696,
    bandwidth=2.039e12,
    peak=MappingProxyType({"bf16": 312e12, "fp16": 312e12, "tf32": 156e12, "simt": 19.5e12}),
    pcie_pinned=24e9,
    pcie_pageable=6e9,
)


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Nanoseconds of what the host does."""

    launch_ns: int = 4_200
    launch_latency_ns: int = 1_600
    kernel_gap_ns: int = 1_000
    event_call_ns: int = 1_300
    event_latency_ns: int = 1_200
    memcpy_call_ns: int = 5_200
    sync_return_ns: int = 3_000
    graph_launch_ns: int = 9_000
    graph_kernel_gap_ns: int = 900
    queue_depth: int = 1024
    operator_scale: float = 1.0
    jitter: float = 0.04


@dataclass(frozen=True, slots=True)
class Fabric:
    """What connects ranks: latency of a collective in nanoseconds, bus bandwidth in bytes/s."""

    latency_ns: int = 18_000
    bus_bandwidth: float = 320e9
    slows_compute_milli: int = 1_000

    def transfer_ns(self, collective: str, bytes_moved: int, ranks: int) -> int:
        """Nanoseconds that a collective takes once all ranks have arrived (bus factors as nccl-tests defines them)."""
        factor = {
            "allreduce": 2 * (ranks - 1) / ranks,
            "_allgather_base": (ranks - 1) / ranks,
            "_reduce_scatter_base": (ranks - 1) / ranks,
            "all_to_allv": (ranks - 1) / ranks,
            "all_to_all": (ranks - 1) / ranks,
        }.get(collective, 1.0)
        return self.latency_ns + round(bytes_moved * factor / self.bus_bandwidth * 1e9)


@dataclass(frozen=True, slots=True)
class Machine:
    """One kind of node."""

    gpu: Gpu = H100
    costs: HostCosts = field(default_factory=HostCosts)
    fabric: Fabric = field(default_factory=Fabric)
