"""Where marks lie in the page's drawings, in percent of their frame; the templates only place them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from whystall.analysis.memory_results import MemoryPeak
from whystall.analysis.results import Device, Module, Step
from whystall.analysis.run_results import RunSummary
from whystall.report import format as fmt
from whystall.report.names import clean, shorten

_MOST_STEPS = 120
_FEWEST_STEPS = 16
_DEEPEST = 12
_NARROWEST = 0.15
_MOST_POINTS = 400
_SEPARATORS = re.compile(r"[./]")


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in percent of its frame."""

    kind: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class StepColumn:
    """One step as a stack of boxes."""

    title: str
    outlier: bool
    middle: float
    boxes: tuple[Box, ...]


def step_columns(device: Device) -> tuple[StepColumn, ...]:
    """The device's steps as columns whose height is the step's window."""
    steps = device.steps[:_MOST_STEPS]
    tallest = max((step.window_ns for step in steps), default=0)
    if tallest <= 0:
        return ()
    pitch = 100 / max(len(steps), _FEWEST_STEPS)
    return tuple(_column(step, index * pitch, pitch, tallest) for index, step in enumerate(steps))


def _column(step: Step, x: float, pitch: float, tallest: int) -> StepColumn:
    parts = (
        ("compute", step.ledger.compute),
        ("communication", step.ledger.communication),
        ("memory", step.ledger.memory),
        ("idle", step.ledger.idle_ns),
    )
    boxes, top = [], 100.0
    for kind, ns in parts:
        height = ns * 100 / tallest
        top -= height
        if ns > 0:
            boxes.append(Box(kind, x + pitch * 0.1, top, pitch * 0.8, height))
    flag = ", outlier" if step.outlier else ""
    idle = fmt.share(fmt.ratio(step.ledger.idle_ns, step.window_ns))
    title = f"{clean(step.name, 60)}: {fmt.duration(step.window_ns)}, idle {idle}{flag}"
    return StepColumn(title, step.outlier, x + pitch / 2, tuple(boxes))


@dataclass(frozen=True, slots=True)
class Node:
    """One module of the icicle; ``shade`` alternates so that neighbours differ."""

    path: str
    label: str
    detail: str
    depth: int
    shade: int
    x: float
    width: float


def icicle(modules: Sequence[Module], most: int) -> tuple[Node, ...]:
    """The module tree as rows of boxes, parents above children, as wide as their time; ``most`` nodes at most."""
    weight = _weight_of(modules)
    heaviest = sorted(modules, key=lambda row: (-weight[row.path], row.path))[:most]
    rows = {row.path: row for row in heaviest if weight[row.path] > 0}
    children: defaultdict[str | None, list[str]] = defaultdict(list)
    for path in sorted(rows, key=_natural):
        children[_parent(path, rows)].append(path)
    return tuple(_nodes(rows, children, weight))


def _weight_of(modules: Sequence[Module]) -> dict[str, int]:
    """Device time of each module, or host time in a recording without any."""
    on_device = any(row.forward_ns + row.backward_ns for row in modules)
    return {row.path: row.forward_ns + row.backward_ns if on_device else row.host_ns for row in modules}


def _natural(path: str) -> list[tuple[int, str]]:
    return [(int(piece[:18]), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", path[:400])]


def _parent(path: str, rows: dict[str, Module]) -> str | None:
    if not path:
        return None
    for cut in reversed(list(_SEPARATORS.finditer(path))[-64:]):
        if path[: cut.start()] in rows:
            return path[: cut.start()]
    return "" if "" in rows else None


def _nodes(rows: dict[str, Module], children: dict[str | None, list[str]], weight: dict[str, int]) -> Iterator[Node]:
    whole = sum(weight[path] for path in children.get(None, []))
    pending: list[tuple[str | None, int, float, float, int]] = [(None, 0, 0.0, 100.0, whole)]
    while pending:
        parent, depth, x, width, parent_ns = pending.pop()
        inner = children.get(parent, [])
        scale = width / max(parent_ns, sum(weight[path] for path in inner), 1)
        for index, path in enumerate(inner):
            own = weight[path] * scale
            if own >= _NARROWEST and depth < _DEEPEST:
                yield _node(rows[path], depth, index, x=x, width=own, ns=weight[path])
                pending.append((path, depth + 1, x, own, weight[path]))
            x += own


def _node(module: Module, depth: int, index: int, *, x: float, width: float, ns: int) -> Node:
    path = shorten(module.path, 80) if module.path else "(root)"
    leaf = shorten(_SEPARATORS.split(module.path)[-1] or module.class_, 32)
    detail = f"{path} · {shorten(module.class_, 48)} · {fmt.duration(ns)}"
    return Node(path, leaf, detail, depth, (depth + index) % 2, x, width)


@dataclass(frozen=True, slots=True)
class Curve:
    """Memory over time as an SVG path in a frame of 1000 by 100."""

    label: str
    peak: str
    span: str
    points: str


def curve(peak: MemoryPeak) -> Curve | None:
    """The curve of one allocator in a trace."""
    label = f"{peak.device_type} {peak.device}" if peak.device >= 0 else peak.device_type
    return memory_curve(label, peak.curve, fmt.duration)


def memory_curve(label: str, course: Sequence[tuple[int, int]], span: Callable[[int], str]) -> Curve | None:
    """The bytes held over time or events, thinned so that no peak is lost; ``span`` puts the whole length in words."""
    points = _thinned(course)
    if len(points) < 2:
        return None
    start, end = points[0][0], points[-1][0]
    highest = max(1, *(held for _, held in points))
    width = max(end - start, 1)
    drawn = (f"{(at - start) * 1000 / width:.1f},{100 - held * 100 / highest:.2f}" for at, held in points)
    return Curve(clean(label, 60), fmt.size(highest), span(end - start), " ".join(drawn))


def step_curves(runs: Sequence[RunSummary]) -> tuple[Curve, ...]:
    """The step times of each run from its first step to its last, from zero."""
    return tuple(_step_curve(run, len(runs) > 1) for run in runs if len(run.drawn_ns) > 1)


def _step_curve(run: RunSummary, several: bool) -> Curve:
    steps = run.drawn_ns
    highest, last = max(1, *steps), len(steps) - 1
    drawn = (f"{at * 1000 / last:.1f},{100 - ns * 100 / highest:.2f}" for at, ns in enumerate(steps))
    label = f"Step times of rank {run.rank}" if several else "Step times"
    return Curve(label, fmt.duration(highest), fmt.plural(run.all_steps, "step"), " ".join(drawn))


def _thinned(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """At most some hundreds of points: the lowest and highest of each bucket, in time order."""
    ordered = sorted(points)
    if len(ordered) <= _MOST_POINTS:
        return ordered
    bucket = -(-len(ordered) * 2 // _MOST_POINTS)
    kept: set[tuple[int, int]] = {ordered[0], ordered[-1]}
    for index in range(0, len(ordered), bucket):
        chunk = ordered[index : index + bucket]
        kept |= {max(chunk, key=lambda point: point[1]), min(chunk, key=lambda point: point[1])}
    return sorted(kept)
