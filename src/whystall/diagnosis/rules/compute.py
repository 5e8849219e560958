"""Causes in what the device computes: precision, shapes, unfused work, layout, work done twice, a slow clock."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall._native import nearest_marked
from whystall.cost.recorded import parse
from whystall.cost.spec import TensorSpec
from whystall.diagnosis.case import Case, RankCase, within
from whystall.diagnosis.rule import Candidate, Rule
from whystall.diagnosis.rules import facts
from whystall.replay.graph import Change, Mask
from whystall.trace.columns import codes, matching
from whystall.trace.link import rows_of

# Share of a matrix peak that good kernels reach (reference: causes.md, "eta = 0.7").
_REACHED: Final = 0.7
_BANDWIDTH_REACHED: Final = 0.85
_SCALAR_KERNEL: Final = re.compile(r"sgemm|simt|ffma|gemmSN|gemv|scudnn", re.IGNORECASE)
_LAYOUT_KERNEL: Final = re.compile(
    r"nchwToNhwc|nhwcToNchw|convertTensor|transpose|permute|tensorTransform", re.IGNORECASE
)
_LAYOUT_OPERATORS: Final = frozenset({"aten::contiguous", "aten::clone", "aten::copy_", "aten::_reshape_alias"})
# Sizes of a 16-bit matrix that tensor cores take in full (reference: causes.md, "%8 (16-bit)").
_ALIGNMENT: Final = 8
_MATRIX_PRODUCTS: Final = frozenset(
    {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::matmul"}
)
_MISALIGNED_COST: Final = 1.46  # reference: causes.md, "10922 -> 10944 = +46 % matmul"
_ATTENTION_MATH: Final = re.compile(r"_scaled_dot_product_attention_math")
_SOFTMAX: Final = frozenset({"aten::_softmax", "aten::_safe_softmax", "aten::_softmax_backward_data"})
_LEAST_SCORES: Final = 64  # rows: a softmax over fewer is no attention
_THROTTLED: Final = 1.05
_LEAST_REPEATS: Final = 4


def _scaled_nodes(case: Case, rank: RankCase, chosen: Mask, target_ns: NDArray[np.float64]) -> Change:
    """The change by which chosen device events take ``target_ns``, where that is less than what they took."""
    graph = case.replayed
    nodes = case.nodes(rank, device=chosen)
    wanted = case.device_values(rank, target_ns, 0.0)
    shorter = np.minimum(graph.duration, np.maximum(wanted, 0).astype(np.int64))
    return Change(duration=np.where(nodes, shorter, graph.duration))


def _durations(rank: RankCase) -> NDArray[np.float64]:
    return rank.trace.device_events["duration_ns"].to_numpy().astype(np.float64)


def fp32_matmul(case: Case) -> Iterator[Candidate]:
    """Matrices in single precision on kernels without tensor cores, on a device whose tensor cores take TF32."""
    for rank in case.ranks:
        work = rank.device_work
        peak = work.peak
        if peak is None or not peak.tf32_tflops or not peak.fp32_tflops:
            continue
        plain = work.could_use_tensor_cores & ~work.uses_tensor_cores
        chosen = plain & (
            work.dtype_of("float32")
            | (rank.device_named(lambda name: bool(_SCALAR_KERNEL.search(name))) & (work.events.owner < 0))
        )
        if chosen.any():
            ratio = peak.fp32_tflops / peak.tf32_tflops
            yield _faster_matrices(case, rank, chosen, ratio, "compute.fp32-matmul", "TF32", peak.tf32_tflops * 1e12)


def low_tensor_core(case: Case) -> Iterator[Candidate]:
    """16-bit matrices on kernels without tensor cores, or single precision where there is no TF32."""
    for rank in case.ranks:
        work = rank.device_work
        peak = work.peak
        if peak is None or not peak.fp32_tflops:
            continue
        half = work.dtype_of("float16") | work.dtype_of("bfloat16")
        if not peak.tf32_tflops:
            half |= work.dtype_of("float32")
        chosen = work.could_use_tensor_cores & ~work.uses_tensor_cores & half
        best = peak.fp16_tflops or peak.bf16_tflops
        if chosen.any() and best:
            yield _faster_matrices(
                case, rank, chosen, peak.fp32_tflops / best, "compute.low-tensor-core", "tensor cores", best * 1e12
            )


def _faster_matrices(
    case: Case, rank: RankCase, chosen: Mask, ratio: float, cause: str, name: str, peak_flops_per_s: float
) -> Candidate:
    """Matrix kernels at another peak: what their FLOPs take at the share of it that good kernels reach."""
    work = rank.device_work
    duration = _durations(rank)
    moved = work.transfer_ns() / _BANDWIDTH_REACHED
    owner = work.events.owner
    flops = (
        np.where(work.events.main, work.work.causal[np.maximum(owner, 0)], 0) if len(work.work.causal) else duration * 0
    )
    ideal = flops / peak_flops_per_s * 1e9
    known = flops > 0
    expected = np.where(known, np.maximum(ideal / _REACHED, moved), np.maximum(duration * ratio / _REACHED, moved))
    ceiling = np.where(known, np.maximum(ideal, work.transfer_ns()), duration * ratio)
    nodes = case.nodes(rank, device=chosen)
    per_step = case.time_of(nodes)
    return Candidate(
        cause=cause,
        attributed_ns=per_step,
        evidence=(
            facts.time("matrix kernels without tensor cores per step", per_step, case.events_of(nodes)),
            facts.share(
                "of the time of kernels that could use them",
                float(duration[chosen].sum() / max(duration[work.could_use_tensor_cores].sum(), 1)),
            ),
        ),
        expected=_scaled_nodes(case, rank, chosen, expected),
        ceiling=_scaled_nodes(case, rank, chosen, ceiling),
        method=f"replay: the same products at {_REACHED:.0%} of the {name} peak, or at memory bandwidth",
        code=tuple(rank.code_of(_operators_of(rank, chosen))),
        ranks=(rank.rank,),
        uncertainty=0.25,
        rivals=("compute.misaligned-shape", "host.launch-bound"),
        hidden=None,
    )


def _operators_of(rank: RankCase, events: Mask) -> NDArray[np.intp]:
    operator = rows_of(rank.trace.device_events["operator"])[events]
    return np.unique(operator[operator >= 0]).astype(np.intp)


def misaligned(case: Case) -> Iterator[Candidate]:
    """16-bit products with a size that tensor cores cannot take in full."""
    for rank in case.ranks:
        work = rank.device_work
        calls = _misaligned_calls(rank)
        if not calls.any():
            continue
        owner = work.events.owner
        matrices = work.could_use_tensor_cores & work.events.main
        chosen = matrices & (owner >= 0) & calls[np.maximum(owner, 0)]
        aligned = matrices & (owner >= 0) & ~calls[np.maximum(owner, 0)] & (work.work.causal[np.maximum(owner, 0)] > 0)
        duration = _durations(rank)
        flops = work.work.causal[np.maximum(owner, 0)].astype(np.float64)
        if not chosen.any():
            continue
        expected = duration / _MISALIGNED_COST
        if aligned.any():
            # What the other products of this run reach, by FLOPs, is what padded ones would reach.
            rate = flops[aligned].sum() / duration[aligned].sum()
            expected = np.maximum(flops / rate, work.transfer_ns() / _BANDWIDTH_REACHED)
        best = work.peak.peak_flops_per_s("bf16") if work.peak is not None else None
        ceiling = flops / best * 1e9 if best else expected * _REACHED
        nodes = case.nodes(rank, device=chosen)
        per_step = case.time_of(nodes)
        yield Candidate(
            cause="compute.misaligned-shape",
            attributed_ns=per_step,
            evidence=(
                facts.time("products with a size that is no multiple of 8, per step", per_step, case.events_of(nodes)),
                facts.count(
                    "such products per step", int(np.count_nonzero(case.in_window(nodes))) / max(case.steps, 1)
                ),
            ),
            expected=_scaled_nodes(case, rank, chosen, expected),
            ceiling=_scaled_nodes(case, rank, chosen, np.minimum(ceiling, expected)),
            method="replay: these products at the rate of the aligned ones of this run",
            code=tuple(rank.code_of(_operators_of(rank, chosen))),
            ranks=(rank.rank,),
            uncertainty=0.3,
            confidence=0.85,
            rivals=("compute.low-tensor-core",),
        )


def _misaligned_calls(rank: RankCase) -> Mask:
    """Which operator calls multiply 16-bit matrices of which a size is no multiple of 8."""
    table = rank.trace.operators
    out = np.zeros(len(table), np.bool_)
    work = rank.device_work.work
    if not len(work.dtype_of):
        return out
    half = [number for number, name in enumerate(work.dtypes) if name in ("float16", "bfloat16")]
    rows = np.flatnonzero(np.isin(work.dtype_of, half) & (work.dense > 0))
    columns = ("name", "input_dims", "input_types", "concrete_inputs", "input_strides")
    seen: dict[tuple[str | None, ...], bool] = {}
    for row, values in zip(rows.tolist(), table[rows].select(columns).iter_rows(), strict=True):
        key = tuple(None if value is None else str(value) for value in values)
        if key not in seen:
            seen[key] = key[0] in _MATRIX_PRODUCTS and _is_misaligned(key[1:])
        out[row] = seen[key]
    return out


def _is_misaligned(recorded: tuple[str | None, ...]) -> bool:
    arguments = parse(recorded[0], recorded[1], recorded[2], recorded[3]) or []
    tensors = [argument for argument in arguments if isinstance(argument, TensorSpec) and len(argument.shape) >= 2]
    sizes = {size for tensor in tensors[-2:] for size in tensor.shape[-2:]}
    return any(size % _ALIGNMENT and size > _ALIGNMENT for size in sizes)


def layout(case: Case) -> Iterator[Candidate]:
    """Kernels that only put a tensor into another order."""
    for rank in case.ranks:
        work = rank.device_work
        named = rank.device_named(lambda name: bool(_LAYOUT_KERNEL.search(name)))
        chosen = (named | _copies_of_layout(rank)) & ~work.could_use_tensor_cores
        if not chosen.any():
            continue
        nodes = case.nodes(rank, device=chosen)
        per_step = case.time_of(nodes)
        yield Candidate(
            cause="compute.layout-conversion",
            attributed_ns=per_step,
            evidence=(
                facts.time("kernels that change a layout, per step", per_step, case.events_of(nodes)),
                facts.count("of them per step", int(np.count_nonzero(case.in_window(nodes))) / max(case.steps, 1)),
            ),
            expected=case.without(nodes),
            method="replay: without these kernels",
            code=tuple(rank.code_of(_operators_of(rank, chosen))),
            ranks=(rank.rank,),
            uncertainty=0.3,
            confidence=0.85,
            rivals=("compute.fusible",),
        )


def _copies_of_layout(rank: RankCase) -> Mask:
    """Device events of operators that copy a tensor into another order of the same dtype."""
    events = rank.trace.device_events
    operator = rows_of(events["operator"])
    names = rank.trace.operators["name"].cast(str).to_list() if len(rank.trace.operators) else []
    parent = rows_of(rank.trace.operators["parent"]) if names else np.zeros(0, np.int32)
    wanted = np.array([name == "aten::contiguous" for name in names], np.bool_)
    out = np.zeros(len(events), np.bool_)
    at = operator.copy()
    for _ in range(4):
        known = at >= 0
        if not known.any() or not len(wanted):
            break
        out |= known & wanted[np.maximum(at, 0)]
        at = np.where(known, parent[np.maximum(at, 0)], -1)
    return out


# What torch's scaled_dot_product_attention leaves of the passes over the scores on one thread of a CPU: in the mean of four
# shapes from (8, 4, 128, 64) to (1, 8, 1024, 64), forward and backward in fp32; from nothing to 69 %.
_LEFT_ON_CPU: Final = 0.2
_UNSURE_ON_CPU: Final = 0.6


def attention(case: Case) -> Iterator[Candidate]:
    """Attention written out: the matrix of scores goes through memory several times."""
    for rank in case.ranks:
        scores = _score_calls(rank)
        if not scores.any():
            continue
        products = _products(rank)
        passes = case.work_of(rank, scores & ~products)
        if not passes.any():
            continue
        touches = case.work_of(rank, scores)
        best = np.where(passes, 0, case.replayed.duration)
        left = 0.0 if rank.on_device else _LEFT_ON_CPU
        duration = np.where(passes, (case.replayed.duration * left).astype(np.int64), case.replayed.duration)
        if rank.on_device:
            duration = np.minimum(duration, _at_good_rate(case, rank, scores & products, 1.0))
            best = np.minimum(best, _at_good_rate(case, rank, scores & products, _REACHED))
        per_step = case.time_of(passes)
        yield Candidate(
            cause="compute.unfused-attention",
            attributed_ns=per_step,
            evidence=(
                facts.time("passes over the scores of attention, per step", per_step, case.events_of(touches)),
                facts.count("of them per step", int(np.count_nonzero(case.in_window(passes))) / max(case.steps, 1)),
            ),
            expected=Change(duration=duration),
            ceiling=Change(duration=best),
            method="replay: the products alone, at the rate of good kernels, without the passes over the scores",
            code=tuple(rank.code_of(np.flatnonzero(scores))),
            ranks=(rank.rank,),
            uncertainty=0.2 if rank.on_device else _UNSURE_ON_CPU,
            confidence=0.9,
            rivals=("compute.fusible", "compute.layout-conversion"),
        )


def _products(rank: RankCase) -> Mask:
    """Which operators multiply matrices."""
    return rank.trace.operators["name"].cast(str).is_in(list(_MATRIX_PRODUCTS)).to_numpy()


def _at_good_rate(case: Case, rank: RankCase, operators: Mask, factor: float) -> NDArray[np.int64]:
    """The durations of nodes, with products of some operators at what good kernels reach, times a factor."""
    work = rank.device_work
    duration = _durations(rank)
    best = (work.peak.bf16_tflops or work.peak.fp16_tflops) if work.peak is not None else None
    owner = work.events.owner
    flops = np.where(work.events.main, work.work.causal[np.maximum(owner, 0)], 0).astype(np.float64)
    if not best:
        return case.replayed.duration
    target = np.where(flops > 0, flops / (best * 1e12 * _REACHED) * 1e9 * factor, duration)
    operator = rows_of(rank.trace.device_events["operator"])
    chosen = (operator >= 0) & operators[np.maximum(operator, 0)]
    changed = _scaled_nodes(case, rank, chosen, target).duration
    return case.replayed.duration if changed is None else changed


def _score_calls(rank: RankCase) -> Mask:
    """Operator calls with a tensor [..., rows, columns] of scores.

    It is as large as those of the run's softmaxes, or inside the written-out form of scaled dot product attention.
    """
    table = rank.trace.operators
    out = np.zeros(len(table), np.bool_)
    if table.is_empty():
        return out
    dims = table["input_dims"]
    names = table["name"].cast(str)
    softmax = names.is_in(list(_SOFTMAX)).to_numpy()
    shapes: set[tuple[int, ...]] = set()
    for text in dims.filter(softmax).drop_nulls().unique().cast(str).to_list():
        for tensor in _tensors(text):
            if len(tensor) >= 3 and min(tensor[-2:]) >= 1 and max(tensor[-2:]) >= _LEAST_SCORES:
                shapes.add(tensor)
    sizes = {int(np.prod(shape)) for shape in shapes if len(shape) >= 3 and shape[-2] >= _LEAST_SCORES}
    if sizes:
        passing = {text: _holds(text, sizes) for text in dims.drop_nulls().unique().cast(str).to_list()}
        out |= np.array(
            [passing.get(str(text), False) if text is not None else False for text in dims.to_list()], np.bool_
        )
        out |= names.is_in(["aten::bmm", "aten::baddbmm", "aten::matmul"]).to_numpy() & _writes_scores(
            dims.to_list(), sizes
        )
    math = matching(table["name"], _ATTENTION_MATH.search)
    tree = rank.device_work.tree
    inside = math | (nearest_marked(tree.order, tree.parent, math.astype(np.uint8)) >= 0)
    found: Mask = out | inside
    return found


def _tensors(text: str) -> list[tuple[int, ...]]:
    found = re.findall(r"\[([\d, ]*)\]", text[1:-1] if text.startswith("[") else text)
    return [tuple(int(number) for number in part.split(",")) for part in found if part.strip()]


def _holds(text: str, sizes: set[int]) -> bool:
    return any(len(tensor) >= 3 and int(np.prod(tensor, dtype=object)) in sizes for tensor in _tensors(text))


def _writes_scores(texts: list[object], sizes: set[int]) -> Mask:
    """Batched products whose result has as many elements as the scores."""
    seen: dict[str, bool] = {}
    out = np.zeros(len(texts), np.bool_)
    for row, text in enumerate(texts):
        key = str(text)
        if text is None:
            continue
        if key not in seen:
            tensors = [tensor for tensor in _tensors(key) if len(tensor) >= 3]
            seen[key] = len(tensors) >= 2 and int(np.prod((*tensors[-2][:-1], tensors[-1][-1]), dtype=object)) in sizes
        out[row] = seen[key]
    return out


def throttled(case: Case) -> Iterator[Candidate]:
    """The same kernels take longer in some steps than in others, all of them by about as much."""
    for rank in case.ranks:
        events = rank.trace.device_events
        step = rows_of(events["step"])
        duration = _durations(rank)
        work = rank.device_work
        computes = (step >= 0) & (work.could_use_tensor_cores | (work.family != "")) & (work.classified.class_of == 0)
        if len(rank.trace.steps) < _LEAST_REPEATS or not computes.any():
            continue
        key = codes(events["name"]).astype(np.int64)
        grid = events["grid"].fill_null("").cast(str).hash(0).to_numpy() if "grid" in events.columns else key * 0
        key = key * 1_000_003 + (grid % 1_000_003).astype(np.int64)
        best, count = _own_best(key, duration, computes)
        ratio = np.where(computes & (count >= _LEAST_REPEATS) & (best > 0), duration / np.maximum(best, 1), np.nan)
        slow = [
            float(np.nanmedian(ratio[step == number])) if np.isfinite(ratio[step == number]).any() else 1.0
            for number in range(len(rank.trace.steps))
        ]
        steps = [number for number, value in enumerate(slow) if value >= _THROTTLED]
        if not steps:
            continue
        chosen = computes & np.isin(step, steps) & np.isfinite(ratio)
        factor = np.array([slow[number] if number in steps else 1.0 for number in range(len(slow))])
        target = np.where(chosen, duration / factor[np.maximum(step, 0)], duration)
        nodes = case.nodes(rank, device=chosen)
        names = rank.trace.steps["name"].to_list()
        yield Candidate(
            cause="device.throttled",
            attributed_ns=case.time_of(nodes) - case.time_of(nodes) * len(steps) // max(int(sum(factor[steps])), 1),
            evidence=(
                facts.count("steps in which kernels are slower than their own best", len(steps), case.events_of(nodes)),
                facts.share("slower by, in the median of those steps", float(np.median(factor[steps])) - 1),
            ),
            expected=_scaled_nodes(case, rank, chosen, target),
            method="replay: the slow steps' kernels at their own pace in the others",
            ranks=(rank.rank,),
            steps=tuple(names[number] for number in steps[:20]),
            uncertainty=0.15,
            confidence=0.8,
            missing=("clocks and throttle reasons (NVML)",),
            rivals=("communication.straggler",),
        )


def _own_best(
    key: NDArray[np.int64], duration: NDArray[np.float64], chosen: Mask
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Per event a low quantile of the durations of its like, and how many there are."""
    best = np.zeros(len(key))
    count = np.zeros(len(key), np.int64)
    rows = np.flatnonzero(chosen)
    order = rows[np.lexsort((duration[rows], key[rows]))]
    if not len(order):
        return best, count
    starts = np.flatnonzero(np.append(True, np.diff(key[order]) != 0))
    lengths = np.diff(np.append(starts, len(order)))
    low = duration[order[starts + lengths // 10]]
    best[order] = np.repeat(low, lengths)
    count[order] = np.repeat(lengths, lengths)
    return best, count


RULES: Final = (
    Rule("compute.fp32-matmul", ("trace", "device", "operators", "shapes", "peak"), fp32_matmul),
    Rule("compute.low-tensor-core", ("trace", "device", "operators", "shapes", "peak"), low_tensor_core),
    Rule("compute.misaligned-shape", ("trace", "device", "operators", "shapes"), misaligned),
    Rule("compute.layout-conversion", ("trace", "device"), layout),
    Rule("compute.unfused-attention", ("trace", "operators", "shapes"), attention),
    Rule("device.throttled", ("trace", "device", "steps"), throttled),
)
_ = within
