"""Products of matrices that are written out: a large tensor by broadcasting, and a sum over it."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.cost.recorded import parse
from whystall.cost.spec import TensorSpec
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.frees import given_back
from whystall.diagnosis.detectors.kernels import LEAST_REACHED
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.trace.columns import judged, matching
from whystall.trace.recorded_sizes import Shape, all_sizes

CAUSE: Final = cause_beside(__name__)
_LEAST_TIMES: Final = CAUSE.threshold("least_times")
_LEAST_BYTES: Final = CAUSE.threshold("least_bytes")
_FLOPS_PER_S: Final = CAUSE.threshold("flops_per_thread")
_DEVICE_FLOPS_PER_S: Final = CAUSE.threshold("flops_per_device")
_LEAST_SHARE: Final = CAUSE.threshold("least_share")
_BYTES: Final = 4
_LARGEST: Final = 1 << 40
_FASTER: Final = 3.0
# The tensor that broadcasting makes is a variable of the function that makes it, and is freed at its end.
_FREED_WITHIN: Final = 3
_MULTIPLIES: Final = "aten::mul"
_SUBTRACTS: Final = "aten::sub"
_SQUARES: Final = frozenset({"aten::pow", "aten::square", "aten::mul"})
_BOTH: Final = ("one", "other")
_REPEATS: Final = "aten::repeat"
_SUMS: Final = frozenset({"aten::sum", "aten::mean"})


def in_trace(case: Case) -> Iterator[Replayed]:
    """By recorded sizes: tensors made large by broadcasting, and summed next."""
    for rank in case.ranks:
        products = _products(rank)
        if not products:
            continue
        over = _operators_over(rank, frozenset(products))
        nodes = case.work_of(rank, over)
        taken = case.time_of(nodes)
        begin, end = case.window_on(rank)
        # A multiplication and an addition for each element; twice more where gradients go back through it.
        flops = (6 if rank.trains else 2) * sum(
            prod(shape) * sum(begin <= at < end for at in times) for shape, times in products.items()
        )
        needed = flops / _rate(rank) * 1e9 / max(case.steps, 1)
        left = min(needed / max(taken, 1), 1.0)
        if taken * (1 - left) < _LEAST_SHARE * case.step_ns:
            continue
        largest = max(products, key=lambda shape: (prod(shape), shape))
        where = "on this device" if rank.on_device else "on a usual core"
        gone = nodes if rank.on_device else nodes | given_back(case, rank, over, _FREED_WITHIN)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=taken,
            evidence=(
                evidence.time("operators on what broadcasting makes", taken, case.events_of(nodes), per=case.per),
                evidence.time(f"what the arithmetic of a product takes {where}", needed, per=case.per),
            ),
            removal=case.without(gone, left),
            floor=case.without(nodes, min(left * _FASTER, 1.0)),
            ceiling=case.without(gone, left / _FASTER),
            method=f"replay: the same arithmetic at the rate of products {where}",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.3,
            confidence=0.85,
            detail="a tensor of " + " x ".join(f"{size:,}" for size in largest),
            rivals=("compute.fusible", "host.small-operators", "host.allocator"),
        )


def _rate(rank: RankCase) -> float:
    """FLOP/s of products: of a device in single precision, which it reaches without a setting."""
    peak = rank.workings.peak.peak_flops_per_s("fp32") if rank.workings.peak is not None else None
    return LEAST_REACHED * (peak or _DEVICE_FLOPS_PER_S) if rank.on_device else _FLOPS_PER_S


def _products(rank: RankCase) -> dict[Shape, list[int]]:
    """The sizes that multiplications make by broadcasting and sums read next, and when."""
    table, work = rank.trace.operators, rank.workings.work
    rows = np.flatnonzero(work.counted)
    at = table["ts_ns"].to_numpy()
    rows = rows[np.lexsort((at[rows], table["thread"].to_numpy()[rows]))]
    names = table["name"].gather(rows).cast(str).to_list()
    copied_from = _sources(rank)
    sizes = [
        copied_from.get(given[0], given) if len(given) == len(_BOTH) and given[0] == given[1] else given
        for given in judged(table.select("input_dims")[rows], _sizes)
    ]
    found: dict[Shape, list[int]] = {}
    for place, (name, given) in enumerate(zip(names, sizes, strict=True)):
        if name not in {_MULTIPLIES, _SUBTRACTS}:
            continue
        made = _broadcast(given)
        after = place + 1
        if made is None or after >= len(rows):
            continue
        if name == _SUBTRACTS:
            if names[after] not in _SQUARES or sizes[after][:1] != [made]:
                continue
            after += 1
        if after < len(rows) and names[after] in _SUMS and sizes[after][:1] == [made]:
            found.setdefault(made, []).append(int(at[rows[place]]))
    # A layer on a tensor of that size needs what broadcasting makes.
    layers = np.flatnonzero(work.dense[rows] > 0).tolist()
    needed = {shape for one in layers for shape in sizes[one]}
    return {made: times for made, times in found.items() if made not in needed}


def _sources(rank: RankCase) -> dict[Shape, list[Shape]]:
    """The two sizes whose copies (`Tensor.repeat`) both have one size, which broadcasting would make without them."""
    table = rank.trace.operators
    repeats = table.filter(table["name"].cast(str) == _REPEATS).select("input_dims", "input_types", "concrete_inputs")
    found: dict[Shape, set[Shape]] = {}
    for source, made in filter(None, judged(repeats, _repeated)):
        found.setdefault(made, set()).add(source)
    return {made: sorted(sources) for made, sources in found.items() if len(sources) == len(_BOTH)}


def _repeated(dims: str | None, types: str | None, concrete: str | None) -> tuple[Shape, Shape] | None:
    """The size of a repeated tensor, and that of its copies."""
    source, times = (parse(dims, types, concrete) or [None, None])[:2]
    if not isinstance(source, TensorSpec) or not isinstance(times, list) or len(times) < len(source.shape):
        return None
    whole = (1,) * (len(times) - len(source.shape)) + source.shape
    made = tuple(size * one for size, one in zip(whole, times, strict=True) if type(one) is int and one > 0)
    return (whole, made) if len(made) == len(whole) and prod(made) < _LARGEST else None


def _operators_over(rank: RankCase, shapes: frozenset[Shape]) -> NDArray[np.bool_]:
    """Operators with inputs or results of these sizes, with all that they call."""
    table, work = rank.trace.operators, rank.workings.work
    rows = np.flatnonzero(work.counted)
    out = np.zeros(len(table), np.bool_)
    told = judged(table.select("input_dims")[rows], _sizes)
    out[rows] = [any(one in shapes for one in (*given, _broadcast(given))) for given in told]
    repeats = np.flatnonzero(matching(table["name"], lambda name: name == _REPEATS))
    copies = judged(table.select("input_dims", "input_types", "concrete_inputs")[repeats], _repeated)
    out[repeats] = [one is not None and one[1] in shapes for one in copies]
    out |= rank.workings.tree.below(out)
    return out


def _sizes(dims: str | None) -> list[Shape]:
    """The sizes of a call's tensors that have any elements."""
    return [one for one in all_sizes(dims) if 0 < prod(one) < _LARGEST]


def _broadcast(given: list[Shape]) -> Shape | None:
    """The size that two tensors make, where it is many times that of the larger one."""
    if len(given) != len(_BOTH):
        return None
    try:
        made = tuple(int(size) for size in np.broadcast_shapes(*given))
    except ValueError:
        return None
    count = prod(made)
    large = _LARGEST > count * _BYTES >= _LEAST_BYTES
    return made if large and count >= _LEAST_TIMES * max(map(prod, given)) else None


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "operators", "shapes")),))
