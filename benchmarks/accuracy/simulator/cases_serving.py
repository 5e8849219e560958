"""Servers' engines, marked as vLLM and SGLang mark them: prefill, decode, mixed and idle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.accuracy.simulator.case import Case
from benchmarks.accuracy.simulator.cases_host import MS
from benchmarks.accuracy.simulator.job import Host, Job, Lost, Parallel, Requests
from benchmarks.accuracy.simulator.machine import Fabric, Machine
from benchmarks.accuracy.simulator.transformer import Transformer

ENGINE = Host(per_step_ns=120_000)
WIDE = Transformer(layers=20, hidden=4096, heads=32, feed_forward=16384, vocabulary=128_256)
"""About 3 ms to read its weights."""
NARROW = Transformer(layers=24, hidden=1024, heads=16, feed_forward=4096, vocabulary=32_000)
MIX = ("prefill", "decode", "decode", "decode", "mixed", "decode", "decode", "decode")


def cases() -> Iterator[Case]:
    """All of them."""
    yield from healthy()
    yield from faults()
    yield from tensor_parallel()


def healthy() -> Iterator[Case]:
    """Nothing is wrong."""
    for number, marks in enumerate(("vllm", "sglang")):
        decode = Requests(marks=marks)  # its 120 us of Python in 3.7 ms are named, with 1.03
        yield Case(f"serving-healthy-decode-{marks}", _job(WIDE, decode, 41 + number))
        prefill = Requests(("prefill",), marks, prompt=8192)
        yield Case(f"serving-healthy-prefill-{marks}", _job(WIDE, prefill, 43 + number), quick=number == 0)
        yield Case(f"serving-healthy-mix-{marks}", _job(WIDE, Requests(MIX, marks), 45 + number, steps=24))
    waits = Requests(("decode",) * 6 + ("idle",), "vllm", pause_ns=40 * MS)
    job = _job(WIDE, waits, 47, steps=28)
    resists = ("host.python", "host.launch-bound", "inference.host-bound-decode", "host.sync")
    yield Case("serving-idle-between-requests", job, resists=resists, undisguised=job)
    waits = Requests(("prefill", "decode", "decode", "decode", "idle"), "sglang", pause_ns=30 * MS)
    yield Case("serving-idle-sglang", _job(WIDE, waits, 48, steps=25, stacks=True), resists=resists)
    job = replace(_job(WIDE, Requests(marks="sglang"), 49), lost=Lost(graphs=True))
    yield Case("serving-lost-graph-kernels", job, resists=resists)


def faults() -> Iterator[Case]:
    """A fault in the engine."""
    for number, marks in enumerate(("vllm", "sglang")):
        asked = Requests(marks=marks, sequences=32)
        job = replace(_job(NARROW, asked, 51 + number), graphs=False)
        yield Case(
            f"serving-host-bound-decode-{marks}",
            job,
            {"inference.host-bound-decode": replace(job, graphs=True)},
            accepted=("host.launch-bound",),
            quick=number == 0,
        )
        job = replace(_job(WIDE, Requests(marks=marks), 53 + number), host=replace(ENGINE, slow_python_ns=3 * MS))
        job = replace(job, stacks=marks == "vllm")
        yield Case(
            f"serving-scheduler-{marks}",
            job,
            {"host.python": replace(job, host=ENGINE)},
            accepted=("inference.host-bound-decode",),
        )
        many = Requests(marks=marks, sequences=256, sampling="unfused")
        job = _job(WIDE, many, 55 + number)
        cured = replace(job, requests=replace(many, sampling="fused"))
        yield Case(
            f"serving-sampling-unfused-{marks}",
            job,
            {"inference.sorted-sampling": cured},
            accepted=("compute.fusible",),
        )
        slow = Requests(marks=marks, sampling="host", sampling_ns=4 * MS)
        job = replace(_job(WIDE, slow, 57 + number), stacks=marks == "vllm")
        cured = replace(job, requests=replace(slow, sampling="fused"))
        yield Case(
            f"serving-sampling-on-the-host-{marks}", job, {"inference.sampling-sync": cured}, accepted=("host.python",)
        )
    mixed = Requests(MIX, "vllm", sequences=32)
    job = replace(_job(NARROW, mixed, 59, steps=24), graphs=False)
    yield Case(
        "serving-host-bound-decode-mix",
        job,
        {"inference.host-bound-decode": replace(job, graphs=True)},
        accepted=("host.launch-bound",),
    )
    eager = replace(WIDE, attention="eager", layers=8)
    job = _job(eager, Requests(("prefill",), "sglang", prompt=8192), 60)
    cured = replace(job, model=replace(eager, attention="flash"))
    yield Case("serving-prefill-unfused-attention", job, {"compute.unfused-attention": cured})


def tensor_parallel() -> Iterator[Case]:
    """All-reduces in compute's way."""
    asked = Requests(("prefill",), "vllm", prompt=8192, exchange="allreduce")
    slow = Machine(fabric=Fabric(latency_ns=30_000, bus_bandwidth=25e9))
    model = replace(WIDE, layers=8)
    job = replace(_job(model, asked, 61), machine=slow, parallel=Parallel("none", 4))
    cured = replace(job, requests=replace(asked, exchange=""))
    yield Case(
        "serving-tensor-parallel-prefill",
        job,
        {"communication.exposed": cured},
        accepted=("communication.low-bandwidth",),
    )
    turns = Requests(("prefill", "prefill", "mixed"), "sglang", prompt=4096, exchange="allreduce")
    job = replace(_job(model, turns, 62, steps=15), machine=slow, parallel=Parallel("none", 2))
    job = replace(job, one_file="labelled")
    cured = replace(job, requests=replace(turns, exchange=""))
    yield Case(
        "serving-tensor-parallel-mix",
        job,
        {"communication.exposed": cured},
        accepted=("communication.low-bandwidth",),
    )
    quick = Machine(fabric=Fabric(latency_ns=9_000, bus_bandwidth=440e9))
    wider = replace(WIDE, layers=8, hidden=8192, heads=64, feed_forward=32_768)
    job = replace(_job(wider, replace(asked, prompt=4096), 63, steps=10), machine=quick, parallel=Parallel("none", 2))
    yield Case("serving-tensor-parallel-healthy", job, note="3 % of the time in all-reduces over NVLink")


def _job(model: Transformer, asked: Requests, seed: int, *, steps: int = 16, stacks: bool = False) -> Job:
    return Job(
        model,
        host=ENGINE,
        kind="serving",
        graphs=True,
        requests=asked,
        steps=steps,
        seed=seed,
        stacks=stacks,
    )
