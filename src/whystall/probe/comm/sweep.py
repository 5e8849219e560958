"""One process's part of a sweep: calls every collective at every size, and gathers the times of all ranks."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from whystall.probe.comm.plan import ELEMENT_BYTES, Plan, elements, uneven
from whystall.probe.comm.results import Collective, Measured, NotMeasured, measured

FEWEST: Final = 5
MOST: Final = 200
_WARM_UPS: Final = 2
_NOT_THERE: Final = re.compile(r"not support|unsupported|not implemented|does not have|no backend", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a job, and its means of measurement. ``at`` receives the next task.

    ``members`` are the ranks of its own ``group`` (``None``: of all).
    """

    torch: Any
    dist: Any
    device: Any
    rank: int
    ranks: int
    at: Callable[[str], None]
    members: Sequence[int]
    group: Any


def sweep(member: Member, plan: Plan) -> Iterator[Measured | NotMeasured]:
    """Every kind and size in turn; all ranks must do the same. Raises torch's errors where a peer is lost."""
    for kind in plan.collectives:
        for size in plan.sizes:
            member.at(f"{kind} {size}")
            try:
                call, n_bytes = _call(member, kind, size)
                call()
            except (RuntimeError, NotImplementedError) as error:
                if not _NOT_THERE.search(str(error)):
                    raise
                yield NotMeasured(collective=kind, because=(str(error).splitlines() or ["no reason"])[0][:200])
                break
            yield measured(kind, n_bytes, _times(member, call, plan.seconds), len(member.members))
    member.at("the end")
    member.dist.barrier()


def _call(member: Member, kind: Collective, size: int) -> tuple[Callable[[], object], int]:
    """One call of a collective on buffers of its own, and its S in bytes."""
    torch, dist, ranks, group = member.torch, member.dist, len(member.members), member.group
    count, root = elements(kind, size, ranks), member.members[0]
    whole = torch.ones(count, dtype=torch.float32, device=member.device)
    part = torch.ones(count // ranks or 1, dtype=torch.float32, device=member.device)
    other = torch.empty_like(whole)
    # The root alone has them all.
    parts = list(whole.chunk(ranks)) if kind in ("gather", "scatter") and member.rank == root else None
    # torch 2.13 gave these their new names, and warns of the old ones.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    calls: dict[Collective, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: gather(whole, part, group=group),
        "reduce_scatter": lambda: scatter(part, whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
        "all_to_all_v": _unevenly(member, whole),
        "broadcast": lambda: dist.broadcast(whole, src=root, group=group),
        "reduce": lambda: dist.reduce(whole, dst=root, group=group),
        "gather": lambda: dist.gather(part, parts, dst=root, group=group),
        "scatter": lambda: dist.scatter(part, parts, src=root, group=group),
        "send_recv": lambda: _round(member, whole, other),
    }
    return calls[kind], count * ELEMENT_BYTES


def _unevenly(member: Member, whole: Any) -> Callable[[], object]:
    """Every rank sends all it has, most of it to the last."""
    ranks = len(member.members)
    sent = uneven(len(whole), ranks)
    got = [sent[member.members.index(member.rank)]] * ranks
    room = member.torch.empty(sum(got), dtype=whole.dtype, device=member.device)
    return lambda: member.dist.all_to_all_single(room, whole, got, sent, group=member.group)


def _round(member: Member, given: Any, got: Any) -> None:
    """Every rank sends to the next and receives from the one before, as nccl-tests' sendrecv does."""
    dist, own, group = member.dist, member.members, member.group
    place = own.index(member.rank)
    after, before = own[(place + 1) % len(own)], own[place - 1]
    both = [dist.P2POp(dist.isend, given, after, group), dist.P2POp(dist.irecv, got, before, group)]
    for one in dist.batch_isend_irecv(both):
        one.wait()


def _times(member: Member, call: Callable[[], object], seconds: float) -> list[list[int]]:
    """The times of all ranks in nanoseconds, of shape (ranks, iterations), after calls that warm up."""
    torch, dist = member.torch, member.dist
    for _ in range(_WARM_UPS - 1):
        call()
    dist.barrier()
    longest = torch.tensor(min(_timed(member, call, 3)), dtype=torch.int64, device=member.device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    iterations = min(max(int(seconds * 1e9 / max(int(longest), 1)), FEWEST), MOST)
    dist.barrier()
    own = torch.tensor(_timed(member, call, iterations), dtype=torch.int64, device=member.device)
    every = [torch.zeros_like(own) for _ in range(member.ranks)]
    dist.all_gather(every, own)
    return [[max(int(value), 1) for value in one.tolist()] for one in every]


def _timed(member: Member, call: Callable[[], object], iterations: int) -> list[int]:
    """How long each of some calls in a row takes this process: on the host's clock, or between events of the GPU."""
    if member.device.type == "cuda":
        cuda = member.torch.cuda
        events = [cuda.Event(enable_timing=True) for _ in range(iterations + 1)]
        events[0].record()
        for event in events[1:]:
            call()
            event.record()
        cuda.synchronize(member.device)
        return [round(before.elapsed_time(after) * 1e6) for before, after in pairwise(events)]
    out = []
    for _ in range(iterations):
        start = time.perf_counter_ns()
        call()
        out.append(time.perf_counter_ns() - start)
    return out
