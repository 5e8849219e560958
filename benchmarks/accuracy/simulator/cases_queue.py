"""Loops that keep the launch queue full: the device is read every few steps alone, as a loop does that logs now and then.

A step launches more than the queue takes, so that launches wait for room; what the host does is hidden behind all that
is queued, and what the device does is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.accuracy.simulator.case import Case
from benchmarks.accuracy.simulator.cases_host import MEDIUM, MS
from benchmarks.accuracy.simulator.job import Copies, Host, Job, Loader, Parallel
from benchmarks.accuracy.simulator.machine import Fabric, Machine

LONG = replace(MEDIUM, layers=42)
"""About 1,100 launches and 70 ms of compute a step; the host needs 15 ms to launch them."""
LOGS = Host(reads_every=3)
UNREAD = Host()
"""As a loop that logs every hundred steps, between two of its readings."""
STEPS = 8


def cases() -> Iterator[Case]:
    """All of them."""
    yield from healthy()
    yield from hidden()
    yield from compute()
    yield from communication()
    yield from drains()


def healthy() -> Iterator[Case]:
    """Nothing is wrong."""
    yield Case("queue-healthy", _job(1), quick=True)
    yield Case("queue-healthy-stacks", replace(_job(2), stacks=True, sync_events=True))
    yield Case("queue-healthy-unread", replace(_job(3), host=UNREAD))
    yield Case("queue-healthy-ddp", replace(_job(4), parallel=Parallel("ddp", 2)))
    yield Case("queue-healthy-fsdp", replace(_job(5), parallel=Parallel("fsdp", 2)))


def hidden() -> Iterator[Case]:
    """What the host does while the device works off the queue."""
    plain = replace(_job(6), host=UNREAD)
    changes: tuple[tuple[str, Job, tuple[str, ...]], ...] = (
        ("python", replace(plain, host=replace(UNREAD, slow_python_ns=20 * MS), stacks=True), ("host.python",)),
        ("collections", replace(plain, host=replace(UNREAD, gc_every=2, gc_ns=18 * MS), stacks=True), ("host.gc",)),
        ("loader", replace(plain, loader=Loader("inline", 22 * MS)), ("input.synchronous-loader",)),
        (
            "allocations",
            replace(plain, host=replace(UNREAD, allocations_per_step=20)),
            ("host.allocator", "memory.allocator-retry"),
        ),
        ("slow-launches", replace(plain, host=replace(UNREAD, contention=2.0)), ("host.launch-bound", "host.python")),
    )
    for name, job, resists in changes:
        yield Case(f"queue-decoy-{name}", job, resists=resists, undisguised=plain, quick=name == "python")
    waits = replace(plain, seed=7)
    job = replace(waits, host=replace(UNREAD, reads_every=2))
    yield Case("queue-decoy-reads", job, resists=("host.sync",), undisguised=waits)


def compute() -> Iterator[Case]:
    """Work of the device that is slower than it has to be, while launches wait for room."""
    half = replace(LONG, layers=20, dtype="fp32", attention="efficient", batch=4)
    job = replace(_job(1), model=half, accumulate=2)
    yield _cured("fp32-matmul", job, replace(job, model=replace(half, matmul_path="tf32")))
    mixed = replace(LONG, dtype="fp16", matmul_path="simt", path_blocks=8)
    job = replace(_job(2), model=mixed)
    yield _cured("low-tensor-core", job, replace(job, model=replace(mixed, matmul_path=None)))
    odd = replace(LONG, feed_forward=4102)
    job = replace(_job(3), model=odd)
    yield _cured("misaligned-shape", job, replace(job, model=replace(odd, feed_forward=4160)), additive=False)
    chain = replace(LONG, layers=30, activation="chain")
    job = replace(_job(4), model=chain)
    yield _cured("fusible", job, replace(job, model=replace(chain, activation="compiled")))
    job = replace(_job(5), model=replace(LONG, layers=28, batch=4), optimizer="loop")
    yield _cured("unfused-optimizer", job, replace(job, optimizer="fused"))
    eager = replace(LONG, layers=30, attention="eager")
    job = replace(_job(6), model=eager)
    yield _cured("unfused-attention", job, replace(job, model=replace(eager, attention="flash")), quick=True)
    copied = replace(LONG, layers=34, layout_copies=5)
    job = replace(_job(7), model=copied)
    yield _cured("layout-conversion", job, replace(job, model=replace(copied, layout_copies=0)))
    cast = replace(LONG, layers=34, casts=4)
    job = replace(_job(8), model=cast)
    yield _cured("cast-churn", job, replace(job, model=replace(cast, casts=0)))
    job = replace(_job(9), recompute=True)
    yield _cured("redundant-work", job, replace(job, recompute=False))
    job = replace(_job(10), double_forward=True)
    yield _cured("redundant-work", job, replace(job, double_forward=False), name="twice")
    job = replace(_job(11), throttled=((5, 1.5),), steps=10)
    yield _cured("throttled", job, replace(job, throttled=()), family="device")


def communication() -> Iterator[Case]:
    """Ranks that wait for each other, while launches wait for room."""
    slow = Machine(fabric=Fabric(bus_bandwidth=40e9))
    ddp = Parallel("ddp", 2, overlap=False)
    job = Job(LONG, slow, host=LOGS, parallel=ddp, steps=STEPS, seed=1)
    yield _cured("exposed", job, replace(job, parallel=replace(ddp, overlap=True)), family="communication")
    fsdp = Parallel("fsdp", 2, prefetch=False)
    job = Job(LONG, Machine(fabric=Fabric(bus_bandwidth=50e9)), host=LOGS, parallel=fsdp, steps=STEPS, seed=2)
    yield _cured("no-prefetch", job, replace(job, parallel=replace(fsdp, prefetch=True)), family="communication")
    every = Parallel("ddp", 2, sync_every=True)
    job = Job(
        replace(LONG, layers=16, batch=4),
        Machine(fabric=Fabric(bus_bandwidth=40e9)),
        host=LOGS,
        parallel=every,
        accumulate=3,
        steps=STEPS,
        seed=3,
    )
    cured = replace(job, parallel=replace(every, sync_every=False))
    yield _cured("redundant-sync", job, cured, family="communication")
    job = Job(
        LONG, Machine(fabric=Fabric(bus_bandwidth=10e9)), host=LOGS, parallel=Parallel("ddp", 2), steps=STEPS, seed=4
    )
    yield _cured("low-bandwidth", job, replace(job, machine=Machine()), family="communication")
    late = Parallel("ddp", 2, slow_rank=1, slow_rank_scale=1.3)
    job = Job(LONG, host=LOGS, parallel=late, steps=STEPS, seed=5)
    found = _cured("straggler", job, replace(job, parallel=replace(late, slow_rank=None)), family="communication")
    yield replace(found, rank=1, accepted=("device.degraded",))
    experts = Parallel("expert", 2, expert_load=(0.3, 1.7))
    job = Job(replace(LONG, layers=30), host=LOGS, parallel=experts, steps=STEPS, seed=6)
    even = replace(job, parallel=replace(experts, expert_load=(1.0, 1.0)))
    yield replace(_cured("expert-imbalance", job, even, family="communication"), rank=1)


def drains() -> Iterator[Case]:
    """What takes longer than the queue lasts, or lets it run empty."""
    for pause, pause_ms, every in (("checkpoint", 250, 3), ("logging", 200, 3), ("evaluation", 8, 4)):
        host = replace(LOGS, every=every, pause=pause, pause_ns=pause_ms * (1 if pause == "evaluation" else MS))
        job = replace(_job(7), host=host, stacks=True, steps=11)
        yield _cured(pause, job, replace(job, host=LOGS), family="episodic")
    host = replace(LOGS, gc_every=3, gc_ns=240 * MS)
    job = replace(_job(8), host=host, stacks=True, steps=10)
    yield _cured("gc", job, replace(job, host=LOGS), family="host")
    job = replace(_job(9), loader=Loader("inline", 95 * MS))
    yield _cured(
        "synchronous-loader",
        job,
        replace(job, loader=Loader("workers", 95 * MS, workers=6)),
        family="input",
        additive=False,
    )
    job = replace(_job(10), host=replace(LOGS, slow_python_ns=90 * MS), stacks=True)
    yield _cured("python", job, replace(job, host=LOGS), family="host")
    job = replace(_job(14), host=replace(LOGS, slow_python_ns=20 * MS), stacks=True)
    yield _cured("python", job, replace(job, host=LOGS), family="host", name="after-reads")
    copies = Copies(160 * 1024 * 1024, pinned=False)
    job = replace(_job(11), copies=copies)
    yield _cured("pageable-copy", job, replace(job, copies=replace(copies, pinned=True)), family="host")
    host = replace(LOGS, allocations_per_step=20, allocation_ns=1_200_000, frees_too=True)
    job = replace(_job(12), host=host)
    yield _cured("allocator-retry", job, replace(job, host=LOGS), family="memory")
    job = replace(_job(13), host=replace(LOGS, items_every=1))
    yield _cured("sync", job, replace(job, host=LOGS), family="host")


def _job(seed: int) -> Job:
    return Job(LONG, host=LOGS, steps=STEPS, seed=seed)


def _cured(
    cause: str,
    job: Job,
    cured: Job,
    *,
    family: str = "compute",
    name: str = "",
    additive: bool = True,
    quick: bool = False,
) -> Case:
    shown = f"queue-{family}-{cause}" + (f"-{name}" if name else "")
    return Case(shown, job, {f"{family}.{cause}": cured}, additive=additive, quick=quick)
