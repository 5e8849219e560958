# ruff: noqa: ARG001, ARG005, D103, C901, B023, E501 - a case is a function that registers itself; its text is in the decorator
"""Cases of sharded jobs: experts, FSDP, pipelines; and healthy jobs of several ranks."""

from __future__ import annotations

import random

from .cases_ranks import _ddp
from .layers import Layer, block, gemm, linear
from .loops import case, loop, ranks, step, transformer
from .ops import all_reduce, backward, forward, load, optimizer, reduce_gradients, to_device
from .program import Prog


def _experts(p: Prog, on: bool, skew: float, n: int, i: int, rotate: bool) -> None:
    hot = i % n if rotate else n - 1
    share = 1.0 if not on else (skew if p.rank == hot else (n - skew) / (n - 1))
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    group, count = list(range(n)), 8 * 1024 * 2048
    net: list[Layer] = []
    load(p, 90)
    for _ in range(4):
        part = block(p.device, 8, 1024, 2048)
        net += part[:4]
        forward(p, part[:4], grad=False)
        for turn, size in enumerate((share, 1.0)):
            p.collective(
                "all_to_allv",
                name,
                count,
                30 + count * 2 * max(1.0, share * 0.5 + 0.5) * (n - 1) / n / 280e3,
                group,
                operator="c10d::alltoall_base_",
                extra={"In split size": str([count // n] * n), "Out split size": str([int(count * share) // n] * n)},
                out=int(count * size),
            )
            p.order(20, 7)
            if not turn:
                with p.op("aten::_grouped_mm", [[int(8192 * share), 2048], [4, 2048, 8192]]):
                    p.cpu(12)
                    for _ in range(6):
                        k = gemm(p.device, int(8192 * share), 8192, 2048, "bf16")
                        p.kernel(
                            "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::GemmUniversal<GroupProblemShape>>>",
                            k[1],
                            132,
                            384,
                        )
    optimizer(p, net)


@case(
    "communication.expert-imbalance communication.straggler",
    "rank 3's experts get 2.2 times the tokens in each step: combine waits",
)
def experts_fixed(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("H100", seed, 4)
    for p in out:
        loop(p, lambda i, p=p: _experts(p, on, 2.2, 4, i, False))  # type: ignore[misc]
    return out


@case("communication.expert-imbalance", "the hot expert's rank changes from step to step: no fixed straggler")
def experts_rotating(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("B200", seed, 4)
    for p in out:
        loop(p, lambda i, p=p: _experts(p, on, 2.5, 4, i, True))  # type: ignore[misc]
    return out


@case(
    "communication.redundant-sync communication.exposed",
    "4 micro-batches, each reduces all gradients (no no_sync), link too slow to hide",
)
def redundant_sync(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("4090", seed, 2)
    for p in out:
        net = transformer(p.device, 5, 2, 1024, 1024)

        def body(i: int, p: Prog = p, net: list[Layer] = net) -> None:
            for micro in range(4):
                load(p, 90)
                hook = reduce_gradients(p, [0, 1], 10) if on or micro == 3 else None
                with p.note("DistributedDataParallel.forward"):
                    numbers = forward(p, net)
                backward(p, net, numbers, hook)
                if hook:
                    p.order(20, 7)
            optimizer(p, net)

        loop(p, body, 6)
    return out


def _fsdp(p: Prog, on: bool, n: int, count: int = 8) -> None:
    h = 2048
    part = [block(p.device, 1, 2048, h, 3 * i) for i in range(count)]
    size = 12 * h * h

    def gather(j: int) -> None:
        if not on:
            p.order(7, 23)
            p.stream = 23
        with p.op("FSDP::all_gather"):
            p.collective(
                "_allgather_base",
                "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                size // n,
                20 + size * 2 * (n - 1) / n / 220e3,
                list(range(n)),
                out=size,
                stream=22,
                operator="c10d::_allgather_base_",
                tag="ag",
            )
        p.stream = 7

    def scatter() -> None:
        p.collective(
            "_reduce_scatter_base",
            "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            size,
            20 + size * 2 * (n - 1) / n / 220e3,
            list(range(n)),
            out=size // n,
            stream=25,
            operator="c10d::_reduce_scatter_base_",
            tag="rs",
        )

    load(p, 90)
    numbers = {}
    for phase, order in (("f", range(count)), ("b", range(count - 1, -1, -1))):
        todo = list(order)
        if not on:
            gather(todo[0])
        for k, j in enumerate(todo):
            if on:
                gather(j)
            p.order(22, 7)
            if not on and k + 1 < count:
                gather(todo[k + 1])
            if phase == "f":
                numbers[j] = forward(p, part[j])
            else:
                backward(p, part[j], numbers[j])
                scatter()
    p.order(25, 7)
    optimizer(p, [Layer([], [], params=[size // n]) for _ in range(count)])


@case(
    "communication.no-prefetch communication.exposed",
    "FSDP: each all-gather begins when the layer before has ended, its layer waits for it",
)
def fsdp_no_prefetch(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("A100", seed, 4)
    for p in out:
        loop(p, lambda i, p=p: _fsdp(p, on, 4))  # type: ignore[misc]
    return out


def _pipe(
    p: Prog,
    stages: int,
    micros: int,
    scale: list[float],
    layers: int,
    *,
    blocking: bool = False,
    ahead: bool = False,
    batch: int = 2,
    head: int = 0,
    speed: float = 200,
    style: str = "group",
) -> None:
    rank = p.rank
    net = transformer(p.device, layers, batch, 1024, 2048)
    net += [linear(p.device, batch * 1024, 2048, head)] if head else []
    name, size = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", batch * 1024 * 2048
    us = 15 + size * 2 / speed / 1e3

    def move(kind: str, other: int, tag: str) -> None:
        stream = 7 if blocking else {"f": 20, "b": 21}[tag] + (10 if kind == "send" else 0)
        pair, extra = sorted([rank, other]), {}
        if style != "pair":
            extra = {"Group size": stages, "Process Group Ranks": str(list(range(stages)))}
        if style == "ends":
            ends = (rank, other) if kind == "send" else (other, rank)
            extra |= {"Src Rank": ends[0], "Dst Rank": ends[1]}
        label = f"{pair[0] + 10}" if style == "pair" else "3"
        p.collective(
            kind, name, size, us, pair, tag=tag, stream=stream, operator=f"c10d::{kind}", extra=extra, name=label
        )

    def take(other: int, tag: str, m: int) -> None:
        stream = 7 if blocking else {"f": 20, "b": 21}[tag]
        if m == 0 or not ahead:
            move("recv", other, tag)
        if stream != 7:
            p.order(stream, 7)
        if ahead and m + 1 < micros:
            p.stream = 30  # posted on a stream of its own: not after the forward pass that is being queued
            move("recv", other, tag)
            p.stream = 7

    load(p, 90)
    numbers = []
    for m in range(micros):
        p.scale = abs(scale[m % len(scale)])
        if rank:
            take(rank - 1, "f", m)
        numbers.append(forward(p, net))
        if rank < stages - 1:
            move("send", rank + 1, "f")
    for m in range(micros):
        p.scale = abs(scale[m % len(scale)])
        if rank < stages - 1:
            take(rank + 1, "b", m)
        backward(p, net, numbers[m])
        if rank:
            move("send", rank - 1, "b")
    p.scale = 1.0
    optimizer(p, net)


@case("pipeline.bubble", "4 stages, 4 micro-batches (GPipe): 3 of 7 slots empty")
def pipe_bubble(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("H100", seed, 4)
    for p in out:
        loop(p, lambda i, p=p: _pipe(p, 4, 4 if on else 16, [1.0], 2, batch=8 if on else 2), 6)  # type: ignore[misc]
    return out


@case(
    "pipeline.stage-imbalance",
    "the last of 2 stages also has a head of 32000 classes: 16 micro-batches, the first stage waits",
)
def pipe_stage(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("A100", seed, 2)
    for p in out:
        head = (32000 if p.rank else 0) if on else 16000
        loop(p, lambda i, p=p, head=head: _pipe(p, 2, 12, [1.0], 2, head=head, style="pair"), 6)  # type: ignore[misc]
    return out


@case(
    "pipeline.sequence-imbalance",
    "2 stages, 8 micro-batches of which two take 3 times as long (long sequences)",
    "no rule",
)
def pipe_sequence(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("A100", seed, 2)
    scale = [3.0, 0.6, 0.6, 0.6, 3.0, 0.6, 0.6, 0.6] if on else [1.2] * 8
    for p in out:
        loop(p, lambda i, p=p: _pipe(p, 2, 8, scale, 2, style="ends"), 6)  # type: ignore[misc]
    return out


@case(
    "communication.blocking-p2p communication.exposed pipeline.bubble",
    "send and recv run on the compute stream: each waits for the neighbour before computing",
    "no rule",
)
def p2p_blocking(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("A100", seed, 2)
    for p in out:
        loop(p, lambda i, p=p: _pipe(p, 2, 8, [1.0], 2, blocking=on, ahead=not on, speed=12), 6)  # type: ignore[misc]
    return out


@case(
    "input.rank-skew pipeline.sequence-imbalance",
    "DDP: token counts of ranks differ at random, 0.6-1.8 of the mean; another rank is last in each step",
    "no rule",
)
def rank_skew(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("A100", seed, 4)
    for p in out:

        def body(i: int, p: Prog = p) -> None:
            long = on and (i * 7 + 3) % 4 == p.rank
            s = 1040 if not on else (1664 if long else 832)
            step(p, transformer(p.device, 6, 4, s, 1024), group=[0, 1, 2, 3], busbw=180)

        loop(p, body, 12)
    return out


@case("", "DDP of 4 ranks, all-reduces take 60 % of backward but lie under it", "healthy")
def healthy_ddp_hidden(r: random.Random, seed: int, on: bool) -> list[Prog]:
    return _ddp("A100", seed, 4, layers=8, b=12, busbw=40, bucket=12e6)


@case("", "FSDP with prefetch: gathers and scatters hidden, 10 % scatter", "healthy")
def healthy_fsdp(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("H100", seed, 4, noise=0.1)
    for p in out:
        n = 4

        def body(i: int, p: Prog = p) -> None:
            net = transformer(p.device, 6, 8, 2048, 2048)
            p.stream = 23
            for _ in range(6):
                p.collective(
                    "_allgather_base",
                    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                    12582912,
                    250,
                    list(range(n)),
                    out=50331648,
                    stream=22,
                    operator="c10d::_allgather_base_",
                    tag="ag",
                )
            p.stream = 7
            step(p, net, group=list(range(n)), busbw=250)

        loop(p, body, 6)
    return out


@case(
    "",
    "a small all-reduce of metrics waits 10 ms on its own stream for a rank that logs; nothing waits for it",
    "healthy",
)
def healthy_waits_off_path(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("A100", seed, 2)
    for p in out:
        net = transformer(p.device, 6, 8, 1024, 2048)

        def body(i: int, p: Prog = p, net: list[Layer] = net) -> None:
            load(p, 90)
            numbers = forward(p, net)
            if p.rank == 0:
                p.stream = 27
                all_reduce(p, 64, [0, 1], 100, "fp32", 28, name="1", tag="metrics")
                p.stream = 7
            backward(p, net, numbers)
            if p.rank == 1:
                all_reduce(p, 64, [0, 1], 100, "fp32", 28, name="1", tag="metrics")
            optimizer(p, net)

        loop(p, body)
    return out


@case(
    "",
    "a data-parallel job on one node, one trace of four, NVLink, well hidden; many syncs at the step's end behind a busy device",
    "healthy",
)
def healthy_one_of_four(r: random.Random, seed: int, on: bool) -> list[Prog]:
    out = ranks("H100", seed, 4)
    for p in out:
        net = transformer(p.device, 8, 8, 1024, 2048)

        def body(i: int, p: Prog = p, net: list[Layer] = net) -> None:
            step(p, net, group=[0, 1, 2, 3], busbw=250)
            if on and i % 3 == 0:
                for _ in range(6):
                    p.copy("DtoH (Device -> Pinned)", 4)
                    p.sync("Event")
            to_device(p, 1e5)

        loop(p, body)
    return out
