"""The replay's scheduler step by step and request by request, as plain as can be: the oracle of the fast one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from whystall.serving.engine import Costs
from whystall.serving.machine import STEADY, Machine
from whystall.serving.prefix_cache import PrefixCache
from whystall.serving.replay import Load, Server
from whystall.serving.step_model import StepModel


@dataclass
class Slow:
    """A request under way."""

    place: int
    load: Load
    missing: int
    computed: int = 0
    blocks: int = 0
    emitted: int = 0
    first: int = 0
    last: int = 0
    sent: int = 0

    @property
    def output(self) -> int:
        return max(self.load.output_tokens, 1)


@dataclass
class SlowReplay:
    """The loop over all steps; times are work."""

    loads: Sequence[Load]
    server: Server
    costs: Costs
    machine: Machine
    steps: int = 0
    preemptions: int = 0
    most_sequences: int = 0
    most_tokens: int = 0
    now: int = 0

    def run(self) -> bool:
        """Plays all; whether each request could run."""
        if not self.prepare():
            return False
        while self.coming or self.waiting or self.running:
            if not self.waiting and not self.running:
                self.now = max(self.now, min(self.coming)[0])
            for came in sorted(self.coming):
                if came[0] <= self.now:
                    self.coming.remove(came)
                    self.waiting.append(self.all[came[1]])
            before = self.preemptions
            plan = self.schedule()
            if plan:
                self.now += self.work(plan)
                self.steps += 1
                self.most_sequences = max(self.most_sequences, len(plan))
                self.most_tokens = max(self.most_tokens, sum(tokens for _, tokens in plan))
                self.emit(plan)
            elif before == self.preemptions:
                return False
        return True

    def prepare(self) -> bool:
        """The state before the first step, and whether each request has blocks enough."""
        server = self.server
        self.all = [Slow(place, one, one.input_tokens, sent=one.sent_ns) for place, one in enumerate(self.loads)]
        self.waiting: deque[Slow] = deque()
        self.running: list[Slow] = []
        self.free = None if server.kv_blocks is None else server.kv_blocks - 1
        self.cache = PrefixCache(server.block_tokens if server.prefix_caching else None)
        self.coming: list[tuple[int, int]] = []
        self.held_back: list[Slow] = []
        if server.max_concurrency is None:
            for one in self.all:
                self.send(one, one.sent)
        else:
            due = sorted(self.all, key=lambda one: (self.due(one), one.sent, one.place))
            self.held_back = due[server.max_concurrency :]
            for one in due[: server.max_concurrency]:
                self.send(one, self.due(one))
        self.now = min(self.coming)[0] if self.coming else 0
        return self.free is None or all(self.needs(one.load.input_tokens + one.output) <= self.free for one in self.all)

    def due(self, one: Slow) -> int:
        return one.load.sent_ns if one.load.due_ns is None else one.load.due_ns

    def send(self, one: Slow, at: int) -> None:
        one.sent = at
        self.coming.append((self.machine.work_at(at + one.load.front_ns), one.place))

    def needs(self, tokens: int) -> int:
        return -(-tokens // self.server.block_tokens)

    def schedule(self) -> list[tuple[Slow, int]]:
        budget = self.server.max_num_batched_tokens or 1 << 60
        plan: list[tuple[Slow, int]] = []
        lost = self.preemptions
        place = 0
        while place < len(self.running) and budget:
            one = self.running[place]
            tokens = min(max(one.missing, 1), budget)
            needed = self.needs(one.computed + tokens) - one.blocks
            while self.free is not None and needed > self.free and one in self.running:
                self.preempt(self.running.pop())
            if one not in self.running:
                break
            self.take(one, tokens)
            plan.append((one, tokens))
            budget -= tokens
            place += 1
        most = self.server.max_num_seqs or 1 << 60
        while self.waiting and budget and len(self.running) < most and lost == self.preemptions:
            one = self.waiting[0]
            if one.missing == one.load.input_tokens + one.emitted:
                hits = self.cache.hit_tokens(one.load.blocks, one.load.input_tokens)
                one.computed = min(hits, max(one.missing - 1, 0))
                one.missing -= one.computed
            if self.free is not None and self.needs(one.computed + one.missing) > self.free:
                break
            tokens = min(one.missing, budget)
            self.running.append(self.waiting.popleft())
            self.take(one, tokens)
            plan.append((one, tokens))
            budget -= tokens
        return plan

    def preempt(self, victim: Slow) -> None:
        assert self.free is not None
        self.free += victim.blocks
        victim.blocks = victim.computed = 0
        victim.missing = victim.load.input_tokens + victim.emitted
        self.waiting.appendleft(victim)
        self.preemptions += 1

    def take(self, one: Slow, tokens: int) -> None:
        needed = self.needs(one.computed + tokens) - one.blocks
        if self.free is not None and needed > 0:
            self.free -= needed
            one.blocks += needed
        self.cache.add(one.load.blocks, min(one.computed + tokens, one.load.input_tokens))

    def work(self, plan: Sequence[tuple[Slow, int]]) -> int:
        costs = self.costs
        found = costs.step
        for one, tokens in plan:
            found += costs.sequence
            if one.missing and (tokens > 1 or not one.emitted):
                found += costs.token * tokens + costs.pair * tokens * (2 * one.computed + tokens)
            else:
                found += costs.context * one.computed
        return found

    def emit(self, plan: Sequence[tuple[Slow, int]]) -> None:
        ended = []
        for one, tokens in plan:
            one.computed += tokens
            one.missing = max(one.missing - tokens, 0)
            if one.missing:
                continue
            if not one.emitted:
                one.first = self.now
            one.emitted += 1
            if one.emitted >= one.output:
                one.last = self.now
                ended.append(one)
                self.running = [other for other in self.running if other is not one]
                if self.free is not None:
                    self.free += one.blocks
        for one in sorted(ended, key=lambda one: one.place):
            if self.held_back:
                following = self.held_back.pop(0)
                self.send(following, max(self.due(following), self.back(one.last, one.load.output_ns)))

    def back(self, work: int, own: int) -> int:
        return self.machine.delivered(self.machine.time_at(work)) + own

    def times(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Times to first token, of the whole request, and per further output token where there are several."""
        whole = [self.back(one.last, one.load.output_ns) - one.sent for one in self.all]
        late = [self.back(one.first, one.load.first_output_ns) - one.sent for one in self.all]
        first = [min(pair) for pair in zip(late, whole, strict=True)]
        each = [
            (end - begin) // (one.output - 1)
            for one, begin, end in zip(self.all, first, whole, strict=True)
            if one.output > 1
        ]
        return tuple(first), tuple(whole), tuple(each)

    def counts(self) -> tuple[int, int, int, int]:
        """Steps, preemptions, and the sizes of the largest step: sequences and tokens."""
        return self.steps, self.preemptions, self.most_sequences, self.most_tokens


def play_slowly(
    loads: Sequence[Load], server: Server, model: StepModel, *, gap_ns: int = 0, machine: Machine = STEADY
) -> SlowReplay | None:
    """The replay after its last step; ``None`` where a request can never run."""
    found = SlowReplay(loads, server, Costs.of(model, gap_ns), machine)
    return found if found.run() else None
