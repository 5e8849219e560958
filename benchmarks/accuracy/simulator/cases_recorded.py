"""Jobs of which the recording keeps less than ran or hardly shows the host, and jobs whose ranks are in one file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.accuracy.simulator.case import Case
from benchmarks.accuracy.simulator.cases_controls import DECODER, LARGE
from benchmarks.accuracy.simulator.cases_host import MEDIUM, MS, SMALL
from benchmarks.accuracy.simulator.job import Copies, Host, Job, Loader, Lost, Parallel
from benchmarks.accuracy.simulator.machine import Fabric, Machine

IDLE: tuple[str, ...] = ("host.launch-bound", "host.python", "host.sync", "input.synchronous-loader")


def cases() -> Iterator[Case]:
    """All of them."""
    yield from lost()
    yield from lost_with_a_fault()
    yield from one_file()
    yield from bare()


def bare() -> Iterator[Case]:
    """Nothing of the host is recorded but its calls of the runtime: what threads wait for each other is in no event."""
    reads = Host(items_per_step=1)
    yield Case("bare-healthy", Job(LARGE, host=reads, bare=True, seed=71))
    yield Case("bare-healthy-unread", Job(LARGE, bare=True, seed=72))
    for number, (model, name) in enumerate(((SMALL, "small"), (replace(SMALL, batch=8), "larger"))):
        job = Job(model, bare=True, seed=73 + number)
        yield Case(f"bare-launch-bound-{name}", job, {"host.launch-bound": replace(job, graphs=True)})
    for number, cost_ms in enumerate((6, 12)):
        job = Job(MEDIUM, host=replace(reads, slow_python_ns=cost_ms * MS), bare=True, seed=75 + number)
        accepted = ("host.gc", "input.synchronous-loader")
        yield Case(f"bare-python-{cost_ms}ms", job, {"host.python": replace(job, host=reads)}, accepted=accepted)
    job = Job(MEDIUM, host=Host(between_stages_ns=400_000), bare=True, seed=77)
    yield Case("bare-python-modules", job, {"host.python": replace(job, host=Host())}, accepted=("host.launch-bound",))
    job = Job(replace(MEDIUM, batch=5), host=Host(items_every=1), bare=True, seed=78)
    yield Case("bare-sync", job, {"host.sync": replace(job, host=Host())})
    model = replace(MEDIUM, dtype="fp32", attention="efficient")
    job = Job(model, host=reads, bare=True, seed=79)
    yield Case("bare-fp32-matmul", job, {"compute.fp32-matmul": replace(job, model=replace(model, matmul_path="tf32"))})
    copies = Copies(64 * 1024 * 1024, pinned=False)
    job = Job(MEDIUM, host=reads, copies=copies, bare=True, seed=80)
    pinned = replace(job, copies=replace(copies, pinned=True))
    yield Case("bare-pageable-copy", job, {"host.pageable-copy": pinned})
    parallel = Parallel("ddp", 4, slow_rank=2, slow_rank_scale=1.4)
    job = Job(MEDIUM, parallel=parallel, bare=True, seed=81)
    even = replace(job, parallel=replace(parallel, slow_rank=None))
    yield Case("bare-straggler", job, {"communication.straggler": even}, rank=2, accepted=("device.degraded",))


def lost() -> Iterator[Case]:
    """Healthy jobs whose device seems to idle, or whose host seems to launch nothing."""
    plain = Job(LARGE, host=Host(items_per_step=1), seed=21)
    losses = {
        "device-stretch": Lost(device=(0.3, 0.6)),
        "device-end": Lost(device=(0.5, 1.0)),
        "device-some": Lost(some_device=0.4),
        "calls-stretch": Lost(calls=(0.3, 0.6)),
        "calls-some": Lost(some_calls=0.35),
        "calls-all": Lost(some_calls=1.0),
    }
    for name, what in losses.items():
        job = replace(plain, lost=what)
        yield Case(f"lost-{name}", job, resists=IDLE, undisguised=plain, quick=name == "device-stretch")
    queued = replace(plain, host=Host(), seed=22, lost=Lost(device=(0.35, 0.7)))
    yield Case("lost-device-stretch-unread", queued, resists=IDLE, undisguised=replace(queued, lost=Lost()))
    ranks = Job(LARGE, parallel=Parallel("ddp", 4), seed=23)
    for name, what in {
        "rank-device": Lost(device=(0.25, 0.8), rank=2),
        "rank-some": Lost(some_device=0.3, rank=1),
        "ranks-device": Lost(device=(0.4, 0.7)),
    }.items():
        job = replace(ranks, lost=what)
        together = ("communication.straggler", "communication.exposed", "input.rank-skew")
        yield Case(f"lost-{name}", job, resists=(*together, *IDLE), undisguised=ranks)
    decode = Job(DECODER, host=Host(per_step_ns=20_000, items_per_step=1), kind="decode", graphs=True, seed=24)
    job = replace(decode, lost=Lost(graphs=True))
    yield Case(
        "lost-graph-kernels", job, resists=("inference.host-bound-decode", *IDLE), undisguised=decode, quick=True
    )


def lost_with_a_fault() -> Iterator[Case]:
    """Faults that the part of the recording that is there shows."""
    few = Lost(some_device=0.03, some_calls=0.03)
    job = Job(MEDIUM, host=Host(items_every=1), seed=25, lost=few)
    yield Case("lost-few-host-sync", job, {"host.sync": replace(job, host=Host())})
    model = replace(MEDIUM, attention="eager")
    job = Job(model, seed=26, lost=few)
    cured = replace(job, model=replace(model, attention="flash"))
    yield Case("lost-few-unfused-attention", job, {"compute.unfused-attention": cured})
    loader = Loader("inline", 15 * MS)
    job = Job(MEDIUM, loader=loader, host=Host(items_per_step=1), seed=27, lost=few)
    cured = replace(job, loader=Loader("workers", 15 * MS, workers=8))
    yield Case("lost-few-synchronous-loader", job, {"input.synchronous-loader": cured}, additive=False)
    parallel = Parallel("ddp", 4, overlap=False)
    machine = Machine(fabric=Fabric(bus_bandwidth=90e9))
    job = Job(replace(MEDIUM, layers=8), machine, parallel=parallel, seed=28, lost=few)
    cured = replace(job, parallel=replace(parallel, overlap=True))
    yield Case("lost-few-exposed", job, {"communication.exposed": cured})
    model = replace(MEDIUM, dtype="fp32", attention="efficient")
    job = Job(model, seed=29, lost=Lost(device=(0.8, 1.0)))
    cured = replace(job, model=replace(model, matmul_path="tf32"))
    yield Case("lost-end-fp32-matmul", job, {"compute.fp32-matmul": cured})


def one_file() -> Iterator[Case]:
    """All ranks in one trace."""
    for number, how in enumerate(("plain", "labelled")):
        ddp = Parallel("ddp", 4)
        job = Job(LARGE, parallel=ddp, one_file=how, seed=31 + number)
        yield Case(f"one-file-healthy-{how}", job, quick=number == 0)
        late = replace(ddp, slow_rank=2, slow_rank_scale=1.35)
        job = Job(MEDIUM, parallel=late, one_file=how, seed=33 + number)
        cured = replace(job, parallel=replace(late, slow_rank=None))
        accepted = ("device.degraded",)
        yield Case(f"one-file-straggler-{how}", job, {"communication.straggler": cured}, rank=2, accepted=accepted)
        machine = Machine(fabric=Fabric(bus_bandwidth=60e9))
        apart = replace(ddp, overlap=False)
        job = Job(replace(MEDIUM, layers=8), machine, parallel=apart, one_file=how, seed=35 + number)
        cured = replace(job, parallel=ddp)
        yield Case(f"one-file-exposed-{how}", job, {"communication.exposed": cured})
        loads = Parallel("expert", 4, expert_load=(0.6, 0.6, 2.2, 0.6))
        job = Job(MEDIUM, parallel=loads, one_file=how, seed=37 + number)
        cured = replace(job, parallel=replace(loads, expert_load=(1.0,) * 4))
        yield Case(f"one-file-experts-{how}", job, {"communication.expert-imbalance": cured}, rank=2)
    own = Host(items_per_step=1, gc_every=4, gc_ns=14 * MS, gc_apart=True)
    job = Job(MEDIUM, host=own, parallel=Parallel("ddp", 4), one_file="plain", seed=39, stacks=True)
    yield Case("one-file-gc-in-turn", job, {"host.gc": replace(job, host=replace(own, gc_every=0))})
    plain = Host(items_per_step=1)
    job = Job(MEDIUM, host=plain, parallel=Parallel("ddp", 4), one_file="plain", seed=40, stacks=True)
    job = replace(job, of_rank=((3, replace(plain, slow_python_ns=12 * MS)),))
    cured = replace(job, of_rank=())
    yield Case("one-file-python-rank", job, {"host.python": cured}, rank=3, accepted=("communication.straggler",))
