# ruff: noqa: S311 - noise needs no cryptography
"""Programs: what the host of one rank does, as a list of instructions."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from typing import Any

from .devices import TYPES, Device

QUEUE = 1000
MAIN, BACK = 0, 1
Event = dict[str, Any]
CONCRETE = {
    "aten::conv2d": ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "", ""],
    "aten::convolution": ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"],
    "aten::_convolution": ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"],
    "aten::cudnn_convolution": ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "False", "False", "True"],
    "aten::convolution_backward": ["", "", "", "[0]", *["[1, 1]"] * 3, "False", "[0, 0]", "1", "[True, True, False]"],
}


class Op:
    """Something queued on a stream of the device."""

    __slots__ = (
        "after",
        "args",
        "cat",
        "contend",
        "corr",
        "deps",
        "dur",
        "end",
        "ext",
        "issue",
        "key",
        "members",
        "name",
        "start",
        "stream",
    )

    def __init__(self, name: str, cat: str, stream: int, dur: float, args: Event) -> None:
        self.name, self.cat, self.stream, self.dur, self.args = name, cat, stream, dur, args
        self.deps: list[Op] = []
        self.start = self.end = self.issue = -1.0
        self.key: tuple[Any, ...] | None = None
        self.members = 1
        self.contend = 1.0
        self.after: Op | None = None
        self.corr = self.ext = 0


class Prog:
    """Builds the instructions of one rank."""

    def __init__(
        self,
        device: Device,
        seed: int,
        rank: int = 0,
        world: int = 1,
        *,
        noise: float = 0.05,
        shapes: bool = True,
        stack: bool = False,
        host: float = 1.0,
        old: bool = False,
    ) -> None:
        self.device, self.rank, self.world, self.old = device, rank, world, old
        self.shapes, self.stack, self.host = shapes, stack, host
        self.rng = random.Random(seed * 1000 + rank)
        self.sigma, self.scale, self.contend = noise, 1.0, 1.0
        self.code: list[tuple[Any, ...]] = []
        self.stream = 7
        self.sequence = 100
        self.bucket: list[int] = []
        self.store: dict[str, Any] = {}
        self.counts: dict[Any, int] = {}
        self.graph: list[Op] | None = None
        self.first_launch = 0.0

    def noisy(self, us: float) -> float:
        """A duration with scatter whose mean is `us`."""
        return us * math.exp(self.rng.gauss(-(self.sigma**2) / 2, self.sigma))

    def cpu(self, us: float) -> None:
        """The host works."""
        self.code.append(("cpu", self.noisy(us * self.host)))

    def wait(self, us: float) -> None:
        """The host waits for something outside (not scaled by the host's speed)."""
        self.code.append(("cpu", self.noisy(us)))

    @contextlib.contextmanager
    def span(self, cat: str, name: str, **args: Any) -> Iterator[None]:
        """An event of the host around what happens within."""
        self.code.append(("open", cat, name, args))
        yield
        self.code.append(("close",))

    def op(self, name: str, dims: list[Any] | None = None, dtype: str = "bf16", **args: Any) -> Any:
        """An operator, with its shapes where the recording has them."""
        if self.shapes and dims is not None:
            args["Input Dims"] = dims
            args["Input type"] = [TYPES[dtype] if d else "Scalar" for d in dims]
            args["Input Strides"] = [_strides(d) for d in dims]
            args["Concrete Inputs"] = CONCRETE.get(name, [""] * len(dims))
        return self.span("cpu_op", name, **args)

    def note(self, name: str) -> Any:
        """A record_function."""
        return self.span("user_annotation", name)

    def py(self, name: str) -> Any:
        """A Python frame, where stacks are recorded."""
        return self.span("python_function", name) if self.stack else contextlib.nullcontext()

    def device_op(self, op: Op, call: str, cost: float) -> Op:
        """Queue an operation by a runtime call (or collect it while a graph is captured)."""
        op.contend = self.contend
        if self.first_launch and op.name not in self.store:
            self.store[op.name] = True
            cost = self.first_launch / self.host
        if self.graph is not None:
            self.graph.append(op)
        else:
            self.code.append(("launch", op, call, self.noisy(cost * self.host)))
        return op

    def kernel(
        self,
        name: str,
        us: float,
        grid: int = 1024,
        block: int = 256,
        *,
        stream: int | None = None,
        warps: float | None = None,
        **more: Any,
    ) -> Op:
        """A kernel on the current stream."""
        args: Event = {"grid": [grid, 1, 1], "block": [block, 1, 1], **more}
        if not self.device.rocm:
            per = grid / self.device.sms
            full = min(100, round(100 * per * block / 32 / 64)) if warps is None else round(warps)
            args |= {
                "queued": 0,
                "context": 1,
                "registers per thread": 64,
                "shared memory": 0,
                "blocks per SM": round(per, 4),
                "warps per SM": round(per * block / 32, 4),
                "est. achieved occupancy %": full,
            }
        op = Op(name, "kernel", self.stream if stream is None else stream, self.noisy(us * self.scale), args)
        return self.device_op(op, "hipLaunchKernel" if self.device.rocm else "cudaLaunchKernel", 5.0)

    def copy(
        self, kind: str, size: float, *, stream: int | None = None, speed: float | None = None, cost: float = 6.0
    ) -> Op:
        """A copy such as "HtoD (Pinned -> Device)", at PCIe speed unless told."""
        rate = speed or (self.device.pcie if "DtoD" not in kind else self.device.bandwidth * 0.4)
        us = self.noisy(size / rate / 1e3 + 1.5)
        args = {"bytes": int(size), "memory bandwidth (GB/s)": size / us / 1e3, "context": 1}
        op = Op(f"Memcpy {kind}", "gpu_memcpy", self.stream if stream is None else stream, us, args)
        return self.device_op(op, "hipMemcpyWithStream" if self.device.rocm else "cudaMemcpyAsync", cost)

    def call(self, name: str, us: float) -> None:
        """A runtime call that takes a while and waits for nothing."""
        self.code.append(("call", name, self.noisy(us)))

    def mark(self) -> None:
        """CudaEventRecord on the current stream (only what the recording shows of it)."""
        self.call("hipEventRecord" if self.device.rocm else "cudaEventRecord", 1.2)

    def order(self, before: int, after: int) -> None:
        """What comes on stream `after` waits for what is on stream `before` now."""
        self.mark()
        self.code.append(("order", before, after))
        self.call("hipStreamWaitEvent" if self.device.rocm else "cudaStreamWaitEvent", 1.0)

    def sync(self, what: str = "Stream", stream: int | None = None) -> None:
        """CudaStreamSynchronize or cudaDeviceSynchronize."""
        prefix = "hip" if self.device.rocm else "cuda"
        target = None if what == "Device" else (self.stream if stream is None else stream)
        self.code.append(("sync", f"{prefix}{what}Synchronize", target, self.noisy(3.0)))

    def thread(self, tid: int) -> None:
        """Go on in the main (0) or the backward thread (1)."""
        self.code.append(("thread", tid))

    def marked_ops(self, number: int) -> None:
        """A step begins that nothing marks; its length counts all the same."""
        self.code.append(("turn", str(number)))

    def step_begin(self, name: str) -> None:
        """A step (or a serving engine's iteration) begins."""
        self.code.append(("step", name))

    def collective(
        self,
        kind: str,
        kernel: str,
        nelems: int,
        us: float,
        group: list[int],
        *,
        dtype: str = "bf16",
        stream: int = 20,
        out: int | None = None,
        name: str = "0",
        tag: Any = None,
        extra: Event | None = None,
        operator: str | None = None,
    ) -> Op:
        """A collective as c10d records it: on its own stream, after what is queued on the current one."""
        label = "BFloat16" if dtype == "bf16" else ("Half" if dtype == "fp16" else "Float")
        short = {
            "allreduce": "all_reduce",
            "_allgather_base": "_all_gather_base",
            "all_to_allv": "all_to_all",
            "_reduce_scatter_base": "_reduce_scatter_base",
        }.get(kind, kind)
        args = {
            "Collective name": kind,
            "In msg nelems": nelems,
            "Out msg nelems": out or nelems,
            "Group size": len(group),
            "dtype": label,
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": name,
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(group),
            **(extra or {}),
        }
        if self.old:
            args = {}
        key = (tuple(group), kind if tag is None else tag)
        self.counts[key] = count = self.counts.get(key, 0) + 1
        with self.op(operator or f"c10d::{short.lstrip('_')}_"):
            self.cpu(8)
            with self.op("record_param_comms", **args):
                if stream != self.stream:
                    self.order(self.stream, stream)
                with self.note(f"nccl:{short}"):
                    self.cpu(10)
                    op = Op(
                        kernel,
                        "kernel",
                        stream,
                        self.noisy(us),
                        {
                            "grid": [24, 1, 1],
                            "block": [544, 1, 1],
                            "queued": 0,
                            "context": 1,
                            "registers per thread": 96,
                            "shared memory": 87568,
                            "blocks per SM": 24 / self.device.sms,
                            "warps per SM": 3.0,
                            "est. achieved occupancy %": 0,
                            **args,
                        },
                    )
                    op.key, op.members = (*key, count), len(group)
                    self.code.append(
                        (
                            "launch",
                            op,
                            "cudaLaunchKernelExC" if not self.device.rocm else "hipExtLaunchKernel",
                            self.noisy(8 * self.host),
                        )
                    )
                self.mark()
        return op

    def replay(self, ops: list[Op], cost: float = 60.0) -> None:
        """Launch a captured graph: one call, all its kernels."""
        again = []
        for op in ops:
            new = Op(op.name, op.cat, op.stream, self.noisy(op.dur), op.args)
            new.contend = self.contend
            again.append(new)
        self.code.append(
            ("graph", again, "hipGraphLaunch" if self.device.rocm else "cudaGraphLaunch", self.noisy(cost))
        )


def _strides(dims: list[int]) -> list[int]:
    out = [1] * len(dims)
    for i in range(len(dims) - 2, -1, -1):
        out[i] = out[i + 1] * dims[i + 1]
    return out if dims else []
