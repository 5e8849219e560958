"""Cases drawn at random: sizes, machines, what is recorded, and a fault or none; nobody has seen them before.

The cases of the registry are known to those who write the rules. These are not: a seed makes as many as are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType
from typing import TypeAlias

from benchmarks.accuracy.simulator.case import Case
from benchmarks.accuracy.simulator.job import Copies, Host, Job, Loader, Parallel
from benchmarks.accuracy.simulator.machine import A100, H100, Fabric, HostCosts, Machine
from benchmarks.accuracy.simulator.simulate import simulate
from benchmarks.accuracy.simulator.transformer import Transformer

MS = 1_000_000
_WORTH = 1.06
"""A fault that gains less is too weak to ask for: it is drawn again."""
_FREE = 1.015
"""Hiding communication must not be worth more in a job that counts as healthy."""


@dataclass(frozen=True, slots=True)
class Draw:
    """A healthy job, its step, and where further numbers come from."""

    job: Job
    step_ns: float
    random: Random

    def share(self, low: float, high: float) -> int:
        """Nanoseconds: some share of a step."""
        return round(self.step_ns * self.random.uniform(low, high))


Fault: TypeAlias = Callable[[Draw], tuple[Job, Job]]
"""Makes the job with the fault, and the same job cured."""


def _host(draw: Draw, **changes: int | str | bool) -> tuple[Job, Job]:
    return replace(draw.job, host=replace(draw.job.host, **changes)), draw.job  # type: ignore[arg-type]


def _loader(draw: Draw, faulty: Loader, cured: Loader) -> tuple[Job, Job]:
    return replace(draw.job, loader=faulty), replace(draw.job, loader=cured)


def _synchronous(draw: Draw) -> tuple[Job, Job]:
    cost_ns = draw.share(0.7, 2.5)
    return _loader(draw, Loader("inline", cost_ns), Loader("workers", cost_ns, workers=8))


def _few_workers(draw: Draw) -> tuple[Job, Job]:
    workers = draw.random.randint(1, 3)
    loader = Loader("workers", round(draw.share(1.3, 3.0) * workers), workers=workers)
    return _loader(draw, loader, replace(loader, workers=12))


def _restarts(draw: Draw) -> tuple[Job, Job]:
    loader = Loader("workers", draw.share(0.2, 0.5), workers=4, epoch_steps=4, restart_ns=draw.share(2, 8))
    return _loader(draw, loader, replace(loader, epoch_steps=0, restart_ns=0))


def _python(draw: Draw) -> tuple[Job, Job]:
    return _host(draw, slow_python_ns=draw.share(0.8, 2.0))


def _collections(draw: Draw) -> tuple[Job, Job]:
    return _host(draw, gc_every=draw.random.choice((1, 2, 4)), gc_ns=draw.share(1.0, 3.0))


def _syncs(draw: Draw) -> tuple[Job, Job]:
    return _host(draw, items_every=draw.random.choice((1, 1, 2)))


def _allocations(draw: Draw) -> tuple[Job, Job]:
    count = draw.random.randint(8, 20)
    return _host(draw, allocations_per_step=count, allocation_ns=draw.share(0.8, 2.0) // count)


def _pageable(draw: Draw) -> tuple[Job, Job]:
    rate = draw.job.machine.gpu.pcie_pageable
    copies = Copies(round(draw.share(0.2, 1.0) * rate / 1e9) // 8 * 8, pinned=False)
    return replace(draw.job, copies=copies), replace(draw.job, copies=replace(copies, pinned=True))


def _episode(pause: str) -> Fault:
    def made(draw: Draw) -> tuple[Job, Job]:
        length = draw.random.randint(4, 12) if pause == "evaluation" else draw.share(1.5, 6.0)
        return _host(draw, every=draw.random.choice((2, 4)), pause=pause, pause_ns=length)

    return made


def _model(**changes: object) -> Fault:
    def made(draw: Draw) -> tuple[Job, Job]:
        return replace(draw.job, model=replace(draw.job.transformer, **changes)), draw.job  # type: ignore[arg-type]

    return made


def _fusible(draw: Draw) -> tuple[Job, Job]:
    model = draw.job.transformer
    faulty = replace(draw.job, model=replace(model, activation="chain"))
    return faulty, replace(draw.job, model=replace(model, activation="compiled"))


def _misaligned(draw: Draw) -> tuple[Job, Job]:
    odd = draw.random.choice((1, 3, 5))
    return _model(feed_forward=draw.job.transformer.feed_forward - odd)(draw)


def _optimizer(draw: Draw) -> tuple[Job, Job]:
    return replace(draw.job, optimizer="loop"), draw.job


def _recompute(draw: Draw) -> tuple[Job, Job]:
    return replace(draw.job, recompute=True), draw.job


def _throttled(draw: Draw) -> tuple[Job, Job]:
    return replace(draw.job, throttled=((draw.random.randint(3, 6), draw.random.uniform(1.2, 1.9)),)), draw.job


def _parallel(draw: Draw, **changes: object) -> tuple[Job, Job]:
    faulty = replace(draw.job.parallel, **changes)  # type: ignore[arg-type]
    return replace(draw.job, parallel=faulty), draw.job


def _unoverlapped(draw: Draw) -> tuple[Job, Job]:
    return _parallel(draw, overlap=False)


def _straggler(draw: Draw) -> tuple[Job, Job]:
    rank = draw.random.randrange(draw.job.parallel.ranks)
    return _parallel(draw, slow_rank=rank, slow_rank_scale=draw.random.uniform(1.12, 1.7))


def _slow_links(draw: Draw) -> tuple[Job, Job]:
    machine = draw.job.machine
    slow = replace(machine.fabric, bus_bandwidth=draw.random.uniform(4e9, 14e9))
    return replace(draw.job, machine=replace(machine, fabric=slow)), draw.job


_SEEN_IN_STACKS = frozenset({"episodic.logging", "host.gc"})
"""Without them the trace shows a pause and not what it was."""
ALONE: Mapping[str, Fault] = MappingProxyType(
    {
        "input.synchronous-loader": _synchronous,
        "input.too-few-workers": _few_workers,
        "input.worker-restart": _restarts,
        "host.python": _python,
        "host.gc": _collections,
        "host.sync": _syncs,
        "host.allocator": _allocations,
        "host.pageable-copy": _pageable,
        "compute.unfused-attention": _model(attention="eager"),
        "compute.fusible": _fusible,
        "compute.misaligned-shape": _misaligned,
        "compute.layout-conversion": _model(layout_copies=6),
        "compute.unfused-optimizer": _optimizer,
        "compute.redundant-work": _recompute,
        "device.throttled": _throttled,
        "episodic.checkpoint": _episode("checkpoint"),
        "episodic.logging": _episode("logging"),
        "episodic.evaluation": _episode("evaluation"),
    }
)
TOGETHER: Mapping[str, Fault] = MappingProxyType(
    {
        "communication.exposed": _unoverlapped,
        "communication.straggler": _straggler,
        "communication.low-bandwidth": _slow_links,
        "input.synchronous-loader": _synchronous,
        "episodic.checkpoint": _episode("checkpoint"),
        "compute.unfused-attention": _model(attention="eager"),
    }
)


def drawn(name: str) -> Case:
    """The case of a name, ``drawn-SEED-NUMBER``: the same for the same name."""
    _, seed, number = name.split("-")
    return _case(name, Random(f"{seed}/{number}"))  # noqa: S311 - no secret


def _case(name: str, random: Random) -> Case:
    while True:
        job = _healthy(random)
        faults = ALONE if job.parallel.ranks == 1 else TOGETHER
        cause = random.choice([*sorted(faults), "", ""])
        step_ns = simulate(job).step_ns()
        if not _is_free(job, step_ns):
            continue
        if not cause:
            return Case(name, job)
        if cause in _SEEN_IN_STACKS:
            job = replace(job, stacks=True)
        faulty, cured = faults[cause](Draw(job, step_ns, random))
        if simulate(faulty).step_ns() > _WORTH * simulate(cured).step_ns():
            rank = faulty.parallel.slow_rank
            return Case(name, faulty, {cause: cured}, rank=rank)


def _healthy(random: Random) -> Job:
    gpu = random.choice((H100, A100))
    hidden = random.choice((1024, 1536, 2048) if gpu is H100 else (768, 1024, 1536))
    sequence = random.choice((512, 1024, 2048))
    model = Transformer(
        layers=random.randint(2, 6),
        hidden=hidden,
        heads=hidden // 64,
        feed_forward=4 * hidden,
        vocabulary=random.choice((8192, 32000, 50304)),
        batch=random.choice((6, 8, 12)) * 1024 // sequence,
        sequence=sequence,
        dtype=random.choice(("bf16", "bf16", "fp16")),
    )
    machine = Machine(
        gpu, HostCosts(launch_ns=random.randint(3_200, 6_000)), Fabric(bus_bandwidth=random.uniform(2e11, 4e11))
    )
    ranks = random.choice((1, 1, 1, 2, 4))
    offsets = tuple(random.randint(-900_000, 900_000) for _ in range(ranks))
    parallel = Parallel("ddp", ranks, clock_offsets_ns=offsets) if ranks > 1 else Parallel()
    return Job(
        model,
        machine,
        host=Host(items_per_step=random.choice((0, 1, 1)), between_stages_ns=random.randint(3_000, 9_000)),
        parallel=parallel,
        optimizer="fused",
        seed=random.randint(100, 10_000),
        stacks=random.random() < 0.5,
        sync_events=random.random() < 0.3,
    )


def _is_free(job: Job, step_ns: float) -> bool:
    """Whether neither the host nor the links hold the job up."""
    costs = replace(job.machine.costs, launch_ns=1_000, operator_scale=0.3)
    swift = replace(
        job, machine=replace(job.machine, costs=costs, fabric=Fabric(1_000, 5e12)), host=Host(between_stages_ns=500)
    )
    return step_ns <= _FREE * simulate(swift).step_ns()
