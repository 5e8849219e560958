"""Jobs in which nothing is wrong, jobs that look as if, and jobs with two faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks.accuracy.simulator.case import Case
from benchmarks.accuracy.simulator.cases_host import MEDIUM, MS
from benchmarks.accuracy.simulator.convnet import ConvNet
from benchmarks.accuracy.simulator.job import Copies, Host, Job, Loader, Parallel
from benchmarks.accuracy.simulator.machine import Fabric, Machine
from benchmarks.accuracy.simulator.transformer import Transformer

LARGE = Transformer(layers=4)
"""About 28 ms of compute a step, 3 ms of launching."""
DECODER = Transformer(layers=24, hidden=4096, heads=32, feed_forward=16384, batch=16, sequence=1, vocabulary=32000)


def cases() -> Iterator[Case]:
    """All of them."""
    yield from healthy()
    yield from decoys()
    yield from pairs()


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
    contended = Machine(fabric=Fabric(slows_compute_milli=1_080))
    yield Case("healthy-ddp-contended", Job(LARGE, contended, parallel=Parallel("ddp", 4), seed=3))
    yield Case("healthy-sync-events", Job(LARGE, sync_events=True, seed=3))


def decoys() -> Iterator[Case]:
    """What looks like a fault and costs nothing."""
    slow = Machine(fabric=Fabric(bus_bandwidth=40e9))
    job = Job(LARGE, slow, parallel=Parallel("ddp", 4), seed=1)
    yield Case(
        "decoy-hidden-communication", job, resists=("communication.exposed", "communication.low-bandwidth"), quick=True
    )
    offsets = (0, 2_300_000, -1_700_000, 900_000)
    job = Job(LARGE, parallel=Parallel("ddp", 4, clock_offsets_ns=offsets), seed=2)
    yield Case("decoy-clock-skew", job, resists=("communication.straggler", "communication.exposed"), quick=True)
    job = Job(DECODER, host=Host(per_step_ns=20_000), kind="decode", graphs=True, hidden_graph_launches=True, seed=3)
    yield Case("decoy-graph-without-launches", job, resists=("host.launch-bound",), quick=True)
    job = Job(LARGE, loader=Loader("inline", 280_000), host=Host(items_per_step=1), seed=4)
    yield Case("decoy-cheap-synchronous-loader", job, resists=("input.synchronous-loader",), quick=True)
    job = Job(LARGE, loader=Loader("inline", 6 * MS), seed=5)
    yield Case("decoy-hidden-synchronous-loader", job, resists=("input.synchronous-loader",))
    job = Job(LARGE, host=Host(syncs_at_end=1), seed=6)
    yield Case("decoy-long-sync", job, resists=("host.sync",), quick=True)
    job = Job(LARGE, host=Host(items_per_step=1), seed=7, sync_events=True)
    yield Case("decoy-item-per-step", job, resists=("host.sync",))
    job = Job(LARGE, host=Host(slow_python_ns=8 * MS), seed=8, stacks=True)
    yield Case("decoy-hidden-python", job, resists=("host.python",), quick=True)
    job = Job(LARGE, host=Host(allocations_per_step=10), seed=9)
    yield Case("decoy-hidden-allocations", job, resists=("host.allocator", "memory.allocator-retry"))
    job = Job(LARGE, host=Host(gc_every=2, gc_ns=10 * MS), seed=10, stacks=True)
    yield Case("decoy-hidden-collections", job, resists=("host.gc",))
    job = Job(LARGE, host=Host(contention=2.0), seed=11)
    yield Case("decoy-slow-launches", job, resists=("host.launch-bound", "host.python"))


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
