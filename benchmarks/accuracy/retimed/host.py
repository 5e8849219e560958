"""Faults of the host, and what only looks like one."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from benchmarks.accuracy.retimed.case import HIDDEN, Base, Case, call, function, operator, places, sized, stop, time_of
from benchmarks.accuracy.retimed.replay import ALL, OWN, Change, Insert
from benchmarks.accuracy.retimed.unit import Event, Op, Unit

_PINNED = {"H": 50e3, "A": 24e3, "V": 12e3}
"""Bytes per us from pinned memory: PCIe 5, 4 and 3."""

_SYNCS = 200
"""Of more waits than so many it is their calls that cost, not the waiting."""


def size(drawn: random.Random) -> float:
    """A fault's share of a step."""
    low, high = 0.035, 1.5
    return float(low * (high / low) ** drawn.random())


def pinned_speed(unit: Unit) -> float:
    """What a copy from pinned memory moves on the device."""
    return next((speed for letter, speed in _PINNED.items() if f" {letter}" in unit.device), 24e3)


def copy(unit: Unit, kind: str, count: float, lasts: float, stream: object = None) -> Op:
    """A copy between host and device."""
    like = unit.ops[0]
    stream = like.stream if stream is None else stream
    tid = f"stream {stream}" if unit.old else stream
    shown: Event = {
        "ph": "X",
        "cat": "Memcpy" if unit.old else "gpu_memcpy",
        "name": f"Memcpy {kind}",
        "pid": like.shown["pid"],
        "tid": tid,
        "args": {
            "device": like.shown["args"].get("device", 0),
            "context": 1,
            "stream": stream,
            "bytes": int(count),
        },
    }
    return Op(shown, stream, lasts, 1.0, 1.0)


def sync(drawn: random.Random, base: Base) -> Case | None:
    """Values are read, or the host waits for all, so and so often in a step."""
    unit, bare = base.unit, drawn.random() < 0.4
    read = copy(unit, "DtoH (Device -> Pageable)", 4, 1.5)
    dense = (operator(unit, "aten::item"), operator(unit, "aten::_local_scalar_dense"))
    shown = (call(unit, "cudaDeviceSynchronize"),) if bare else (*dense, call(unit, "cudaMemcpyAsync", launches=True))

    def make(count: float) -> Change:
        at = places(random.Random(str(count)), unit, max(1, round(count)))  # noqa: S311 - to be drawn alike
        op, waits = (None, ALL) if bare else (read, OWN)
        return Change(tuple(replace(each, shown=shown, lasts=lambda _r, _s: 8.0, op=op, waits=waits) for each in at))

    change, gain = sized(base, make, size(drawn), drawn.choice((1.0, 3.0, 8.0)))
    found = Case("sync", base, base.job, change, detail=f"{len(change.inserts)} a step, {'bare' if bare else 'item'}")
    if len(change.inserts) > _SYNCS:
        return None
    if gain < HIDDEN:
        return replace(found, kind="sync-hidden")
    return replace(found, cause="host.sync", gain=gain)


def launches(drawn: random.Random, base: Base) -> Case | None:
    """Each launch takes several times as long."""
    want = size(drawn) if drawn.random() < 0.7 else 0.0
    if want:
        change, gain = sized(base, lambda times: Change(calls=lambda _r, _s: times), want, 3.0)
    else:
        change = Change(calls=lambda _r, _s: 1.8)
        gain = time_of(base.job, change) / base.us
    times = change.calls(0, 0)
    found = Case("launches", base, base.job, change, detail=f"{times:.1f} times")
    if gain < HIDDEN:
        return replace(found, kind="launches-hidden")
    return replace(found, cause="host.launch-bound", gain=gain)


def _stretch(
    base: Base, at: Insert, shown: tuple[Event, ...], when: Callable[[int, int], bool] | None = None
) -> Callable[[float], Change]:
    def make(lasts: float) -> Change:
        put = replace(at, lasts=lambda _r, _s: lasts, shown=shown)
        return Change((put if when is None else replace(put, when=when),))

    del base
    return make


def python(drawn: random.Random, base: Base) -> Case | None:
    """Python runs between operators, with a name or without."""
    named = base.modern and drawn.random() < 0.6
    shown = (function("features.py(88): build"), function("features.py(31): hashed")) if named else ()
    at = stop(drawn, base.unit)
    change, gain = sized(base, _stretch(base, at, shown), size(drawn), 0.3 * base.us)
    accepted = () if named else ("host.gc",)
    detail = f"{change.inserts[0].lasts(0, 0):.0f} us, {'named' if named else 'nameless'}"
    return Case("python", base, base.job, change, "host.python", gain, accepted, detail=detail)


def python_hidden(drawn: random.Random, base: Base) -> Case | None:
    """Python beside running kernels."""
    at = stop(drawn, base.unit)
    lasts = drawn.uniform(0.05, 0.3) * base.us
    change = _stretch(base, at, (function("metrics.py(9): update"),) if base.modern else ())(lasts)
    return _control("python-hidden", base, change, f"{lasts:.0f} us")


def _control(kind: str, base: Base, change: Change, detail: str) -> Case | None:
    gain = time_of(base.job, change) / base.us
    return Case(kind, base, base.job, change, detail=detail) if abs(gain - 1) < HIDDEN - 1 else None


def pauses(drawn: random.Random, base: Base) -> Case | None:
    """Garbage collection, as newer recordings show it, in each step or in some."""
    every, first = drawn.choice((1, 2, 3)), drawn.randrange(3)
    at = places(drawn, base.unit, 1)[0]
    make = _stretch(base, at, (function("Python GC"),), lambda _r, step: step % every == first % every)
    change, gain = sized(base, make, size(drawn), 0.3 * base.us)
    detail = f"{change.inserts[0].lasts(0, 0):.0f} us every {every}"
    return Case("gc", base, base.job, change, "host.gc", gain, detail=detail) if base.modern else None


def allocator(drawn: random.Random, base: Base) -> Case | None:
    """Device memory is allocated in some steps only."""
    every, count, unit = drawn.choice((1, 2, 3)), drawn.choice((2, 4, 12)), base.unit
    names = drawn.choice((("cudaMalloc",), ("cudaMalloc", "cudaFree")))
    at = places(drawn, unit, count)

    def make(lasts: float) -> Change:
        return Change(
            tuple(
                replace(
                    each,
                    lasts=lambda _r, _s: lasts / len(at),
                    shown=(call(unit, names[number % len(names)]),),
                    waits=ALL if names[number % len(names)] == "cudaFree" else "",
                    when=lambda _r, step: step % every == 0,
                )
                for number, each in enumerate(at)
            )
        )

    change, gain = sized(base, make, size(drawn), 0.3 * base.us)
    detail = f"{len(at)} of {change.inserts[0].lasts(0, 0):.0f} us every {every}, {names}"
    accepted = ("memory.allocator-retry",)
    return Case("allocator", base, base.job, change, "host.allocator", gain, accepted, detail=detail)


def checkpoint(drawn: random.Random, base: Base) -> Case | None:
    """Every so many steps the state is copied to the host and written."""
    every, unit = drawn.choice((2, 3)), base.unit
    named = drawn.choice(("annotation", "function") if base.modern else ("annotation", "nameless"))
    name = {"annotation": {"cat": "user_annotation", "name": "save_checkpoint"}}
    shown = () if named == "nameless" else (name.get(named) or function("torch/serialization.py(944): save"),)
    at = stop(drawn, unit).at
    copies = [
        Insert(
            at - 1e-3 + 1e-4 * number,
            lambda _r, _s: 6.0,
            (operator(unit, "aten::copy_"), call(unit, "cudaMemcpyAsync", launches=True)),
            op=copy(unit, "DtoH (Device -> Pageable)", 4_000_000, 4e6 / 4e3),
            waits=OWN,
            when=lambda _r, step: step % every == 1,
        )
        for number in range(8)
    ]

    def make(lasts: float) -> Change:
        rest = Insert(at, lambda _r, _s: lasts, shown, when=lambda _r, step: step % every == 1, covers=len(copies))
        return Change((*copies, rest))

    change, gain = sized(base, make, max(0.1, size(drawn)), 0.6 * base.us)
    accepted = ("episodic.logging",) if named == "nameless" else ()
    detail = f"{change.inserts[-1].lasts(0, 0):.0f} us every {every}, {named}, 8 copies of 1 ms"
    return Case("checkpoint", base, base.job, change, "episodic.checkpoint", gain, accepted, detail=detail)


def logging(drawn: random.Random, base: Base) -> Case | None:
    """Something holds up every so many steps, with a name or without."""
    every, named = drawn.choice((2, 3)), base.modern and drawn.random() < 0.5
    shown = (function("logging/__init__.py(1477): info"), function("logging/__init__.py(1086): flush")) if named else ()
    at = stop(drawn, base.unit)
    make = _stretch(base, at, shown, lambda _r, step: step % every == 1)
    change, gain = sized(base, make, size(drawn), 0.6 * base.us)
    accepted = () if named else ("host.gc", "host.python", "episodic.checkpoint")
    detail = f"{change.inserts[0].lasts(0, 0):.0f} us every {every}, {'named' if named else 'nameless'}"
    return Case("logging", base, base.job, change, "episodic.logging", gain, accepted, detail=detail)


def pageable(drawn: random.Random, base: Base) -> Case | None:
    """A batch is copied from pageable memory on the compute stream."""
    unit, speed = base.unit, drawn.uniform(2e3, 6e3)
    if any("HtoD (Pageable" in str(op.shown["name"]) for op in unit.ops):
        return None  # what curing all of them is worth is not what was put in
    at = places(drawn, unit, 50)[0]
    shown = (operator(unit, "aten::copy_"), call(unit, "cudaMemcpyAsync", launches=True))

    def make(lasts: float, *, good: bool = False) -> Change:
        kind, moves = ("Pinned", pinned_speed(unit)) if good else ("Pageable", speed)
        op = copy(unit, f"HtoD ({kind} -> Device)", lasts * speed, lasts * speed / moves)
        return Change((replace(at, lasts=lambda _r, _s: 6.0, shown=shown, op=op, waits="" if good else OWN),))

    change, _ = sized(base, make, size(drawn), 0.3 * base.us)
    op = change.inserts[0].op
    lasts = op.lasts if op else 0.0
    gain = time_of(base.job, change) / time_of(base.job, make(lasts, good=True))
    detail = f"{lasts * speed / 1e6:.1f} MB at {speed / 1e3:.1f} GB/s, {lasts:.0f} us"
    return Case("pageable", base, base.job, change, "host.pageable-copy", gain, detail=detail)


def copy_hidden(drawn: random.Random, base: Base) -> Case | None:
    """A prefetcher's copy on a stream of its own, with a wait for it, while the device has enough to do."""
    unit, kind = base.unit, drawn.choice(("Pinned", "Pageable"))
    lasts, waits = drawn.uniform(0.03, 0.2) * base.us, drawn.random() < 0.5 or kind == "Pageable"
    op = copy(unit, f"HtoD ({kind} -> Device)", lasts * (3e3 if kind == "Pageable" else pinned_speed(unit)), lasts, 77)
    shown = (operator(unit, "aten::copy_"), call(unit, "cudaMemcpyAsync", launches=True))
    at = replace(places(drawn, unit, 1)[0], lasts=lambda _r, _s: 6.0, shown=shown, op=op)
    change = Change((replace(at, waits=OWN if kind == "Pageable" else ""),))
    if waits and kind == "Pinned":
        wait = replace(at, at=at.at + 0.01, shown=(call(unit, "cudaStreamSynchronize"),), op=None)
        change = Change((at, replace(wait, lasts=lambda _r, _s: lasts)))
    return _control(
        "copy-hidden", base, change, f"{lasts:.0f} us {kind}, {'waited for' if waits else 'not waited for'}"
    )


def start_up(drawn: random.Random, base: Base) -> Case | None:
    """Context, libraries and first launches, in front of the first step or within it."""
    unit, total = base.unit, drawn.uniform(3, 200) * base.us
    pid, tid = unit.main
    parts = [("cudaFree", 0.5), ("cudaModuleLoadData", 0.2), ("cudaMalloc", 0.05), ("cudaLaunchKernel", 0.2)]
    if drawn.random() < 0.5:
        first = places(drawn, unit, 40)[0]
        inserts = tuple(
            replace(
                first,
                at=first.at + 1e-4 * number,
                lasts=lambda _r, _s, lasts=total * share: lasts,  # type: ignore[misc]
                shown=(call(unit, name),),
                when=lambda _r, step: step == 0,
            )
            for number, (name, share) in enumerate(parts)
        )
        return Case("start-up-inside", base, base.job, Change(inserts), detail=f"{total:.0f} us in the first step")
    prefix, at = [], -total - 200.0
    for name, share in parts:
        event = {**call(unit, name), "ph": "X", "pid": pid, "tid": tid, "ts": at, "dur": share * total}
        prefix.append({key: value for key, value in event.items() if key != "launches"})
        at += share * total
    return Case("start-up", base, base.job, Change(), prefix=tuple(prefix), detail=f"{total:.0f} us in front")
