"""Kernels of other families and speeds, and jobs that are as they should be."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from benchmarks.accuracy.retimed.case import HIDDEN, Base, Case, sized, time_of
from benchmarks.accuracy.retimed.host import size
from benchmarks.accuracy.retimed.replay import Change, Job
from benchmarks.accuracy.retimed.unit import Op, Unit

_TENSOR = re.compile(r"tensorop|xmma_gemm|\d{4}gemm")
_LAYOUT = re.compile(r"_(nn|nt|tn|tt)(?:_|\b)")
_RENAMED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), made)
    for pattern, made in (
        (r"at::detail::Array<char\*, (\d)>", r"std::array<char*, \1ul>"),
        (
            r"^void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_(\d+)x(\d+)_(\d+)x(\d)_(..)_align4>.*$",
            r"sm80_xmma_gemm_f32f32_tf32f32_f32_\5_n_tilesize\1x\2x\3_stage\4_warpsize2x2x1_tensor16x8x8_kernel",
        ),
        (
            r"^sm90_xmma_gemm_bf16bf16_bf16f32_f32_(..)_n_tilesize(\d+)x(\d+)x(\d+)_.*$",
            r"nvjet_tst_\2x\3_\4x4_v_bz_\1T",
        ),
        (r"^volta_sgemm_(\d+x\d+)_(..)$", r"void cutlass::Kernel2<cutlass_70_simt_sgemm_\1_8x2_\2_align1>(Params)"),
        (r"cudnn_(infer|train)_volta_scudnn_", r"volta_scudnn_"),
        (r"ncclKernel_AllReduce_RING_LL_Sum_float\(.*\)", r"ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"),
        (r"ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t\(.*\)", r"ncclDevKernel_SendRecv(ncclDevComm*, unsigned long)"),
        (r"void pytorch_flash::flash_fwd_kernel", r"void flash_fwd_kernel"),
    )
)


def _named(op: Op, name: str) -> Op:
    return op if name == op.shown["name"] else replace(op, shown={**op.shown, "name": name})


def renamed(name: str) -> str:
    """A kernel's name in another version of its library."""
    for pattern, made in _RENAMED:
        name = pattern.sub(made, name)
    return name


def family(drawn: random.Random, base: Base) -> Case | None:
    """The same kernels under the names of another version."""
    del drawn
    ops = tuple(_named(op, renamed(str(op.shown["name"]))) for op in base.unit.ops)
    changed = {op.shown["name"] for op in ops} - {op.shown["name"] for op in base.unit.ops}
    if not changed:
        return None
    job = replace(base.job, unit=replace(base.unit, ops=ops))
    return Case("family", base, job, Change(), same=True, detail=f"{len(changed)} names")


def products(drawn: random.Random, base: Base) -> Case | None:
    """Matrix products leave the tensor cores and take several times as long."""
    name = base.unit.device
    sixteen = "H100" in name and "H800" not in name
    if not (sixteen or "A100" in name):
        return None
    other = drawn.choice(
        ("volta_hgemm_128x64_{}", "void magma_sgemmEx_kernel<float, __nv_bfloat16, __nv_bfloat16, true, false, 6, 4>()")
        if sixteen
        else ("ampere_sgemm_128x64_{}", "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_{}_align1>(Params)")
    )
    chosen = {op.shown["name"] for op in base.unit.ops if _TENSOR.search(str(op.shown["name"])) and not op.collective}

    def slow(op: Op) -> Op:
        layout = _LAYOUT.search(str(op.shown["name"]))
        return _named(op, other.format(layout[1] if layout else "nn")) if op.shown["name"] in chosen else op

    ops = tuple(slow(op) for op in base.unit.ops)
    job = replace(base.job, unit=replace(base.unit, ops=ops))
    moved = {id(new) for old, new in zip(base.unit.ops, ops, strict=True) if old is not new}

    def make(times: float) -> Change:
        return Change(ops=lambda op, _r, _s: times if id(op) in moved else 1.0)

    change, gain = sized(replace(base, job=job), make, size(drawn), 3.0)
    times = next((change.ops(op, 0, 0) for op in ops if id(op) in moved), 1.0)
    total = sum(op.lasts for op in ops if id(op) in moved)
    cause, also = ("compute.low-tensor-core", "compute.fp32-matmul")[:: 1 if sixteen else -1]
    if times > 16:
        return None
    detail = f"{len(moved)} products of {total:.0f} us, {times:.1f} times as long, {other[:34]}"
    return Case("products", base, job, change, cause, gain, (also,), detail=detail)


def throttled(drawn: random.Random, base: Base) -> Case | None:
    """All kernels slower from a step on, for a while."""
    first = drawn.randrange(3, base.job.steps - 3)
    last = first + drawn.choice((2, 3, 5))

    def make(times: float) -> Change:
        return Change(ops=lambda op, _r, step: times if first <= step < last and not op.collective else 1.0)

    change, gain = sized(base, make, min(0.6, size(drawn)), 1.3)
    detail = f"{change.ops(base.unit.ops[0], 0, first):.2f} times as long in steps {first} to {last - 1}"
    return Case("throttled", base, base.job, change, "device.throttled", gain, detail=detail)


def scatter(drawn: random.Random, base: Base) -> Case | None:
    """Steps take by chance 10 % more or less."""
    job = replace(base.job, noisy_steps=0.1, seed=f"{base.job.seed}-{drawn.random()}")
    steps = [round(step[0], 2) for step in job.noise()[0]]
    return Case("scatter", base, job, Change(), detail=f"factors {steps}")


def healthy(drawn: random.Random, base: Base) -> Case | None:
    """A device that is busy throughout."""
    job = replace(base.job, seed=f"{base.job.seed}-{drawn.random()}", host_noise=0.03, op_noise=0.02)
    return Case("healthy", base, job, Change(), absolute=True)


def noise_alone(job: Job) -> bool:
    """Whether a step takes as long with other noise."""
    return abs(time_of(job) / time_of(replace(job, seed=f"{job.seed}-again")) - 1) < 2 * (HIDDEN - 1)


def slower_bus(unit: Unit, speed: float, ranks: int) -> Unit:
    """A step whose collectives move so many bytes per us, as the ring would."""

    def timed(op: Op) -> Op:
        if not op.collective:
            return op
        count = op.shown["args"].get("In msg nelems")
        if count is None:
            return replace(op, lasts=op.lasts * 0.6)
        return replace(op, lasts=20.0 + 4.0 * count * 2 * (ranks - 1) / ranks / speed)

    return replace(unit, ops=tuple(timed(op) for op in unit.ops))
