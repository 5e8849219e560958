"""Cases of compute, and of memory asked of the driver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.accuracy.simulator.case import Case
from benchmarks.accuracy.simulator.cases_host import MEDIUM, STRENGTHS
from benchmarks.accuracy.simulator.convnet import ConvNet
from benchmarks.accuracy.simulator.job import Host, Job
from benchmarks.accuracy.simulator.machine import A100, Machine


def cases() -> Iterator[Case]:
    """All of them."""
    yield from fp32_matmul()
    yield from low_tensor_core()
    yield from misaligned()
    yield from fusible()
    yield from optimizer()
    yield from attention()
    yield from layout()
    yield from casts()
    yield from redundant()
    yield from retries()
    yield from throttled()


def fp32_matmul() -> Iterator[Case]:
    """Matrices multiplied in fp32 without TensorFloat-32."""
    base = replace(MEDIUM, dtype="fp32", attention="efficient")
    sizes = (
        replace(base, layers=2, hidden=512, heads=8, feed_forward=2048, vocabulary=16000),
        base,
        replace(base, layers=6, hidden=1536, heads=24, feed_forward=6144),
    )
    for (strength, seed), model in zip(STRENGTHS, sizes, strict=True):
        job = Job(model, Machine(A100) if seed == 3 else Machine(), seed=seed)
        cured = replace(job, model=replace(model, matmul_path="tf32"))
        yield Case(f"compute-fp32-matmul-{strength}", job, {"compute.fp32-matmul": cured}, quick=seed == 2)


def low_tensor_core() -> Iterator[Case]:
    """Half-precision matrices that kernels without tensor cores multiply, in some blocks."""
    for (strength, seed), blocks in zip(STRENGTHS, (1, 2, 4), strict=True):
        model = replace(MEDIUM, dtype="fp16", matmul_path="simt", path_blocks=blocks)
        job = Job(model, seed=seed)
        cured = replace(job, model=replace(model, matmul_path=None))
        yield Case(f"compute-low-tensor-core-{strength}", job, {"compute.low-tensor-core": cured})


def misaligned() -> Iterator[Case]:
    """Widths that tensor cores cannot take in full: the cure pads them."""
    sizes = ((4096, 50257), (4102, 32000), (10922, 50257))
    for (strength, seed), (wide, vocabulary) in zip(STRENGTHS, sizes, strict=True):
        model = replace(MEDIUM, feed_forward=wide, vocabulary=vocabulary)
        job = Job(model, seed=seed)
        padded = replace(model, feed_forward=-(-wide // 64) * 64, vocabulary=-(-vocabulary // 64) * 64)
        cured = replace(job, model=padded)
        yield Case(
            f"compute-misaligned-shape-{strength}",
            job,
            {"compute.misaligned-shape": cured},
            additive=False,
            quick=seed == 3,
        )


def fusible() -> Iterator[Case]:
    """GELU written out of eight operators."""
    for (strength, seed), batch in zip(STRENGTHS, (4, 8, 16), strict=True):
        model = replace(MEDIUM, batch=batch, activation="chain")
        if seed == 3:
            model = replace(model, hidden=512, heads=8, feed_forward=4096, vocabulary=8192)
        job = Job(model, seed=seed)
        cured = replace(job, model=replace(model, activation="compiled"))
        yield Case(f"compute-fusible-{strength}", job, {"compute.fusible": cured}, quick=seed == 2)


def optimizer() -> Iterator[Case]:
    """AdamW in a loop over the parameters."""
    sizes = (replace(MEDIUM, layers=8), replace(MEDIUM, layers=12, batch=4), replace(MEDIUM, layers=24, batch=2))
    for (strength, seed), model in zip(STRENGTHS, sizes, strict=True):
        job = Job(model, optimizer="loop", seed=seed)
        cured = replace(job, optimizer="fused")
        yield Case(f"compute-unfused-optimizer-{strength}", job, {"compute.unfused-optimizer": cured}, quick=seed == 2)


def attention() -> Iterator[Case]:
    """Attention written out with a matrix of scores."""
    for (strength, seed), (batch, length) in zip(STRENGTHS, ((16, 512), (8, 1024), (4, 2048)), strict=True):
        model = replace(MEDIUM, batch=batch, sequence=length, attention="eager")
        job = Job(model, seed=seed)
        cured = replace(job, model=replace(model, attention="flash"))
        yield Case(f"compute-unfused-attention-{strength}", job, {"compute.unfused-attention": cured}, quick=seed == 2)


def layout() -> Iterator[Case]:
    """Tensors that are copied into another order."""
    for (strength, seed), copies in zip(STRENGTHS[:2], (4, 10), strict=True):
        model = replace(MEDIUM, layout_copies=copies)
        job = Job(model, seed=seed)
        cured = replace(job, model=replace(model, layout_copies=0))
        yield Case(f"compute-layout-conversion-{strength}", job, {"compute.layout-conversion": cured})
    for (strength, seed), channels in zip(STRENGTHS[1:], (128, 64), strict=True):
        net = ConvNet(channels=channels, channels_last=False)
        job = Job(net, seed=seed)
        cured = replace(job, model=replace(net, channels_last=True))
        name = f"compute-layout-conversion-images-{strength}"
        yield Case(name, job, {"compute.layout-conversion": cured}, quick=seed == 2)


def casts() -> Iterator[Case]:
    """Activations that go to fp32 and back for nothing."""
    for (strength, seed), count in zip(STRENGTHS, (2, 4, 10), strict=True):
        model = replace(MEDIUM, casts=count)
        job = Job(model, seed=seed)
        cured = replace(job, model=replace(model, casts=0))
        yield Case(f"compute-cast-churn-{strength}", job, {"compute.cast-churn": cured}, quick=seed == 2)


def redundant() -> Iterator[Case]:
    """Work whose result is known already."""
    job = Job(MEDIUM, recompute=True, seed=1)
    yield Case("compute-redundant-work-recompute", job, {"compute.redundant-work": replace(job, recompute=False)})
    job = Job(MEDIUM, double_forward=True, seed=2)
    cured = replace(job, double_forward=False)
    yield Case("compute-redundant-work-twice", job, {"compute.redundant-work": cured}, quick=True)


def retries() -> Iterator[Case]:
    """The caching allocator gives memory back and asks again, since little is left."""
    for (strength, seed), (count, cost_us) in zip(STRENGTHS, ((3, 700), (8, 800), (20, 1500)), strict=True):
        host = Host(allocations_per_step=count, allocation_ns=cost_us * 1_000, frees_too=True)
        job = Job(MEDIUM, host=host, seed=seed)
        cured = replace(job, host=replace(host, allocations_per_step=0))
        yield Case(f"memory-allocator-retry-{strength}", job, {"memory.allocator-retry": cured}, quick=seed == 2)


def throttled() -> Iterator[Case]:
    """From some step on the clock is lower."""
    for (strength, seed), (first, scale) in zip(STRENGTHS, ((5, 1.2), (4, 1.4), (3, 2.0)), strict=True):
        job = Job(MEDIUM, throttled=((first, scale),), seed=seed)
        cured = replace(job, throttled=())
        yield Case(f"device-throttled-{strength}", job, {"device.throttled": cured}, quick=seed == 2)
