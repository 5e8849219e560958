"""Several ranks: one is late, or all in turn, or clocks disagree; and collectives that are slow, small or exposed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from benchmarks.accuracy.retimed.case import Base, Case, call, operator, sized, stop, time_of
from benchmarks.accuracy.retimed.host import size
from benchmarks.accuracy.retimed.replay import Change, Insert
from benchmarks.accuracy.retimed.unit import Op, Unit


def _late(drawn: random.Random, base: Base, who: Callable[[int, int], bool]) -> tuple[str, Callable[[float], Change]]:
    """How those that are late are: with slower kernels, or with more for the host to do."""
    at = stop(drawn, base.unit)
    if drawn.random() < 0.5:
        return "kernels", lambda lasts: Change(
            ops=lambda op, rank, step: 1 + lasts / base.us if who(rank, step) and not op.collective else 1.0
        )
    return "host", lambda lasts: Change((replace(at, lasts=lambda _r, _s: lasts, when=who),))


def straggler(drawn: random.Random, base: Base) -> Case | None:
    """One rank is late in every step; in some cases clocks disagree too."""
    rank = drawn.randrange(base.job.ranks)
    how, make = _late(drawn, base, lambda number, _step: number == rank)
    change, gain = sized(base, make, size(drawn), 0.3 * base.us)
    clock = _clocks(drawn, base.job.ranks) if drawn.random() < 0.5 else None
    accepted = ("device.degraded",) if how == "kernels" else ("host.python",)
    detail = f"rank {rank} of {base.job.ranks}, {how}, {'clocks skewed' if clock else 'one clock'}"
    found = Case("straggler", base, base.job, change, "communication.straggler", gain, accepted, rank, clock)
    return replace(found, detail=detail)


def rotating(drawn: random.Random, base: Base) -> Case | None:
    """Each step another rank is late: none is at fault."""
    ranks = base.job.ranks
    how, make = _late(drawn, base, lambda number, step: step % ranks == number)
    change, gain = sized(base, make, size(drawn), 0.3 * base.us)
    only = ("communication.straggler", "device.degraded", "pipeline.stage-imbalance")
    return Case("rotating", base, base.job, change, only=only, detail=f"{how}, steps {gain:.2f} times as long")


def skewed(drawn: random.Random, base: Base) -> Case | None:
    """Clocks of ranks that disagree and drift, and nothing else."""
    clock = _clocks(drawn, base.job.ranks)
    offsets = [round(clock(rank, 0.0)) for rank in range(base.job.ranks)]
    return Case("skewed", base, base.job, Change(), clock=clock, detail=f"offsets {offsets} us")


def _clocks(drawn: random.Random, ranks: int) -> Callable[[int, float], float]:
    offsets = [drawn.uniform(0, 10 ** drawn.uniform(2, 5.7)) for _ in range(ranks)]
    drifts = [drawn.uniform(-20e-6, 20e-6) for _ in range(ranks)]
    return lambda rank, at: at * (1 + drifts[rank]) + offsets[rank]


def _collectives(unit: Unit) -> list[int]:
    return [number for number, op in enumerate(unit.ops) if op.collective]


def low_bandwidth(drawn: random.Random, base: Base) -> Case | None:
    """All collectives take several times as long."""
    if not all("In msg nelems" in base.unit.ops[at].shown["args"] for at in _collectives(base.unit)):
        return None

    def make(times: float) -> Change:
        return Change(ops=lambda op, _r, _s: times if op.collective else 1.0)

    change, gain = sized(base, make, size(drawn), 6.0)
    times = change.ops(base.unit.ops[_collectives(base.unit)[0]], 0, 0)
    largest = max((base.unit.ops[at] for at in _collectives(base.unit)), key=lambda op: op.lasts)
    count = largest.shown["args"]["In msg nelems"] * 4
    detail = f"{times:.1f} times as long; the largest moves {count / largest.lasts / times / 1e3:.1f} GB/s"
    accepted = ("communication.exposed",)
    return Case("low-bandwidth", base, base.job, change, "communication.low-bandwidth", gain, accepted, detail=detail)


def exposed(drawn: random.Random, base: Base) -> Case | None:
    """Compute waits for every collective at once."""
    unit, found = base.unit, _collectives(base.unit)
    if len(found) < 2:
        return None
    main = next(op.stream for op in unit.ops if not op.collective)
    ops = list(unit.ops)
    for at in found:
        before = max((n for n in range(at) if ops[n].stream == main), default=None)
        after = next((n for n in range(at + 1, len(ops)) if ops[n].stream == main), None)
        if before is not None:
            ops[at] = replace(ops[at], after=((before, 1.0),))
        if after is not None:
            ops[after] = replace(ops[after], after=(*ops[after].after, (at, 1.0)))
    job = replace(base.job, unit=replace(unit, ops=tuple(ops)))
    times = drawn.uniform(1.0, 3.0)
    change = Change(ops=lambda op, _r, _s: times if op.collective else 1.0)
    gain = time_of(job, change) / time_of(base.job, change)
    accepted = ("communication.low-bandwidth",)
    detail = f"{len(found)} collectives of {times * sum(ops[at].lasts for at in found):.0f} us a step in all"
    return Case("exposed", base, job, change, "communication.exposed", gain, accepted, detail=detail)


def small_messages(drawn: random.Random, base: Base) -> Case | None:
    """The same bytes in very many collectives, each with its latency, at the end of the step."""
    unit, found = base.unit, _collectives(base.unit)
    if not found or "In msg nelems" not in unit.ops[found[0]].shown["args"]:
        return None
    count, latency = drawn.choice((40, 100, 200)), drawn.uniform(25.0, 120.0)
    like = unit.ops[max(found, key=lambda at: unit.ops[at].lasts)]
    args = {key: value for key, value in like.shown["args"].items() if key not in ("correlation", "External id")}
    size_of = drawn.choice((2_000, 20_000, 80_000))
    args |= {"In msg nelems": size_of, "Out msg nelems": size_of}
    known = {key: value for key, value in args.items() if "nelems" in key or "roup" in key or "ollective" in key}
    last = max(call.end for call in unit.calls if call.op in found)
    at = next((each for each in unit.free if each[0] > last + 1), unit.free[-1])
    shown = (
        operator(unit, "c10d::allreduce_"),
        operator(unit, "record_param_comms", **known, dtype="Float"),
        call(unit, "cudaLaunchKernelExC", launches=True),
    )
    op = replace(like, shown={**like.shown, "args": args}, lasts=latency, lead=3.0, gap=1.0, after=())
    inserts = tuple(
        Insert(at[0] + 1e-4 * number, lambda _r, _s: 12.0, shown, at[1], _waiting(op, unit, at[0]))
        for number in range(count)
    )
    # what comes next waits for the last of them, as an optimizer would
    job, change = base.job, Change(inserts)
    gain = time_of(job, change) / base.us
    detail = f"{count} of {4 * size_of} bytes and {latency:.0f} us each"
    accepted = ("communication.exposed",)
    found_case = Case("small-messages", base, job, change, "communication.small-messages", gain, accepted)
    return replace(found_case, detail=detail)


def _waiting(op: Op, unit: Unit, at: float) -> Op:
    """The collective after the compute that was launched before it."""
    before = [call.op for call in unit.calls if call.op >= 0 and call.end < at and not unit.ops[call.op].collective]
    return replace(op, after=((before[-1], 1.0),)) if before else op


def healthy_ranks(drawn: random.Random, base: Base) -> Case | None:
    """Ranks that do the same, with the scatter of any machine."""
    job = replace(base.job, seed=f"{base.job.seed}-{drawn.random()}", host_noise=0.03, op_noise=0.02)
    only = ("communication.straggler", "input.rank-skew", "device.degraded", "pipeline.stage-imbalance")
    return Case("healthy-ranks", base, job, Change(), only=only)
