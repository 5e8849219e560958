"""Arithmetic in double precision, which takes twice the memory and at least twice the time of single precision."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.work import uses_tf32
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.doubles import LOWER, casts_of_doubles, is_between_casts
from whystall.diagnosis.detectors.kernels import BANDWIDTH_REACHED, REACHED, costliest_call, durations
from whystall.diagnosis.detectors.limits import has_units_for_doubles
from whystall.diagnosis.finding import Evidence, Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.json_text import parse_json
from whystall.replay.graph import Change, Mask
from whystall.trace.columns import judged, matching
from whystall.trace.link import rows_of
from whystall.vocabulary.compiled_code import FUNCTION

CAUSE: Final = cause_beside(__name__)
_LEFT: Final = CAUSE.threshold("left")
# Overhead (calls, small tensors) stays; at best caches hold more than before.
_LEFT_AT_MOST: Final = 0.75
_LEFT_AT_LEAST: Final = 0.4
_LEFT_OF_CONVOLUTIONS: Final = tuple(CAUSE.threshold("left_of_convolution") * off for off in (1.0, 1.6, 0.5))
_LEFT_OFFUNCTION: Final = tuple(CAUSE.threshold("left_of_compiled") * off for off in (1.0, 1.8, 0.27))
_FACTORS: Final = re.compile(
    r"^aten::_?(linalg_(cholesky|eig|inv|ldl|lstsq|lu|qr|slogdet|det|solve|svd)|cholesky|triangular_solve)"
)
_BEYOND_BYTES: Final = CAUSE.threshold("beyond_bytes")
_RATE_OF_DOUBLES: Final = CAUSE.threshold("rate_of_doubles")
_ALL: Final = CAUSE.threshold("all")
_ASKED_FOR: Final = CAUSE.threshold("asked_for")


def in_trace(case: Case) -> Iterator[Replayed]:
    """Operators whose floating-point tensors are all double, by the types of their arguments."""
    for rank in case.ranks:
        rows = _in_double(rank)
        if not rows.any() or _is_asked_for(rank, rows):
            continue
        between = is_between_casts(rank)
        casts = case.work_of(rank, casts_of_doubles(rank)) & between
        nodes = case.work_of(rank, rows) | casts
        per_step = case.time_of(nodes)
        expected, most, least = _left(case, rank, rows)
        expected, least = (np.where(casts, 0.0, share) for share in (expected, least))
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time(
                    "arithmetic on tensors in double precision", per_step, case.events_of(nodes), per=case.per
                ),
                evidence.count("operators that do it", int(np.count_nonzero(rows)) / max(len(rank.trace.steps), 1)),
                *_costliest(rank, rows),
            ),
            detail="tensors are converted to it and back" if between else "",
            removal=case.without(nodes, expected),
            # Single precision may not be enough for a method that is in double precision as a whole.
            floor=Change() if _may_be_wanted(rank, rows) else case.without(nodes, most),
            ceiling=case.without(nodes, least),
            method="replay: the same arithmetic on half the bytes",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.3,
            confidence=0.8,
            rivals=("compute.cast-churn", "host.small-operators"),
            remedy=_remedy(rank, rows),
        )


def _left(case: Case, rank: RankCase, rows: Mask) -> list[NDArray[np.float64]]:
    """Per node the share that is left: as expected, at most, at least.

    oneDNN knows no convolution of doubles, and code compiled for a CPU is not written with vectors where types mix.
    """
    names = rank.trace.operators["name"]
    convolutions = matching(names, lambda name: "conv" in name)
    convolutions |= rank.workings.tree.below(convolutions)
    compiled = matching(names, lambda name: name.startswith(FUNCTION))
    if rank.on_device:
        convolutions[:] = compiled[:] = False
    kinds = zip((_LEFT, _LEFT_AT_MOST, _LEFT_AT_LEAST), _LEFT_OF_CONVOLUTIONS, _LEFT_OFFUNCTION, strict=True)
    shares = [
        case.operator_values(
            rank, np.where(rows & convolutions, of_one, np.where(rows & compiled, of_code, other)), other
        )
        for other, of_one, of_code in kinds
    ]
    if not rank.on_device:
        return shares
    return _with_products(case, rank, rows, _with_few_units(case, rank, rows, shares))


def _costliest(rank: RankCase, rows: Mask) -> tuple[Evidence, ...]:
    """The costliest call with kernels in double precision, if there is one."""
    events = rank.launched_by(rows)
    return (evidence.text("the costliest call", costliest_call(rank, events)),) if events.any() else ()


def _with_few_units(
    case: Case, rank: RankCase, rows: Mask, shares: list[NDArray[np.float64]]
) -> list[NDArray[np.float64]]:
    """The shares on a device with few units for doubles: these limit the kernels that memory bandwidth does not."""
    work, took = rank.workings, np.maximum(durations(rank), 1)
    if work.peak is None or work.peak.vendor != "NVIDIA" or has_units_for_doubles(work.peak):
        return shares
    moved = work.transfer_ns() / 2 / BANDWIDTH_REACHED
    slow = rank.launched_by(rows) & (moved > 0)
    slow &= took >= _BEYOND_BYTES * 2 * moved
    nodes = case.nodes(rank, device=slow)
    left = np.maximum(moved / took, _RATE_OF_DOUBLES)
    return [
        np.where(nodes, case.device_values(rank, np.minimum(times * left, most), 1.0), others)
        for times, most, others in zip((2.0, 4.0, 1.0), (_LEFT, _LEFT_AT_MOST, _LEFT_AT_LEAST), shares, strict=True)
    ]


def _with_products(
    case: Case, rank: RankCase, rows: Mask, shares: list[NDArray[np.float64]]
) -> list[NDArray[np.float64]]:
    """The shares, those of matrix products by the time of their arithmetic in single precision.

    Without tensor cores some devices multiply no faster than in double precision: TF32 is expected where other kernels
    of the job use it, and at best.
    """
    work, took = rank.workings, np.maximum(durations(rank), 1)
    products = _products(rank, rows) & (work.flops() > 0)
    fp32, tf32 = (work.peak.peak_flops_per_s(one) if work.peak is not None else None for one in ("fp32", "tf32"))
    if fp32 is None or not products.any():
        return shares
    moved = work.transfer_ns() / 2
    plain, fast, best = (
        np.minimum(np.maximum(work.flops() / peak / reached * 1e9, moved / BANDWIDTH_REACHED) / took, 1.0)
        for peak, reached in ((fp32, REACHED), (tf32 or fp32, REACHED), (tf32 or fp32, 1.0))
    )
    expected = fast if uses_tf32(work.classified) else np.clip(_LEFT, np.minimum(fast, plain), plain)
    most = np.minimum(plain, _LEFT_AT_MOST) if tf32 else plain
    nodes = case.nodes(rank, device=products)
    return [
        np.where(nodes, case.device_values(rank, own, 1.0), others)
        for own, others in zip((expected, most, best), shares, strict=True)
    ]


def _products(rank: RankCase, rows: Mask) -> Mask:
    """The kernels of some operators that multiply matrices."""
    found: Mask = rank.launched_by(rows) & rank.workings.could_use_tensor_cores
    return found


def _remedy(rank: RankCase, rows: Mask) -> Remedy | None:
    """The remedy for a part of a model between conversions, or for products that gain little without TF32."""
    if is_between_casts(rank):
        return CAUSE.remedies["between_casts"]
    peak = rank.workings.peak
    asks = rank.on_device and peak is not None and peak.tf32_tflops and not uses_tf32(rank.workings.classified)
    return CAUSE.remedies["products"] if asks and _products(rank, rows).any() else None


def _is_asked_for(rank: RankCase, rows: Mask) -> bool:
    """Whether a good part of the arithmetic factors matrices: single precision fails where they are near singular."""
    table = rank.trace.operators
    own = table["self_ns"].to_numpy()
    factoring = matching(table["name"], lambda name: bool(_FACTORS.match(name)))
    factoring |= rank.workings.tree.below(factoring)
    return float(own[factoring & rows].sum()) >= _ASKED_FOR * float(own[rows].sum())


def _may_be_wanted(rank: RankCase, rows: Mask) -> bool:
    """Whether nothing learns, and nearly all arithmetic is in double precision: somebody converted everything to it."""
    table = rank.trace.operators
    if len(rank.optimizer_steps[0]):
        return False
    took = table["self_ns"].to_numpy().astype(np.float64)
    if rank.on_device:
        operator = rows_of(rank.trace.device_events["operator"])
        known = operator >= 0
        took = np.bincount(operator[known], weights=durations(rank)[known], minlength=len(table)).astype(np.float64)
    return float(took[rows].sum()) >= _ALL * float(took.sum())


def _in_double(rank: RankCase) -> Mask:
    table = rank.trace.operators
    out = np.zeros(len(table), np.bool_)
    if table.is_empty():
        return out
    double = table["input_types"].cast(str).str.contains("double", literal=True)
    rows = np.flatnonzero(double.fill_null(value=False).to_numpy())
    out[rows] = judged(table.select("input_types", "input_dims")[rows], _is_double)
    # In code that was compiled as a whole one such tensor makes a double of all that meets it.
    compiled = matching(table["name"].gather(rows), lambda name: name.startswith(FUNCTION))
    out[rows[compiled]] = judged(table.select("input_types", "input_dims")[rows[compiled]], _has_double)
    return out


def _has_double(recorded_types: str, recorded_sizes: str | None) -> bool:
    return "double" in _tensors(recorded_types, recorded_sizes)


def _is_double(recorded_types: str, recorded_sizes: str | None) -> bool:
    """Whether an operator's tensors of any dimensions are double; single numbers are double in any job."""
    tensors = _tensors(recorded_types, recorded_sizes)
    return "double" in tensors and not tensors & LOWER


def _tensors(recorded_types: str, recorded_sizes: str | None) -> set[str]:
    """The types of an operator's tensors that have dimensions."""
    types, sizes = parse_json(recorded_types), parse_json(recorded_sizes or "[]")
    return {str(kind) for kind, size in zip(types, sizes, strict=False) if size}


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "operators", "shapes")),))
