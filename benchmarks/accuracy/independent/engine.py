# ruff: noqa: C901, PLR0912, PLR0915, D102 - one loop over the kinds of instructions
"""A simulator of host threads, streams, collectives and the profiler that records them.

It runs the programs of all ranks together. Nothing here knows how a trace is judged.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from .program import MAIN, Op, Prog

QUEUE = 1000


class Rank:
    """The state of one rank while it runs."""

    def __init__(self, prog: Prog, meet: dict[Any, dict[int, float]]) -> None:
        self.prog, self.code, self.meet = prog, prog.code, meet
        self.pc, self.t, self.tid = 0, 0.0, MAIN
        self.events: list[tuple[Any, ...]] = []
        self.stack: list[tuple[Any, ...]] = []
        self.ops: list[Op] = []
        self.queues: dict[int, deque[Op]] = {}
        self.free: dict[int, float] = {}
        self.last: dict[int, Op] = {}
        self.pending: dict[int, list[Op]] = {}
        self.comm: Op | None = None
        self.comms: list[Op] = []
        self.corr, self.ext, self.steps = 5000, 1, []  # type: ignore[var-annotated]
        self.marks: list[tuple[int, str]] = []

    def queue(self, op: Op, issue: float, corr: int) -> None:
        op.issue, op.corr, op.ext = issue, corr, self.stack[-1][4] if self.stack else 0
        op.deps = self.pending.pop(op.stream, [])
        op.after = self.comm
        if op.key is not None:
            self.comm = op
        self.ops.append(op)
        self.queues.setdefault(op.stream, deque()).append(op)
        self.last[op.stream] = op

    def pump(self) -> bool:
        moved = False
        for stream, queue in self.queues.items():
            while queue and self.resolve(queue[0], stream):
                queue.popleft()
                moved = True
        return moved

    def resolve(self, op: Op, stream: int) -> bool:
        start = max(op.issue, self.free.get(stream, 0.0) + 1.0)
        for dep in op.deps:
            if dep.end < 0:
                return False
            start = max(start, dep.end + 1.5)
        if op.contend > 1 and op.key is None and op.after is not None and op.after.end < 0:
            return False
        dur = op.dur
        if op.key is not None:
            meeting = self.meet.setdefault(op.key, {})
            meeting[self.prog.rank] = start
            if len(meeting) < op.members:
                return False
            op.start, op.end = start, max(meeting.values()) + dur
            self.comms.append(op)
        else:
            if op.contend > 1:
                busy = sum(max(0.0, min(c.end, start + dur) - max(c.start, start)) for c in self.comms[-6:])
                dur += min(dur, busy) * (op.contend - 1)
            op.start, op.end = start, start + dur
        self.free[stream] = op.end
        return True

    def advance(self) -> bool:
        """Run until the end or until something is awaited that is not known yet; whether anything was done."""
        begin = self.pc
        while self.pc < len(self.code):
            ins = self.code[self.pc]
            kind = ins[0]
            if kind == "cpu":
                self.t += ins[1]
            elif kind == "open":
                self.ext += 1
                self.stack.append((ins[1], ins[2], self.t, ins[3], self.ext, self.tid))
                self.t += 0.3
            elif kind == "close":
                self.t += 0.3
                self.close()
            elif kind in ("launch", "graph"):
                if len(self.ops) >= QUEUE:
                    old = self.ops[-QUEUE]
                    if old.end < 0:
                        return self.pc > begin
                else:
                    old = None
                start = self.t
                self.t += ins[3]
                if old is not None and old.start > self.t:
                    self.t = old.start
                self.corr += 1
                for op in [ins[1]] if kind == "launch" else ins[1]:
                    self.queue(op, self.t + 1.5 if kind == "launch" else start + ins[3] * 0.6, self.corr)
                self.runtime(ins[2], start, self.t - start)
            elif kind == "call":
                self.corr += 1
                self.runtime(ins[1], self.t, ins[2])
                self.t += ins[2]
            elif kind == "order":
                if ins[1] in self.last:
                    self.pending.setdefault(ins[2], []).append(self.last[ins[1]])
            elif kind == "sync":
                wanted = (
                    list(self.last.values()) if ins[2] is None else [self.last[s] for s in [ins[2]] if s in self.last]
                )
                if any(op.end < 0 for op in wanted):
                    return self.pc > begin
                start = self.t
                self.t = max([self.t + ins[3], *[op.end + 4 for op in wanted]])
                self.corr += 1
                self.runtime(ins[1], start, self.t - start)
            elif kind == "thread":
                self.tid = ins[1]
                self.t += 15
            elif kind == "turn":
                self.marks.append((len(self.ops), ins[1]))
                self.steps.append(self.t)
            elif kind == "step":
                if self.marks:
                    self.close()
                self.marks.append((len(self.ops), ins[1]))
                self.steps.append(self.t)
                self.ext += 1
                self.stack.append(("user_annotation", ins[1], self.t, {}, self.ext, MAIN))
            self.pc += 1
        return self.pc > begin

    def close(self) -> None:
        cat, name, start, args, ext, tid = self.stack.pop()
        self.events.append((cat, name, tid, start, self.t - start, args, ext))

    def runtime(self, name: str, start: float, dur: float) -> None:
        ext = self.stack[-1][4] if self.stack else 0
        self.events.append(("cuda_runtime", name, self.tid, start, dur, {"correlation": self.corr}, ext))

    def period(self, first: int, last: int) -> float:
        """Mean length of the steps first..last-1, by the ends of their work on the device and by the host."""

        def end(i: int) -> float:
            ops = self.ops[: self.marks[i][0]]
            return float(max([self.steps[i], *[o.end for o in ops[-600:]]]))

        return (end(last) - end(first)) / (last - first)


def simulate(progs: list[Prog]) -> list[Rank]:
    """Run the programs of all ranks against each other."""
    meet: dict[Any, dict[int, float]] = {}
    ranks = [Rank(p, meet) for p in progs]
    while True:
        moved = False
        for rank in ranks:
            moved |= rank.advance()
        for rank in ranks:
            moved |= rank.pump()
        if all(r.pc >= len(r.code) and not any(r.queues.values()) for r in ranks):
            return ranks
        if not moved:
            raise RuntimeError(
                f"deadlock at {[(r.pc, len(r.code), [(s, q[0].key) for s, q in r.queues.items() if q]) for r in ranks]}"
            )
