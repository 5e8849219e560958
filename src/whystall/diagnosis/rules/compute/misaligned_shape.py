"""Sizes that are slow for the hardware or library: for 16-bit products on tensor cores, and for Fourier transforms."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from whystall.cost.recorded import parse
from whystall.cost.spec import TensorSpec
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.fourier import largest_factor, next_smooth
from whystall.diagnosis.detectors.host_calls import count_per_step
from whystall.diagnosis.detectors.kernels import (
    BANDWIDTH_REACHED,
    MATRIX_PRODUCTS,
    REACHED,
    durations,
    shortened,
)
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Mask
from whystall.trace.columns import matching

CAUSE: Final = cause_beside(__name__)
_ALIGNMENT: Final = int(CAUSE.threshold("alignment"))
_MISALIGNED_COST: Final = CAUSE.threshold("misaligned_cost")
_SMALL_FACTOR: Final = int(CAUSE.threshold("small_factor"))
_LEAST_SHARE: Final = CAUSE.threshold("least_share")
_LEAST_LEFT: Final = CAUSE.threshold("least_left")
_LEFT: Final = CAUSE.threshold("left")
_MOST_LEFT: Final = CAUSE.threshold("most_left")
_TRANSFORMS: Final = frozenset({"aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c"})
_SHORTEST: Final = 128
_LONGEST: Final = 1 << 26


def in_trace(case: Case) -> Iterator[Replayed]:
    """Products whose recorded sizes are no multiples, at the rate of those whose sizes are."""
    for rank in case.ranks:
        calls = _misaligned_calls(rank)
        work = rank.workings
        owner = work.events.owner
        matrices = work.could_use_tensor_cores & work.events.main & (owner >= 0)
        chosen = matrices & calls[np.maximum(owner, 0)] if calls.any() else np.zeros(len(owner), np.bool_)
        if chosen.any():
            yield _padded(case, rank, chosen, matrices & ~calls[np.maximum(owner, 0)])


def _padded(case: Case, rank: RankCase, chosen: Mask, others: Mask) -> Replayed:
    work = rank.workings
    duration = durations(rank)
    flops = work.flops()
    aligned = others & (flops > 0)
    expected = duration / _MISALIGNED_COST
    if aligned.any():
        # Padded products would reach the rate of the other products of this run, in FLOPs.
        rate = flops[aligned].sum() / duration[aligned].sum()
        expected = np.maximum(flops / rate, work.transfer_ns() / BANDWIDTH_REACHED)
    best = work.peak.peak_flops_per_s("bf16") if work.peak is not None else None
    ceiling = flops / best * 1e9 if best else expected * REACHED
    nodes = case.nodes(rank, device=chosen)
    per_step = case.time_of(nodes)
    return Replayed(
        cause=CAUSE.id,
        attributed_ns=per_step,
        evidence=(
            evidence.time(
                "products with a size that is no multiple of 8", per_step, case.events_of(nodes), per=case.per
            ),
            evidence.count("such products", count_per_step(case, nodes), per=case.per),
        ),
        removal=shortened(case, rank, chosen, expected),
        ceiling=shortened(case, rank, chosen, np.minimum(ceiling, expected)),
        method="replay: these products at the rate of the aligned ones of this run",
        code=code_of(case, nodes),
        ranks=(rank.rank,),
        uncertainty=0.3,
        confidence=0.85,
        rivals=("compute.low-tensor-core",),
    )


def _misaligned_calls(rank: RankCase) -> Mask:
    """The operator calls that multiply 16-bit matrices with a size that is no multiple of 8."""
    table = rank.trace.operators
    out = np.zeros(len(table), np.bool_)
    work = rank.workings.work
    if not len(work.dtype_of):
        return out
    half = [number for number, name in enumerate(work.dtypes) if name in ("float16", "bfloat16")]
    rows = np.flatnonzero(np.isin(work.dtype_of, half) & (work.dense > 0))
    columns = ("name", "input_dims", "input_types", "concrete_inputs", "input_strides")
    keys = [
        (row, tuple(None if value is None else str(value) for value in values))
        for row, values in zip(rows.tolist(), table[rows].select(columns).iter_rows(), strict=True)
    ]
    factors = {key: _factors(key[1:]) for key in {key for _, key in keys} if key[0] in MATRIX_PRODUCTS}
    made = {found[1].shape[-1] for found in factors.values() if found is not None}
    misaligned = {key for key, found in factors.items() if found is not None and _is_misaligned(*found, made)}
    out[[row for row, key in keys if key in misaligned]] = True
    return out


def _factors(recorded: tuple[str | None, ...]) -> tuple[TensorSpec, TensorSpec] | None:
    """The two matrices, or stacks of them, that a call multiplies."""
    arguments = parse(recorded[0], recorded[1], recorded[2], recorded[3]) or []
    tensors = [argument for argument in arguments if isinstance(argument, TensorSpec) and len(argument.shape) >= 2]
    return (tensors[-2], tensors[-1]) if len(tensors) >= 2 else None


def _is_misaligned(one: TensorSpec, other: TensorSpec, made: AbstractSet[int]) -> bool:
    """Whether rows of a matrix, or of the product, begin at places that are no multiple of 16 bytes.

    A row is as long as the matrix has columns, or rows where it is stored transposed. The number of a batch's rows is
    thus free. Without strides the length of the sum counts only if a product of the recording makes (``made``) rows of
    that length: else it may be the number of a batch's rows, in the gradient of a weight.
    """
    (inner, columns) = other.shape[-2:]
    if one.strides is None or other.strides is None:
        sizes = {columns} | ({inner} & made)
    else:
        sizes = {columns, _row_of(one), _row_of(other)}
    return any(size % _ALIGNMENT and size > _ALIGNMENT for size in sizes)


def _row_of(matrix: TensorSpec) -> int:
    """The distance in memory between two rows of a matrix, or two columns of one that is stored transposed."""
    return max((matrix.strides or matrix.shape)[-2:])


def in_trace_of_fourier(case: Case) -> Iterator[Replayed]:
    """Fourier transforms on a CPU whose length has a large prime factor, at the pace of one without."""
    for rank in case.ranks:
        length = _awkward_lengths(rank)
        chosen = length > 0
        nodes = case.work_of(rank, chosen)
        per_step = case.time_of(nodes)
        if not chosen.any() or per_step < _LEAST_SHARE * case.step_ns:
            continue
        own = rank.trace.operators["duration_ns"].to_numpy()
        longest = int(length[np.argmax(np.where(chosen, own, -1))])
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time("Fourier transforms of such a length", per_step, case.events_of(nodes), per=case.per),
                evidence.count("places of the longest of them", longest),
                evidence.count("its largest prime factor", largest_factor(longest)),
                evidence.count("the next length that has small factors alone", next_smooth(longest)),
            ),
            removal=case.without(nodes, _LEFT),
            floor=case.without(nodes, _MOST_LEFT),
            ceiling=case.without(nodes, _LEAST_LEFT),
            method="replay: what transforms of a length of small factors take",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.2,
            confidence=0.85,
            detail=f"a Fourier transform of {longest:,} places",
            remedy=msgspec.structs.replace(
                CAUSE.remedies["smooth"],
                patch=f"n = {next_smooth(longest)}  # not {longest}: rfft(x, n=n), irfft(..., n=n)[..., :length]",
            ),
            rivals=("compute.slow-convolution",),
        )


def _awkward_lengths(rank: RankCase) -> NDArray[np.int64]:
    """Per operator the length of a Fourier transform that has a large prime factor; 0 for all others."""
    table = rank.trace.operators
    out = np.zeros(len(table), np.int64)
    rows = np.flatnonzero(matching(table["name"], _TRANSFORMS.__contains__))
    columns = ("name", "input_dims", "input_types", "concrete_inputs")
    for row, values in zip(rows.tolist(), table[rows].select(columns).iter_rows(), strict=True):
        out[row] = max((one for one in _lengths(*map(str, values)) if largest_factor(one) > _SMALL_FACTOR), default=0)
    return out


def _lengths(name: str, dims: str, types: str, concrete: str) -> list[int]:
    """The lengths of a transform, one for each of its dimensions."""
    arguments = parse(dims, types, concrete) or []
    if len(arguments) < len(("data", "dims", "norm", "last")):
        return []
    data, along, _, last = arguments[:4]
    if not isinstance(data, TensorSpec) or not isinstance(along, list):
        return []
    lengths = [data.shape[one] for one in along if type(one) is int and -len(data.shape) <= one < len(data.shape)]
    if name == "aten::_fft_c2r" and lengths and type(last) is int:
        lengths[-1] = last
    return [one for one in lengths if _SHORTEST <= one <= _LONGEST]


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace", "device_events", "operators", "shapes")),
        Finder(in_trace_of_fourier, ("trace", "no_device", "operators", "shapes")),
    ),
)
