"""The module tree: device and host time of every ``nn.Module`` call, forward and backward."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whystall.analysis.backward import forward_operator_of, is_backward
from whystall.analysis.operators import OperatorTree
from whystall.analysis.results import Module
from whystall.analysis.work import OperatorWork, WorkSums, counted_operator_of, sums_by_group, upwards
from whystall.trace.columns import codes, distinct
from whystall.trace.link import rows_of
from whystall.trace.model import Trace

_PREFIX: Final = "nn.Module: "
# A path names its parents: a hostile trace that nests endlessly would make them endlessly long.
_DEEPEST: Final = 200
_INSTANCE_NUMBER: Final = re.compile(r"_\d+$")


@dataclass(frozen=True, slots=True)
class ModulePaths:
    """Paths of modules; ``path_of`` gives the path of each Python call's innermost module, or -1."""

    paths: list[str]
    parents: list[int]
    calls: NDArray[np.int64]
    path_of: NDArray[np.int32]
    host_ns: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ModulePlaces:
    """Where operators belong: ``path`` is the module of each (a backward operator's is its forward's), -1 if none.

    ``own_path`` is the module whose Python frame the operator itself runs in.
    """

    modules: ModulePaths
    path: NDArray[np.int32]
    own_path: NDArray[np.int32]
    backward: NDArray[np.bool_]


def module_places(trace: Trace, tree: OperatorTree) -> ModulePlaces:
    """The module of every operator."""
    modules = _module_tree(trace)
    forward_of = forward_operator_of(trace, tree)
    frame = rows_of(trace.operators["frame"])
    path_of_frame = np.append(modules.path_of, -1)
    own_path = path_of_frame[frame] if len(frame) else np.zeros(0, np.int32)
    path = np.where(forward_of >= 0, own_path[np.maximum(forward_of, 0)], own_path) if len(frame) else own_path
    return ModulePlaces(modules, path.astype(np.int32), own_path, is_backward(tree, forward_of))


def module_results(
    trace: Trace,
    tree: OperatorTree,
    places: ModulePlaces,
    rank: int,
    work: OperatorWork | None = None,
    least: NDArray[np.float64] | None = None,
) -> list[Module]:
    """One row per module path, parents before children; nothing when no Python frames were recorded."""
    modules = places.modules
    if not modules.paths:
        return []
    backward, path, own_path = places.backward, places.path, places.own_path
    forward_self = _sums(path, tree.work_ns, ~backward, len(modules.paths))
    backward_self = _sums(path, tree.work_ns, backward, len(modules.paths))
    host_self = _sums(
        own_path, trace.operators["self_ns"].to_numpy(), np.ones(len(own_path), np.bool_), len(modules.paths)
    )
    forward_self += _without_operator(trace, modules)
    forward_all, backward_all = (upwards(modules.parents, values) for values in (forward_self, backward_self))
    done = None
    if work is not None and work.counted.any():
        loose = _without_operator(trace, modules)
        done = _work(tree, work, least, path=path, backward=backward, loose=loose, parents=modules.parents)
    return [
        Module(
            rank=rank,
            path=name,
            class_=_INSTANCE_NUMBER.sub("", name.rpartition("/")[2]),
            calls=int(modules.calls[index]),
            forward_ns=int(forward_all[index]),
            backward_ns=int(backward_all[index]),
            forward_self_ns=int(forward_self[index]),
            backward_self_ns=int(backward_self[index]),
            host_ns=int(modules.host_ns[index]),
            host_self_ns=int(host_self[index]),
            **({} if done is None else _work_fields(*done, index)),
        )
        for index, name in enumerate(modules.paths)
    ]


def _work(
    tree: OperatorTree,
    work: OperatorWork,
    least: NDArray[np.float64] | None,
    *,
    path: NDArray[np.int32],
    backward: NDArray[np.bool_],
    loose: NDArray[np.int64],
    parents: list[int],
) -> tuple[WorkSums, WorkSums]:
    """The work of each path and all below it, forward and backward; ``loose`` time has no operator and so no work."""
    owner = counted_operator_of(tree, work)
    out = []
    for direction in (~backward, backward):
        mine = np.flatnonzero((path >= 0) & direction)
        calls = mine[work.counted[mine]]
        own = sums_by_group(
            len(parents),
            calls=calls,
            group_of_call=path[calls],
            time_ns=tree.work_ns[mine],
            group_of_time=path[mine],
            owner_of_time=owner[mine],
            work=work,
            least=least,
        )
        if direction is not backward:
            own = replace(own, total_ns=own.total_ns + loose)
        out.append(own.upwards(parents))
    return out[0], out[1]


def _work_fields(forward: WorkSums, backward: WorkSums, index: int) -> dict[str, Any]:
    there, back, both = forward.row(index), backward.row(index), forward.plus(backward).row(index)
    return {
        "forward_flops": there.flops,
        "backward_flops": back.flops,
        "forward_bytes": there.bytes,
        "backward_bytes": back.bytes,
        "forward_flops_per_s": there.flops_per_s,
        "backward_flops_per_s": back.flops_per_s,
        "forward_bytes_per_s": there.bytes_per_s,
        "backward_bytes_per_s": back.bytes_per_s,
        "roofline": both.roofline,
        "covered_share": both.covered_share,
    }


def _module_tree(trace: Trace) -> ModulePaths:
    frames = trace.python_functions
    names = distinct(frames["name"])
    labels = [name[len(_PREFIX) :] if name.startswith(_PREFIX) else None for name in names]
    name_of = codes(frames["name"])
    module = rows_of(frames["module"])
    parent = rows_of(frames["parent"])
    own = np.flatnonzero(module == np.arange(len(module)))
    above = np.where(parent[own] >= 0, module[np.maximum(parent[own], 0)], -1) if len(own) else own
    # A parent starts no later than its child; where both start together the parent ends later.
    start, duration = frames["ts_ns"].to_numpy(), frames["duration_ns"].to_numpy()
    paths: list[str] = []
    parents: list[int] = []
    depths: list[int] = []
    folded: list[int] = []
    index_of: dict[tuple[int, str], int] = {}
    path_of_call = np.full(len(module) + 1, -1, np.int32)  # the last is that of no call
    order = np.lexsort((-duration[own], start[own]))
    for row, outer in zip(own[order].tolist(), above[order].tolist(), strict=True):
        outer_path = int(path_of_call[outer])
        if outer_path >= 0 and depths[outer_path] >= _DEEPEST:
            path_of_call[row] = outer_path
            folded.append(row)
            continue
        label = labels[name_of[row]] or "?"
        key = (outer_path, label)
        if key not in index_of:
            index_of[key] = len(paths)
            depths.append(depths[outer_path] + 1 if outer_path >= 0 else 1)
            parents.append(outer_path)
            paths.append(f"{paths[outer_path]}/{label}" if outer_path >= 0 else label)
        path_of_call[row] = index_of[key]
    path_of = path_of_call[module]
    own = np.setdiff1d(own, folded, assume_unique=True)
    calls = np.bincount(path_of[own], minlength=len(paths)).astype(np.int64) if len(own) else np.zeros(0, np.int64)
    host = np.zeros(len(paths), np.int64)
    np.add.at(host, path_of[own], duration[own])
    return ModulePaths(paths, parents, calls, path_of, host)


def _sums(
    path: NDArray[np.int32], values: NDArray[np.int64], chosen: NDArray[np.bool_], count: int
) -> NDArray[np.int64]:
    out = np.zeros(count, np.int64)
    known = chosen & (path >= 0)
    np.add.at(out, path[known], values[known])
    return out


def _without_operator(trace: Trace, modules: ModulePaths) -> NDArray[np.int64]:
    """Time of device events that a module launched outside any operator (a kernel of one's own)."""
    events = trace.device_events
    frame, operator = rows_of(events["frame"]), rows_of(events["operator"])
    loose = (operator < 0) & (frame >= 0)
    path = modules.path_of[frame[loose]]
    return _sums(path, events["duration_ns"].to_numpy()[loose], np.ones(len(path), np.bool_), len(modules.paths))
