"""Arithmetic in double precision, which takes twice the memory and at least twice the time of single precision."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Mask
from whystall.trace.columns import judged, matching

CAUSE: Final = cause_beside(__name__)
_LEFT: Final = CAUSE.threshold("left")
# Of what is not arithmetic (calls, small tensors) nothing goes away; at best caches hold what they did not.
_LEFT_AT_MOST: Final = 0.75
_LEFT_AT_LEAST: Final = 0.4
_LEFT_OF_CONVOLUTIONS: Final = tuple(CAUSE.threshold("left_of_convolution") * off for off in (1.0, 1.6, 0.5))
_LEFT_OF_COMPILED: Final = tuple(CAUSE.threshold("left_of_compiled") * off for off in (1.0, 1.8, 0.27))
_FACTORS: Final = re.compile(
    r"^aten::_?(linalg_(cholesky|eig|inv|ldl|lstsq|lu|qr|slogdet|det|solve|svd)|cholesky|triangular_solve)"
)
_ASKED_FOR: Final = CAUSE.threshold("asked_for")
_COMPILED: Final = "CompiledFunction"
_OTHERS: Final = frozenset({"float", "c10::Half", "c10::BFloat16"})


def in_trace(case: Case) -> Iterator[Replayed]:
    """Operators whose floating-point tensors are all double, by the types of their arguments."""
    for rank in case.ranks:
        rows = _in_double(rank)
        if not rows.any() or _is_asked_for(rank, rows):
            continue
        nodes = case.work_of(rank, rows)
        per_step = case.time_of(nodes)
        expected, most, least = _left(case, rank, rows)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time(
                    "arithmetic on tensors in double precision", per_step, case.events_of(nodes), per=case.per
                ),
                evidence.count("operators that do it", int(np.count_nonzero(rows)) / max(len(rank.trace.steps), 1)),
            ),
            removal=case.without(nodes, expected),
            floor=case.without(nodes, most),
            ceiling=case.without(nodes, least),
            method="replay: the same arithmetic on half as many bytes",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.3,
            confidence=0.8,
            rivals=("compute.cast-churn", "host.small-operators"),
        )


def _left(case: Case, rank: RankCase, rows: Mask) -> list[NDArray[np.float64]]:
    """Per node the share that is left: as expected, at most, at least.

    oneDNN knows no convolution of doubles, and code compiled for a CPU is not written with vectors where types mix.
    """
    names = rank.trace.operators["name"]
    convolutions = matching(names, lambda name: "conv" in name)
    convolutions |= rank.workings.tree.below(convolutions)
    compiled = matching(names, lambda name: name.startswith(_COMPILED))
    if rank.on_device:
        convolutions[:] = compiled[:] = False
    shares = zip((_LEFT, _LEFT_AT_MOST, _LEFT_AT_LEAST), _LEFT_OF_CONVOLUTIONS, _LEFT_OF_COMPILED, strict=True)
    return [
        case.operator_values(
            rank, np.where(rows & convolutions, of_one, np.where(rows & compiled, of_code, other)), other
        )
        for other, of_one, of_code in shares
    ]


def _is_asked_for(rank: RankCase, rows: Mask) -> bool:
    """Whether a good part of the arithmetic factors matrices: single precision fails where they are near singular."""
    table = rank.trace.operators
    own = table["self_ns"].to_numpy()
    factoring = matching(table["name"], lambda name: bool(_FACTORS.match(name)))
    factoring |= rank.workings.tree.below(factoring)
    return float(own[factoring & rows].sum()) >= _ASKED_FOR * float(own[rows].sum())


def _in_double(rank: RankCase) -> Mask:
    table = rank.trace.operators
    out = np.zeros(len(table), np.bool_)
    if table.is_empty():
        return out
    double = table["input_types"].cast(str).str.contains("double", literal=True)
    rows = np.flatnonzero(double.fill_null(value=False).to_numpy())
    out[rows] = judged(table.select("input_types", "input_dims")[rows], _is_double)
    # In code that was compiled as a whole one such tensor makes a double of all that meets it.
    compiled = matching(table["name"].gather(rows), lambda name: name.startswith(_COMPILED))
    out[rows[compiled]] = judged(table.select("input_types", "input_dims")[rows[compiled]], _has_double)
    return out


def _has_double(recorded_types: str, recorded_sizes: str | None) -> bool:
    return "double" in _tensors(recorded_types, recorded_sizes)


def _is_double(recorded_types: str, recorded_sizes: str | None) -> bool:
    """Whether an operator's tensors of any dimensions are double; a number by itself is so in any job."""
    tensors = _tensors(recorded_types, recorded_sizes)
    return "double" in tensors and not tensors & _OTHERS


def _tensors(recorded_types: str, recorded_sizes: str | None) -> set[str]:
    """The types of an operator's tensors that have dimensions."""
    types, sizes = json.loads(recorded_types), json.loads(recorded_sizes or "[]")
    return {str(kind) for kind, size in zip(types, sizes, strict=False) if size}


RULE = Rule(CAUSE, (Finder(in_trace, ("trace", "operators", "shapes")),))
