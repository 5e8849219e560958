"""Where device time comes from: operators, compiled kernels, replayed graphs; unknown origins are counted as such.

A kernel that Inductor made carries the operators it was fused from in its name, and its launch lies in the compiled
region; this module reads both. A replayed graph is one launch of many kernels: it has a caller, and no operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from whystall._native import nearest_marked
from whystall.analysis.modules import ModulePlaces
from whystall.analysis.operators import OperatorTree
from whystall.analysis.results import Device
from whystall.analysis.work_results import FusedKernel, KernelOrigins, OriginShare
from whystall.cost.compiled import fused_name
from whystall.cost.registry import known_operators
from whystall.trace.columns import codes, distinct, matching
from whystall.trace.link import rows_of
from whystall.trace.model import Trace
from whystall.vocabulary.compiled_code import EITHER
from whystall.vocabulary.frames import frame_of, owner

Origin = Literal["graph", "compiled", "operator", "region", "module", "python", "none"]
ORIGINS: Final[tuple[Origin, ...]] = get_args(Origin)
"""In the order in which one is taken: the first that applies."""

_REGIONS: Final = (*EITHER, "TorchDynamo")
_MOST_ROWS: Final = 200
_MOST_MODULES: Final = 4
_MOST_FRAMES: Final = 64  # frames looked at above one that is built in
_WHY: Final = {
    "graph": "a replayed graph is one launch, which names no operators",
    "region": "launched in a compiled region by a kernel whose name does not say what it was fused from",
}


@dataclass(frozen=True, slots=True)
class _Events:
    """One device's events with the known facts about their launch; -1 for unknown ones."""

    duration: NDArray[np.int64]
    name: NDArray[np.int64]
    operator: NDArray[np.int32]
    launch: NDArray[np.int32]
    frame: NDArray[np.int32]
    path: NDArray[np.int32]
    region: NDArray[np.int32]
    origin: NDArray[np.int8]


def kernel_origins(trace: Trace, device: Device, tree: OperatorTree, places: ModulePlaces) -> KernelOrigins:
    """The origins of one device's events; counts and times add up to all of its events."""
    names = distinct(trace.device_events["name"])
    events = _events(trace, device, tree, places, names)
    shares = [
        OriginShare(
            origin=origin,
            events=int(np.count_nonzero(events.origin == place)),
            device_ns=int(events.duration[events.origin == place].sum()),
        )
        for place, origin in enumerate(ORIGINS)
    ]
    rows = sorted(_fused(trace, tree, places, events, names), key=lambda row: (-row.device_ns, row.name, row.modules))
    return KernelOrigins(
        rank=device.rank,
        device=device.device,
        shares=[share for share in shares if share.events],
        fused=rows[:_MOST_ROWS],
        fused_omitted=max(len(rows) - _MOST_ROWS, 0),
    )


def _events(trace: Trace, device: Device, tree: OperatorTree, places: ModulePlaces, names: list[str]) -> _Events:
    table = trace.device_events
    rows = np.flatnonzero(table["device"].to_numpy() == device.device)
    operator, launch, frame = (rows_of(table[column])[rows] for column in ("operator", "launch", "frame"))
    name = codes(table["name"]).astype(np.int64)[rows]
    region = _at(_regions(tree), operator)
    module_of_frame = np.append(places.modules.path_of, -1)
    own = module_of_frame[np.where(frame >= 0, frame, len(module_of_frame) - 1)]
    path = np.where(operator >= 0, _at(places.path, operator), own)
    replays = matching(trace.runtime_calls["name"], lambda text: "GraphLaunch" in text)
    known = known_operators()
    compiled = np.array([fused_name(text, known) is not None for text in names] or [False], np.bool_)
    in_region_only = np.array([_is_region(text) for text in tree.names] + [False], np.bool_)
    wrapper = in_region_only[np.where(operator >= 0, _at(tree.name_of, operator), len(tree.names))]
    conditions = (
        (launch >= 0) & replays[np.maximum(launch, 0)] if len(replays) else launch > len(replays),
        compiled[name],
        (operator >= 0) & ~wrapper,
        wrapper,
        path >= 0,
        frame >= 0,
    )
    origin = np.select(conditions, range(len(conditions)), len(conditions)).astype(np.int8)
    return _Events(table["duration_ns"].to_numpy()[rows], name, operator, launch, frame, path, region, origin)


def _at(values: NDArray[np.int32], rows: NDArray[np.int32]) -> NDArray[np.int32]:
    """``values`` at ``rows``; -1 stays -1."""
    return np.where(rows >= 0, values[np.maximum(rows, 0)], -1).astype(np.int32) if len(values) else rows * 0 - 1


def _is_region(name: str) -> bool:
    return name.startswith(_REGIONS)


def _regions(tree: OperatorTree) -> NDArray[np.int32]:
    """Per operator the compiled region that it lies in, itself included, or -1."""
    marked = np.array([_is_region(name) for name in tree.names], np.bool_)
    if not len(tree.name_of):
        return np.zeros(0, np.int32)
    own = marked[tree.name_of]
    above = nearest_marked(tree.order, tree.parent, own.astype(np.uint8))
    return np.where(own, np.arange(len(own), dtype=np.int32), above).astype(np.int32)


def _fused(
    trace: Trace, tree: OperatorTree, places: ModulePlaces, events: _Events, names: list[str]
) -> Iterator[FusedKernel]:
    """A row per compiled kernel, and per caller of graphs and of regions."""
    known = known_operators()
    for rows in _groups(events, trace):
        first = int(rows[0])
        origin = ORIGINS[int(events.origin[first])]
        label, name = names[int(events.name[first])], None
        if origin == "graph":
            label = str(trace.runtime_calls["name"][int(events.launch[first])])
        elif origin == "compiled":
            name = fused_name(label, known)
        region = int(events.region[first])
        why = _WHY.get(origin)
        if name is not None and name.unknown:
            why = f"the name holds parts that are no known operator: {', '.join(name.unknown)[:200]}"
        elif name is not None and not name.operators:
            why = "the name holds no operators (descriptive_names is off)"
        yield FusedKernel(
            name=label,
            origin=origin,
            category=None if name is None else name.category,
            operators=[] if name is None else list(name.operators),
            region=None if region < 0 else tree.names[int(tree.name_of[region])],
            modules=_modules(places, events, rows),
            function=function_of(trace, int(events.frame[first])),
            launches=len(np.unique(events.launch[rows])) if (events.launch[rows] >= 0).all() else None,
            events=len(rows),
            device_ns=int(events.duration[rows].sum()),
            unknown_because=why,
        )


def _groups(events: _Events, trace: Trace) -> list[NDArray[np.intp]]:
    """Rows of one kernel name, caller and module; a graph's and a region's, of one caller and module."""
    chosen = np.flatnonzero(np.isin(events.origin, [ORIGINS.index(one) for one in ("graph", "compiled", "region")]))
    if not len(chosen):
        return []
    calls = codes(trace.runtime_calls["name"]).astype(np.int64) if len(trace.runtime_calls) else np.zeros(1, np.int64)
    graph = events.origin[chosen] == ORIGINS.index("graph")
    what = np.where(graph, -1 - calls[np.maximum(events.launch[chosen], 0)], events.name[chosen])
    module = np.where(graph, events.path[chosen], 0)
    _, place = np.unique(np.stack([events.origin[chosen], what, module], axis=1), axis=0, return_inverse=True)
    place = place.reshape(-1)
    order = np.argsort(place, kind="stable")
    return [chosen[rows] for rows in np.split(order, np.flatnonzero(np.diff(place[order])) + 1)]


def _modules(places: ModulePlaces, events: _Events, rows: NDArray[np.intp]) -> list[str]:
    """The modules in which most of the time was launched."""
    path = events.path[rows]
    times = np.bincount(path[path >= 0], events.duration[rows][path >= 0].astype(np.float64))
    heaviest = np.argsort(-times, kind="stable")[:_MOST_MODULES]
    return [places.modules.paths[int(one)] for one in heaviest if times[one] > 0]


def function_of(trace: Trace, frame: int) -> str | None:
    """The Python function around a frame of a launch or an allocation.

    The innermost that is neither built in nor PyTorch's, else PyTorch's own.
    """
    own = None
    for _ in range(_MOST_FRAMES):
        if frame < 0:
            break
        name = str(trace.python_functions["name"][frame])
        called = frame_of(name)
        if called is not None and owner(called.file) != "nobody":
            return name
        own = own or (name if name.startswith("torch/") else None)
        above = trace.python_functions["parent"][frame]
        frame = -1 if above is None else int(above)
    return own
