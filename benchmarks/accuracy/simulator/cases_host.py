"""Cases of input and host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.accuracy.simulator.case import Case
from benchmarks.accuracy.simulator.job import Copies, Host, Job, Loader
from benchmarks.accuracy.simulator.transformer import Transformer

MS = 1_000_000
MEDIUM = Transformer(layers=4, hidden=1024, heads=16, feed_forward=4096, batch=8, sequence=1024, vocabulary=32000)
"""About 9 ms of compute a step, 3 ms of launching."""
SMALL = Transformer(layers=8, hidden=256, heads=4, feed_forward=1024, batch=4, sequence=128, vocabulary=8192)
"""Kernels of a few microseconds."""
STRENGTHS = (("mild", 1), ("strong", 2), ("severe", 3))


def cases() -> Iterator[Case]:
    """All of them."""
    yield from synchronous_loader()
    yield from too_few_workers()
    yield from worker_restart()
    yield from launch_bound()
    yield from python()
    yield from syncs()
    yield from garbage()
    yield from pageable()
    yield from allocator()


def synchronous_loader() -> Iterator[Case]:
    """Batches are made on the training thread."""
    for (strength, seed), cost_ms in zip(STRENGTHS, (6, 9, 25), strict=True):
        job = Job(MEDIUM, loader=Loader("inline", cost_ms * MS), host=Host(items_per_step=1), seed=seed)
        cured = replace(job, loader=Loader("workers", cost_ms * MS, workers=cost_ms // 3 + 4))
        yield Case(
            f"input-synchronous-loader-{strength}",
            job,
            {"input.synchronous-loader": cured},
            additive=False,
            quick=seed == 2,
        )


def too_few_workers() -> Iterator[Case]:
    """Workers are slower than the device."""
    for (strength, seed), (cost_ms, workers) in zip(STRENGTHS, ((26, 2), (30, 1), (90, 2)), strict=True):
        job = Job(
            MEDIUM, loader=Loader("workers", cost_ms * MS, workers=workers), host=Host(items_per_step=1), seed=seed
        )
        cured = replace(job, loader=replace(job.loader, workers=12))
        yield Case(f"input-too-few-workers-{strength}", job, {"input.too-few-workers": cured}, quick=seed == 2)
    loader = Loader("workers", 12 * MS, workers=3, heavy_every=8, heavy_ns=90 * MS)
    job = Job(MEDIUM, loader=loader, host=Host(items_per_step=1), seed=4)
    cured = replace(job, loader=replace(loader, heavy_every=0))
    yield Case("input-heavy-tail", job, {"input.heavy-tail": cured}, accepted=("input.too-few-workers",))


def worker_restart() -> Iterator[Case]:
    """New workers for every epoch."""
    for (strength, seed), restart_ms in zip(STRENGTHS, (12, 30, 120), strict=True):
        loader = Loader("workers", 4 * MS, workers=4, epoch_steps=4, restart_ns=restart_ms * MS)
        job = Job(MEDIUM, loader=loader, host=Host(items_per_step=1), seed=seed)
        cured = replace(job, loader=replace(loader, epoch_steps=0, restart_ns=0))
        yield Case(f"input-worker-restart-{strength}", job, {"input.worker-restart": cured})


def launch_bound() -> Iterator[Case]:
    """Many small kernels, each launched on its own."""
    sizes = (
        replace(SMALL, batch=16, sequence=256, hidden=512, heads=8, feed_forward=2048),
        replace(SMALL, batch=8),
        SMALL,
    )
    for (strength, seed), model in zip(STRENGTHS, sizes, strict=True):
        job = Job(model, seed=seed)
        cured = replace(job, graphs=True)
        yield Case(f"host-launch-bound-{strength}", job, {"host.launch-bound": cured}, quick=seed == 3)
    decoder = Transformer(16, 1024, 16, 4096, batch=8, sequence=1, vocabulary=32000)
    job = Job(decoder, kind="decode", host=Host(per_step_ns=30_000, items_per_step=1), seed=4)
    accepted = ("inference.host-bound-decode",)
    cured = replace(job, graphs=True)
    yield Case("host-launch-bound-decode", job, {"host.launch-bound": cured}, accepted=accepted, quick=True)


def python() -> Iterator[Case]:
    """Python code between steps, before the device has anything to do."""
    for (strength, seed), cost_ms in zip(STRENGTHS, (6, 9, 20), strict=True):
        host = Host(slow_python_ns=cost_ms * MS, items_per_step=1)
        job = Job(MEDIUM, host=host, seed=seed, stacks=seed != 1)
        cured = replace(job, host=replace(host, slow_python_ns=0))
        yield Case(f"host-python-{strength}", job, {"host.python": cured}, quick=seed == 2)
    for seed, gap_us in ((4, 220), (5, 500)):
        job = Job(MEDIUM, host=Host(between_stages_ns=gap_us * 1_000), seed=seed, stacks=True)
        cured = replace(job, host=Host())
        yield Case(f"host-python-modules-{gap_us}us", job, {"host.python": cured})


def syncs() -> Iterator[Case]:
    """Values read from the device between the layers."""
    for (strength, seed), (every, batch) in zip(STRENGTHS, ((4, 8), (1, 8), (1, 5)), strict=True):
        job = Job(replace(MEDIUM, batch=batch), host=Host(items_every=every), seed=seed)
        job = replace(job, sync_events=seed == 2, stacks=seed == 3)
        cured = replace(job, host=Host())
        yield Case(f"host-sync-{strength}", job, {"host.sync": cured}, quick=seed == 2)


def garbage() -> Iterator[Case]:
    """Collections of the oldest generation."""
    for (strength, seed), (every, cost_ms) in zip(STRENGTHS, ((4, 20), (2, 15), (1, 12)), strict=True):
        host = Host(gc_every=every, gc_ns=cost_ms * MS, items_per_step=1)
        job = Job(MEDIUM, host=host, seed=seed, stacks=True)
        cured = replace(job, host=replace(host, gc_every=0))
        yield Case(f"host-gc-{strength}", job, {"host.gc": cured}, quick=seed == 2)


def pageable() -> Iterator[Case]:
    """Batches copied from memory that is not pinned."""
    for (strength, seed), mib in zip(STRENGTHS, (24, 64, 200), strict=True):
        job = Job(MEDIUM, copies=Copies(mib * 1024 * 1024, pinned=False), host=Host(items_per_step=1), seed=seed)
        cured = replace(job, copies=replace(job.copies, pinned=True))
        yield Case(f"host-pageable-copy-{strength}", job, {"host.pageable-copy": cured}, quick=seed == 2)


def allocator() -> Iterator[Case]:
    """Memory asked of the driver in every step."""
    for (strength, seed), (count, cost_us) in zip(STRENGTHS, ((14, 500), (20, 450), (30, 900)), strict=True):
        host = Host(allocations_per_step=count, allocation_ns=cost_us * 1_000, items_per_step=1)
        job = Job(MEDIUM, host=host, seed=seed)
        cured = replace(job, host=replace(host, allocations_per_step=0))
        yield Case(f"host-allocator-{strength}", job, {"host.allocator": cured}, quick=seed == 2)
