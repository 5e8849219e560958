"""Cases of communication, pipelines and episodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.accuracy.simulator.case import Case
from benchmarks.accuracy.simulator.cases_host import MEDIUM, MS, STRENGTHS
from benchmarks.accuracy.simulator.job import Host, Job, Loader, Parallel
from benchmarks.accuracy.simulator.machine import Fabric, Machine

DEEP = replace(MEDIUM, layers=8)
SLOW_FABRIC = Machine(fabric=Fabric(latency_ns=30_000, bus_bandwidth=60e9))


def cases() -> Iterator[Case]:
    """All of them."""
    yield from exposed()
    yield from gathered_late()
    yield from small_messages()
    yield from every_micro_batch()
    yield from low_bandwidth()
    yield from stragglers()
    yield from ranks_apart()
    yield from experts()
    yield from bubbles()
    yield from unequal_stages()
    yield from episodes()


def exposed() -> Iterator[Case]:
    """Gradients that are reduced after the backward pass."""
    for (strength, seed), bandwidth in zip(STRENGTHS, (160e9, 90e9, 45e9), strict=True):
        machine = Machine(fabric=Fabric(bus_bandwidth=bandwidth))
        parallel = Parallel("ddp", 2 if seed == 1 else 4, overlap=False)
        job = Job(DEEP, machine, parallel=parallel, seed=seed)
        cured = replace(job, parallel=replace(parallel, overlap=True))
        yield Case(f"communication-exposed-{strength}", job, {"communication.exposed": cured}, quick=seed == 2)


def gathered_late() -> Iterator[Case]:
    """Parameters that are gathered only when they are needed."""
    for (strength, seed), bandwidth in zip(STRENGTHS, (150e9, 90e9, 60e9), strict=True):
        parallel = Parallel("fsdp", 2 if seed == 1 else 4, prefetch=False)
        job = Job(DEEP, Machine(fabric=Fabric(bus_bandwidth=bandwidth)), parallel=parallel, seed=seed)
        cured = replace(job, parallel=replace(parallel, prefetch=True))
        name = "communication.no-prefetch"
        yield Case(f"communication-no-prefetch-{strength}", job, {name: cured}, quick=seed == 2)


def small_messages() -> Iterator[Case]:
    """A collective per gradient, where each costs its latency."""
    for (strength, seed), latency_us in zip(STRENGTHS, (120, 250, 600), strict=True):
        machine = Machine(fabric=Fabric(latency_ns=latency_us * 1_000, bus_bandwidth=200e9))
        parallel = Parallel("ddp", 4, bucket_bytes=1)
        job = Job(
            replace(DEEP, hidden=512, heads=8, feed_forward=2048, layers=12), machine, parallel=parallel, seed=seed
        )
        cured = replace(job, parallel=replace(parallel, bucket_bytes=25 * 1024 * 1024))
        name = "communication.small-messages"
        yield Case(f"communication-small-messages-{strength}", job, {name: cured}, quick=seed == 2)


def every_micro_batch() -> Iterator[Case]:
    """Gradients that are accumulated, and reduced after every micro-batch."""
    for (strength, seed), (count, batch) in zip(STRENGTHS, ((2, 4), (4, 4), (8, 2)), strict=True):
        parallel = Parallel("ddp", 2 if seed == 3 else 4, sync_every=True)
        machine = Machine(fabric=Fabric(bus_bandwidth=90e9))
        job = Job(replace(DEEP, batch=batch), machine, parallel=parallel, accumulate=count, steps=7, seed=seed)
        cured = replace(job, parallel=replace(parallel, sync_every=False))
        name = "communication.redundant-sync"
        yield Case(f"communication-redundant-sync-{strength}", job, {name: cured}, quick=seed == 2)


def low_bandwidth() -> Iterator[Case]:
    """Links far below what the data sheet says."""
    for (strength, seed), bandwidth in zip(STRENGTHS, (20e9, 12e9, 5e9), strict=True):
        parallel = Parallel("ddp", 4)
        job = Job(DEEP, Machine(fabric=Fabric(bus_bandwidth=bandwidth)), parallel=parallel, seed=seed)
        cured = replace(job, machine=Machine())
        yield Case(
            f"communication-low-bandwidth-{strength}", job, {"communication.low-bandwidth": cured}, quick=seed == 2
        )


def stragglers() -> Iterator[Case]:
    """One rank computes more slowly than the others; clocks differ."""
    for (strength, seed), scale in zip(STRENGTHS, (1.12, 1.3, 1.8), strict=True):
        rank = (2, 1, 3)[seed - 1]
        offsets = (0, 41_000, -133_000, 850_000)
        parallel = Parallel("ddp", 4, slow_rank=rank, slow_rank_scale=scale, clock_offsets_ns=offsets)
        job = Job(MEDIUM, parallel=parallel, seed=seed)
        cured = replace(job, parallel=replace(parallel, slow_rank=None))
        yield Case(
            f"communication-straggler-{strength}",
            job,
            {"communication.straggler": cured},
            rank=rank,
            accepted=("device.degraded",),
            quick=seed == 2,
        )


def ranks_apart() -> Iterator[Case]:
    """What happens on one rank, or on each at another time, holds up all."""
    own = Host(items_per_step=1, gc_every=4, gc_ns=14 * MS, gc_apart=True)
    parallel = Parallel("ddp", 4)
    job = Job(MEDIUM, host=own, parallel=parallel, seed=1, stacks=True)
    yield Case("host-gc-ranks", job, {"host.gc": replace(job, host=replace(own, gc_every=0))}, quick=True)
    plain = Host(items_per_step=1)
    loader = Loader("workers", 9 * MS, workers=6)
    job = Job(MEDIUM, host=plain, loader=loader, parallel=parallel, seed=2)
    job = replace(job, of_rank=((1, Loader("inline", 11 * MS)),))
    cured = replace(job, of_rank=())
    accepted = ("input.rank-skew", "communication.straggler")
    name = "input-synchronous-loader-rank"
    yield Case(name, job, {"input.synchronous-loader": cured}, rank=1, accepted=accepted, additive=False, quick=True)
    job = Job(MEDIUM, host=plain, parallel=parallel, seed=3, stacks=True)
    job = replace(job, of_rank=((2, replace(plain, slow_python_ns=12 * MS)),))
    cured = replace(job, of_rank=())
    yield Case("host-python-rank", job, {"host.python": cured}, rank=2, accepted=("communication.straggler",))


def experts() -> Iterator[Case]:
    """One rank's experts get more tokens than the others'."""
    loads = ((0.8, 0.8, 0.8, 1.6), (0.7, 1.9, 0.7, 0.7), (2.8, 0.4, 0.4, 0.4))
    for (strength, seed), load in zip(STRENGTHS, loads, strict=True):
        parallel = Parallel("expert", 4, expert_load=load)
        job = Job(MEDIUM, parallel=parallel, seed=seed)
        cured = replace(job, parallel=replace(parallel, expert_load=(1.0,) * 4))
        name = "communication.expert-imbalance"
        rank = load.index(max(load))
        yield Case(f"communication-expert-imbalance-{strength}", job, {name: cured}, rank=rank, quick=seed == 2)


def bubbles() -> Iterator[Case]:
    """Too few micro-batches for the number of stages: the cure cuts the same batch into more."""
    for (strength, seed), micro in zip(STRENGTHS, (8, 4, 2), strict=True):
        model = replace(MEDIUM, layers=8, hidden=2048, feed_forward=8192, batch=32, vocabulary=1024)
        parallel = Parallel("pipeline", 4, micro_batches=micro)
        job = Job(model, parallel=parallel, steps=7, seed=seed)
        cured = replace(job, parallel=replace(parallel, micro_batches=min(32, 4 * micro)))
        note = f"{micro} micro-batches on 4 stages; the cure has {min(32, 4 * micro)}"
        yield Case(f"pipeline-bubble-{strength}", job, {"pipeline.bubble": cured}, note=note, quick=seed == 2)


def unequal_stages() -> Iterator[Case]:
    """One stage has more layers than the others."""
    splits = ((2, 1, 3, 2), (1, 1, 5, 1), (4, 1, 1, 2))
    for (strength, seed), layers in zip(STRENGTHS, splits, strict=True):
        model = replace(MEDIUM, layers=8, hidden=2048, feed_forward=8192, batch=32, vocabulary=1024)
        parallel = Parallel("pipeline", 4, micro_batches=16, stage_layers=layers)
        job = Job(model, parallel=parallel, steps=7, seed=seed)
        cured = replace(job, parallel=replace(parallel, stage_layers=()))
        name, rank = "pipeline.stage-imbalance", layers.index(max(layers))
        yield Case(
            f"pipeline-stage-imbalance-{strength}", job, {name: cured}, rank=rank, additive=False, quick=seed == 2
        )


def episodes() -> Iterator[Case]:
    """What happens every few steps."""
    for (strength, seed), (every, pause_ms) in zip(STRENGTHS, ((4, 20), (4, 80), (2, 60)), strict=True):
        for pause in ("checkpoint", "logging"):
            host = Host(every=every, pause=pause, pause_ns=pause_ms * MS, items_per_step=1)
            job = Job(MEDIUM, host=host, seed=seed, stacks=seed != 1)
            cured = replace(job, host=replace(host, every=0))
            yield Case(f"episodic-{pause}-{strength}", job, {f"episodic.{pause}": cured}, quick=seed == 2)
    for (strength, seed), (every, passes) in zip(STRENGTHS, ((4, 4), (4, 10), (2, 10)), strict=True):
        host = Host(every=every, pause="evaluation", pause_ns=passes, items_per_step=1)
        job = Job(MEDIUM, host=host, seed=seed, stacks=seed != 1)
        cured = replace(job, host=replace(host, every=0))
        yield Case(f"episodic-evaluation-{strength}", job, {"episodic.evaluation": cured}, quick=seed == 2)
