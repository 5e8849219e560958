"""Jobs in which nothing is wrong, jobs that look as if, and jobs with two faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks.accuracy.simulator.case import Case
from benchmarks.accuracy.simulator.cases_host import MEDIUM, MS
from benchmarks.accuracy.simulator.convnet import ConvNet
from benchmarks.accuracy.simulator.job import Copies, Host, Job, Loader, Parallel
from benchmarks.accuracy.simulator.machine import Fabric, HostCosts, Machine
from benchmarks.accuracy.simulator.transformer import Transformer

LARGE = Transformer(layers=4)
"""About 28 ms of compute a step, 3 ms of launching."""
DECODER = Transformer(layers=24, hidden=4096, heads=32, feed_forward=16384, batch=16, sequence=1, vocabulary=32000)


def cases() -> Iterator[Case]:
    """All of them."""
    yield from healthy()
    yield from decoys()
    yield from pairs()
    yield from followed()


def healthy() -> Iterator[Case]:
    """Nothing is wrong."""
    for seed in (1, 2):
        yield Case(f"healthy-compute-bound-{seed}", Job(LARGE, seed=seed, stacks=seed == 2), quick=seed == 1)
        yield Case(f"healthy-ddp-{seed}", Job(LARGE, parallel=Parallel("ddp", 4), seed=seed), quick=seed == 2)
        decode = Host(per_step_ns=20_000)
        job = Job(DECODER, host=decode, kind="decode", graphs=True, seed=seed)
        yield Case(f"healthy-graph-decode-{seed}", job, quick=seed == 1)
        job = Job(LARGE, parallel=Parallel("fsdp", 4), seed=seed)
        yield Case(f"healthy-fsdp-{seed}", job, quick=seed == 2)
        loader = Loader("workers", 30 * MS, workers=8)
        yield Case(f"healthy-workers-{seed}", Job(LARGE, loader=loader, seed=seed))
        yield Case(f"healthy-images-{seed}", Job(ConvNet(channels=128), seed=seed))
    parallel = Parallel("ddp", 4)
    job = Job(replace(LARGE, batch=4), parallel=parallel, accumulate=4, steps=7, seed=5)
    yield Case("healthy-accumulation", job, resists=("communication.redundant-sync",))
    contended = Machine(fabric=Fabric(slows_compute_milli=1_080))
    yield Case("healthy-ddp-contended", Job(LARGE, contended, parallel=Parallel("ddp", 4), seed=3))
    yield Case("healthy-sync-events", Job(LARGE, sync_events=True, seed=3))
    model = replace(LARGE, layers=4, batch=64, vocabulary=1024)
    job = Job(model, parallel=Parallel("pipeline", 2, micro_batches=64), steps=5, seed=15)
    yield Case("healthy-pipeline", job, note="64 micro-batches on 2 stages: a bubble of 1.6 %")


def decoys() -> Iterator[Case]:
    """What looks like a fault and costs nothing."""
    yield from _communication_decoys()
    yield from _host_decoys()
    plain = Job(LARGE, seed=13)
    narrow = replace(LARGE, vocabulary=1024)
    job = replace(plain, model=replace(narrow, vocabulary=1025))
    yield _decoy("misaligned-head", job, replace(plain, model=narrow), "compute.misaligned-shape")


def _communication_decoys() -> Iterator[Case]:
    busy, free = Machine(fabric=Fabric(bus_bandwidth=100e9)), Machine(fabric=Fabric(bus_bandwidth=400e9))
    job = Job(LARGE, busy, parallel=Parallel("ddp", 4), seed=1)
    resists = ("communication.exposed", "communication.low-bandwidth", "communication.straggler")
    yield _decoy("hidden-communication", job, replace(job, machine=free), *resists, quick=True)
    busy = Machine(fabric=Fabric(bus_bandwidth=160e9))
    job = Job(LARGE, busy, parallel=Parallel("fsdp", 4), seed=14)
    yield _decoy("hidden-gathers", job, replace(job, machine=free), *resists, quick=True)
    offsets = (0, 2_300_000, -1_700_000, 900_000)
    job = Job(LARGE, parallel=Parallel("ddp", 4, clock_offsets_ns=offsets), seed=2)
    yield _decoy("clock-skew", job, replace(job, parallel=Parallel("ddp", 4)), *resists, quick=True)


def _host_decoys() -> Iterator[Case]:
    job = Job(DECODER, host=Host(per_step_ns=20_000), kind="decode", graphs=True, hidden_graph_launches=True, seed=3)
    yield _decoy("graph-without-launches", job, job, "host.launch-bound", quick=True)
    plain = Job(LARGE, host=Host(syncs_at_end=1), seed=4)
    job = replace(plain, loader=Loader("inline", 280_000))
    yield _decoy("cheap-synchronous-loader", job, plain, "input.synchronous-loader", quick=True)
    plain = Job(LARGE, seed=5)
    yield _decoy(
        "hidden-synchronous-loader", replace(plain, loader=Loader("inline", 6 * MS)), plain, "input.synchronous-loader"
    )
    yield _decoy("long-sync", replace(plain, host=Host(syncs_at_end=1)), plain, "host.sync", quick=True)
    job = replace(plain, host=Host(items_per_step=1), sync_events=True)
    yield _decoy("item-per-step", job, plain, "host.sync")
    job = replace(plain, host=Host(slow_python_ns=8 * MS), stacks=True)
    yield _decoy("hidden-python", job, plain, "host.python", quick=True)
    job = replace(plain, host=Host(allocations_per_step=10))
    yield _decoy("hidden-allocations", job, plain, "host.allocator", "memory.allocator-retry")
    job = replace(plain, host=Host(gc_every=2, gc_ns=10 * MS), stacks=True)
    yield _decoy("hidden-collections", job, plain, "host.gc")
    job = replace(plain, host=Host(contention=2.0))
    yield _decoy("slow-launches", job, plain, "host.launch-bound", "host.python")
    warm = Host(allocations_per_step=30, allocation_ns=2 * MS, allocation_steps=2, syncs_at_end=1)
    job = replace(plain, host=warm)
    yield _decoy("warm-up", job, replace(plain, host=Host(syncs_at_end=1)), "host.allocator", "memory.allocator-retry")


def followed() -> Iterator[Case]:
    """What is slow because the profiler follows it: the same job that nobody follows has nothing of it."""
    quiet = Host(items_per_step=1)
    for seed, count, each_us in ((81, 1_200, 20), (82, 4_000, 3)):
        plain = Job(MEDIUM, host=quiet, seed=seed, stacks=True)
        job = replace(plain, host=replace(quiet, traced_calls=count, traced_ns=each_us * 1_000))
        yield Case(f"followed-calls-{count}", job, resists=("host.python",))
    costs = HostCosts(graph_kernel_gap_ns=9_000)
    decode = Host(per_step_ns=20_000, items_per_step=1)
    job = Job(DECODER, Machine(costs=costs), host=decode, kind="decode", graphs=True, seed=83)
    note = "gaps between the kernels of one graph that nobody sees where no profiler is on"
    yield Case("followed-graph-gaps", job, resists=("host.launch-bound", "host.python", "host.sync"), note=note)


def _decoy(name: str, job: Job, undisguised: Job, *resists: str, quick: bool = False) -> Case:
    return Case(f"decoy-{name}", job, resists=resists, undisguised=undisguised, quick=quick)


def pairs() -> Iterator[Case]:
    """Two faults at once."""
    job = Job(
        MEDIUM,
        loader=Loader("inline", 12 * MS),
        host=Host(items_every=1, items_per_step=1),
        seed=1,
    )
    workers = Loader("workers", 12 * MS, workers=8)
    yield _pair(
        "input-and-sync",
        job,
        {"input.synchronous-loader": {"loader": workers}, "host.sync": {"host": Host(items_per_step=1)}},
    )
    parallel = Parallel("ddp", 4, overlap=False)
    fabric = Machine(fabric=Fabric(bus_bandwidth=60e9))
    host = Host(slow_python_ns=8 * MS, syncs_at_end=1)
    job = Job(replace(MEDIUM, layers=8), fabric, host=host, parallel=parallel, seed=2)
    quiet = replace(host, slow_python_ns=0)
    yield _pair(
        "python-and-communication",
        job,
        {"host.python": {"host": quiet}, "communication.exposed": {"parallel": replace(parallel, overlap=True)}},
    )
    model = replace(MEDIUM, layers=6, attention="eager")
    job = Job(model, optimizer="loop", seed=3)
    flash = replace(model, attention="flash")
    yield _pair(
        "attention-and-optimizer",
        job,
        {"compute.unfused-attention": {"model": flash}, "compute.unfused-optimizer": {"optimizer": "fused"}},
    )
    host = Host(gc_every=2, gc_ns=25 * MS, items_per_step=1)
    copies = Copies(48 * 1024 * 1024, pinned=False)
    job = Job(MEDIUM, host=host, copies=copies, seed=4, stacks=True)
    yield _pair(
        "collections-and-copies",
        job,
        {
            "host.gc": {"host": replace(host, gc_every=0)},
            "host.pageable-copy": {"copies": replace(copies, pinned=True)},
        },
    )
    parallel = Parallel("ddp", 4, slow_rank=1, slow_rank_scale=1.25)
    host = Host(every=4, pause="checkpoint", pause_ns=60 * MS, items_per_step=1)
    job = Job(MEDIUM, host=host, parallel=parallel, seed=5, stacks=True)
    cures: dict[str, Any] = {
        "episodic.checkpoint": {"host": replace(host, every=0)},
        "communication.straggler": {"parallel": replace(parallel, slow_rank=None)},
    }
    yield replace(_pair("checkpoint-and-straggler", job, cures), rank=1)


def _pair(name: str, job: Job, cures: dict[str, Any]) -> Case:
    cured = {cause: replace(job, **changes) for cause, changes in cures.items()}
    together = job
    for changes in cures.values():
        together = replace(together, **changes)
    return Case(f"pair-{name}", job, cured, together, quick=job.seed <= 2)
