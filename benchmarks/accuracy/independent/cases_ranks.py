# ruff: noqa: ARG001, ARG005, D103 - a case is a function that registers itself; its text is in the decorator
"""Cases of data and tensor parallel jobs."""

from __future__ import annotations

import random
from typing import Any

from .layers import Layer
from .loops import case, loop, ranks, step, transformer
from .ops import all_reduce, backward, forward, load, optimizer
from .program import Prog


def _ddp(
    device: str,
    seed: int,
    n: int,
    *,
    layers: int = 6,
    b: int = 4,
    h: int = 1024,
    busbw: float = 0.0,
    bucket: float = 25e6,
    **more: object,
) -> list[Prog]:
    out = ranks(device, seed, n, **more)
    for p in out:
        net = transformer(p.device, layers, b, 1024, h)
        loop(p, lambda i, p=p, net=net: step(p, net, group=list(range(n)), busbw=busbw, bucket=bucket))  # type: ignore[misc]
    return out


@case(
    "communication.exposed communication.low-bandwidth",
    "DDP over a slow link: one all-reduce of all gradients after backward",
)
def ddp_one_bucket(r: random.Random, seed: int, on: bool) -> list[Prog]:
    return _ddp("A100", seed, 2, layers=8, busbw=60 if on else 2000, bucket=1e12)


@case(
    "communication.exposed",
    "gradients are averaged by hand after backward: six all-reduces of 30 MB, nothing under them",
)
def ddp_by_hand(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("A100", seed, 4)
    for p in out:
        net = transformer(p.device, 8, 4, 1024, 1024)

        def body(i: int, p: Prog = p, net: list[Layer] = net) -> None:
            load(p, 90)
            backward(p, net, forward(p, net))
            if on:
                for _ in range(6):
                    all_reduce(p, 3.3e7, [0, 1, 2, 3], 110)
                    p.order(20, 7)
            optimizer(p, net)

        loop(p, body)
    return out


@case("communication.exposed", "tensor parallel over NVLink: two blocking all-reduces per layer on the compute stream")
def tp_all_reduce(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("H100", seed, 4)
    for p in out:
        net = transformer(p.device, 8, 4, 1024, 4096, tp=4)

        def body(i: int, p: Prog = p, net: list[Layer] = net) -> None:
            def reduce(j: int, *_: Any) -> None:
                if on and j % 7 in (3, 6):
                    all_reduce(p, 4 * 1024 * 4096 * 2, list(range(4)), 250, stream=20)
                    p.order(20, 7)

            load(p, 90)
            backward(p, net, forward(p, net, reduce), reduce)
            optimizer(p, net)

        loop(p, body, 6)
    return out


@case("communication.small-messages", "one all-reduce per parameter (no buckets), blocking at the end of backward")
def small_messages(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("A100", seed, 4, noise=0.08)
    for p in out:
        net = transformer(p.device, 10, 4, 512, 512)

        def body(i: int, p: Prog = p, net: list[Layer] = net) -> None:
            load(p, 90)
            backward(p, net, forward(p, net))
            sizes = [n * 4 for x in net for n in x.params]
            for size in (s for s in (sizes * 2 if on else [sum(sizes) * 2])):
                all_reduce(p, size, list(range(4)), 180, "fp32")
            p.order(20, 7)
            optimizer(p, net)

        loop(p, body)
    return out


@case(
    "communication.low-bandwidth communication.exposed",
    "all-reduces at 9 GB/s bus bandwidth between H100s of one node (NVLink off), exposed",
)
def low_bandwidth(r: random.Random, seed: int, on: bool) -> list[Prog]:
    return _ddp("H100", seed, 4, layers=8, busbw=9 if on else 300)


@case(
    "communication.straggler",
    "rank 2 is 14 ms late in every step by its host (unannotated); the others wait in all-reduce",
)
def straggler_host(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("A100", seed, 4)
    for p in out:
        net = transformer(p.device, 5, 4, 1024, 1024)

        def body(i: int, p: Prog = p, net: list[Layer] = net) -> None:
            if on and p.rank == 2:
                p.wait(2.4e4)
            step(p, net, group=[0, 1, 2, 3], busbw=180)

        loop(p, body)
    return out


@case(
    "communication.straggler input.too-few-workers",
    "rank 0's loader waits 25 ms in each step, the other ranks wait for it in the first all-reduce",
)
def straggler_loader(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("MI300X", seed, 4)
    for p in out:
        net = transformer(p.device, 6, 4, 1024, 2048)
        us = 3e4 if on and p.rank == 0 else 90
        loop(p, lambda i, p=p, net=net, us=us: step(p, net, group=[0, 1, 2, 3], busbw=220, next_us=us))  # type: ignore[misc]
    return out


@case(
    "device.degraded communication.straggler device.throttled",
    "all kernels of rank 1 take 30 % longer than its peers' in every step",
    "no rule",
)
def degraded_rank(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("A100", seed, 4)
    for p in out:
        p.scale = 1.3 if on and p.rank == 1 else 1.0
        net = transformer(p.device, 6, 4, 1024, 1024)
        loop(p, lambda i, p=p, net=net: step(p, net, group=[0, 1, 2, 3], busbw=180))  # type: ignore[misc]
    return out


@case(
    "communication.contention",
    "GEMMs under an all-reduce take 1.6 times as long as alone; the all-reduce itself is hidden",
    "no rule",
)
def contention(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("A100", seed, 2)
    for p in out:
        p.contend = 1.6 if on else 1.0
        net = transformer(p.device, 10, 8, 1024, 1024)
        loop(p, lambda i, p=p, net=net: step(p, net, group=[0, 1], busbw=12))  # type: ignore[misc]
    return out


@case(
    "host.gc communication.straggler", "rank 1 collects garbage for 90 ms in every third step, the others wait for it"
)
def gc_one_rank(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("H100", seed, 4, stack=True)
    for p in out:
        net = transformer(p.device, 6, 4, 1024, 2048)

        def body(i: int, p: Prog = p, net: list[Layer] = net) -> None:
            step(p, net, group=[0, 1, 2, 3], busbw=280)
            if on and p.rank == 1 and i % 3 == 1:
                with p.span("python_function", "Python GC"):
                    p.wait(9e4)

        loop(p, body, 14)
    return out


@case(
    "episodic.checkpoint", "rank 0 alone saves a checkpoint (0.4 s) in two of 16 steps, the others wait in all-reduce"
)
def checkpoint_rank0(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("A100", seed, 2, stack=True)
    for p in out:
        net = transformer(p.device, 5, 4, 1024, 1024)

        def body(i: int, p: Prog = p, net: list[Layer] = net) -> None:
            step(p, net, group=[0, 1], busbw=180)
            if on and p.rank == 0 and i % 8 == 5:
                with p.py("train.py(140): save_checkpoint"), p.py("torch/serialization.py(944): save"):
                    for _ in range(10):
                        p.copy("DtoH (Device -> Pageable)", 4e7, speed=5)
                        p.sync("Stream")
                        p.wait(3e4)

        loop(p, body, 16)
    return out


@case(
    "communication.exposed",
    "DDP on two RTX 4090: 11 GB/s is what such a pair reaches over PCIe; a twentieth is not hidden",
)
def pcie_4090(r: random.Random, seed: int, on: bool) -> list[Prog]:
    return _ddp("4090", seed, 2, busbw=11 if on else 2000)


@case(
    "communication.straggler communication.low-bandwidth",
    "as straggler_host, but only rank 0's file: a late rank or a slow link, which cannot be told apart",
    "limit",
    files=1,
)
def straggler_one_file(r: random.Random, seed: int, on: bool) -> list[Prog]:
    return straggler_host(r, seed, on)


@case(
    "communication.wrong-backend communication.exposed",
    "gradients go to the host, gloo reduces them there (30 ms), and back",
    "no rule",
)
def gloo_on_gpu(r: random.Random, seed: int, on: bool) -> list[Prog]:
    args: dict[str, Any] = {
        "Collective name": "allreduce",
        "In msg nelems": 12582912,
        "Out msg nelems": 12582912,
        "Group size": 2,
        "dtype": "BFloat16",
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
    }
    out = ranks("A100", seed, 2)
    for p in out:
        net = transformer(p.device, 5, 4, 1024, 1024)

        def body(i: int, p: Prog = p, net: list[Layer] = net) -> None:
            if not on:
                step(p, net, group=[0, 1], busbw=200)
                return
            load(p, 90)
            backward(p, net, forward(p, net))
            for _ in range(5):
                with p.op("c10d::allreduce_"), p.op("record_param_comms", **args):
                    p.copy("DtoH (Device -> Pinned)", 25e6)
                    p.sync("Stream")
                    with p.note("gloo:all_reduce"):
                        p.wait(6000)
                    p.copy("HtoD (Pinned -> Device)", 25e6)
            optimizer(p, net)

        loop(p, body)
    return out
