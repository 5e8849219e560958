"""Plays the recorded arrivals through vLLM V1's scheduler with the fitted step model, as it is or with other settings.

The rules are those of `v1/core/sched/scheduler.py`, 0.32, synchronous: running requests first in their order, chunks
within the budget, the last running one preempted when blocks run out, waiting ones first come, first served and only
if none was preempted, the whole prompt reserved. New requests are seen between steps.

A step has the model's usual work, and the machine the pace that it had at that moment of the recording: slow steps come
in groups, one of them feeds the queue, and another setting would have met the same slow while.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from whystall.serving.prefix_cache import PrefixCache
from whystall.serving.step_model import StepModel

__all__ = ["Load", "Pace", "Played", "Server", "play"]

_MOST_STEPS: Final = 3_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """A request to play: when it was sent, the time on its way to the scheduler, that of its first and last token back.

    ``blocks`` are its prompt's full blocks, for the prefix cache.
    """

    sent_ns: int
    front_ns: int
    first_output_ns: int
    output_ns: int
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Server:
    """The settings that are played; ``None`` is without a bound."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_blocks: int | None = None
    block_tokens: int = 16
    prefix_caching: bool = False

    def changed(
        self,
        *,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        kv_blocks: int | None = None,
        prefix_caching: bool | None = None,
    ) -> Server:
        """The same with other settings, where they are given."""
        return replace(
            self,
            max_num_seqs=max_num_seqs or self.max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens or self.max_num_batched_tokens,
            kv_blocks=kv_blocks or self.kv_blocks,
            prefix_caching=self.prefix_caching if prefix_caching is None else prefix_caching,
        )


@dataclass(frozen=True, slots=True)
class Played:
    """A replay's times of each request in nanoseconds, in the order of the load, and the number of preemptions.

    ``end_ns`` is when the last token of all came.
    """

    ttft_ns: tuple[int, ...]
    e2e_ns: tuple[int, ...]
    tpot_ns: tuple[int, ...]
    preemptions: int
    steps: int
    end_ns: int


@dataclass(slots=True)
class _Request:
    """A request under way. ``missing`` tokens must be computed before it emits."""

    index: int
    load: Load
    missing: int
    computed: int = 0
    blocks: int = 0
    emitted: int = 0
    first_ns: int = 0
    last_ns: int = 0


class Pace:
    """The machine's pace over the recording: usual work done per time, from one boundary to the next.

    Times outside of the recording go round: after its end comes its begin.
    """

    def __init__(self, boundaries_ns: Sequence[int] = (0, 1), work_ns: Sequence[float] = (1.0,)) -> None:
        self._begin = boundaries_ns[0]
        self._length = boundaries_ns[-1] - boundaries_ns[0]
        self._times = [one - self._begin for one in boundaries_ns]
        self._done = [0.0, *accumulate(work_ns)]

    @property
    def length_ns(self) -> int:
        """The length of the recording."""
        return self._length

    def end_ns(self, start_ns: int, work_ns: float, shift_ns: int = 0) -> int:
        """When work that begins at a time is done; ``shift_ns`` moves the recorded pace against the clock."""
        rounds, within = divmod(start_ns - self._begin + shift_ns, self._length)
        target = self._at(within) + work_ns
        more, rest = divmod(target, self._done[-1])
        place = max(min(bisect_right(self._done, rest), len(self._times) - 1), 1)
        work = self._done[place] - self._done[place - 1]
        part = (rest - self._done[place - 1]) / work if work else 0.0
        offset = self._times[place - 1] + part * (self._times[place] - self._times[place - 1])
        whole = (rounds + int(more)) * self._length
        return max(whole + round(offset) + self._begin - shift_ns, start_ns + 1)

    def _at(self, time: int) -> float:
        """The work done until a time of the recording."""
        place = min(bisect_right(self._times, time), len(self._times) - 1)
        span = self._times[place] - self._times[place - 1]
        part = (time - self._times[place - 1]) / span if span else 0.0
        return self._done[place - 1] + part * (self._done[place] - self._done[place - 1])


def play(
    loads: Sequence[Load],
    server: Server,
    model: StepModel,
    *,
    gap_ns: int = 0,
    pace: Pace | None = None,
    shift_ns: int = 0,
) -> Played | None:
    """The times of all requests; each step takes its work and ``gap_ns`` of the engine's, at the machine's pace.

    ``None`` where a request can never run: its prompt and output need more blocks than there are.
    """
    return _Engine(loads, server, model, gap_ns, pace or Pace(), shift_ns).run()


class _Engine:
    """The engine: its clock, the queue, the running requests and the free blocks."""

    def __init__(
        self, loads: Sequence[Load], server: Server, model: StepModel, gap_ns: int, pace: Pace, shift_ns: int
    ) -> None:
        self._server = server
        self._model = model
        self._gap_ns = gap_ns
        self._pace = pace
        self._shift_ns = shift_ns
        self._loads = loads
        order = sorted(range(len(loads)), key=lambda i: (loads[i].sent_ns + loads[i].front_ns, i))
        self._coming = deque(_Request(i, loads[i], loads[i].input_tokens) for i in order)
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []
        self._free = server.kv_blocks - 1 if server.kv_blocks is not None else None
        self._cache = PrefixCache(server.block_tokens if server.prefix_caching else None)
        self._now = 0
        self._preemptions = 0
        self._done: list[_Request | None] = [None] * len(loads)

    def run(self) -> Played | None:
        """Plays all requests."""
        largest = max((self._needs(one.input_tokens + one.output_tokens) for one in self._loads), default=0)
        if self._free is not None and largest > self._free:
            return None
        steps = 0
        while (self._coming or self._waiting or self._running) and steps < _MOST_STEPS:
            self._take_in()
            scheduled = self._schedule()
            if not scheduled:  # preempted requests make room for the next try
                if not self._waiting:
                    continue
                scheduled = self._schedule()
                if not scheduled:
                    return None
            self._now = self._pace.end_ns(self._now, self._work_ns(scheduled), self._shift_ns)
            self._emit(scheduled)
            steps += 1
        return self._result(steps)

    def _take_in(self) -> None:
        """Requests that have come, and if there is nothing to do, the next one."""
        if not self._waiting and not self._running and self._coming:
            load = self._coming[0].load
            self._now = max(self._now, load.sent_ns + load.front_ns)
        while self._coming and self._coming[0].load.sent_ns + self._coming[0].load.front_ns <= self._now:
            self._waiting.append(self._coming.popleft())

    def _schedule(self) -> list[tuple[_Request, int]]:
        """The requests of a step with their tokens."""
        budget = self._server.max_num_batched_tokens or 1 << 60
        scheduled: list[tuple[_Request, int]] = []
        preempted = self._preemptions
        place = 0
        while place < len(self._running) and budget:
            one = self._running[place]
            tokens = min(max(one.missing, 1), budget)
            if not self._allocate(one, tokens):
                break  # it preempted itself, and it was the last
            scheduled.append((one, tokens))
            budget -= tokens
            place += 1
        most = self._server.max_num_seqs or 1 << 60
        while self._waiting and budget and len(self._running) < most and preempted == self._preemptions:
            one = self._waiting[0]
            if one.missing == one.load.input_tokens + one.emitted:
                self._find_in_cache(one)
            tokens = min(one.missing, budget)
            whole = self._needs(one.computed + one.missing)
            if self._free is not None and whole > self._free:
                break
            self._waiting.popleft()
            self._running.append(one)
            self._take_blocks(one, tokens)
            scheduled.append((one, tokens))
            budget -= tokens
        return scheduled

    def _find_in_cache(self, one: _Request) -> None:
        hits = self._cache.hit_tokens(one.load.blocks, one.load.input_tokens)
        one.computed = min(hits, max(one.missing - 1, 0))
        one.missing -= one.computed

    def _needs(self, tokens: int) -> int:
        return -(-tokens // self._server.block_tokens)

    def _allocate(self, one: _Request, tokens: int) -> bool:
        """Takes the blocks that a step needs, from the last of the running where none is free."""
        needed = self._needs(one.computed + tokens) - one.blocks
        while self._free is not None and needed > self._free:
            victim = self._running.pop()
            self._free += victim.blocks
            victim.blocks = victim.computed = 0
            victim.missing = victim.load.input_tokens + victim.emitted
            self._waiting.appendleft(victim)
            self._preemptions += 1
            if victim is one:
                return False
        self._take_blocks(one, tokens)
        return True

    def _take_blocks(self, one: _Request, tokens: int) -> None:
        needed = self._needs(one.computed + tokens) - one.blocks
        if self._free is not None and needed > 0:
            self._free -= needed
            one.blocks += needed
        self._cache.add(one.load.blocks, min(one.computed + tokens, one.load.input_tokens))

    def _work_ns(self, scheduled: Sequence[tuple[_Request, int]]) -> float:
        prompt = context = 0
        pairs = 0.0
        for one, tokens in scheduled:
            if one.missing and (tokens > 1 or not one.emitted):  # a last token computed again is as a new one
                prompt += tokens
                pairs += tokens * (one.computed + tokens / 2)
            else:
                context += one.computed
        return self._model.of(prompt, len(scheduled), context, pairs) + self._gap_ns

    def _emit(self, scheduled: Sequence[tuple[_Request, int]]) -> None:
        ended = False
        for one, tokens in scheduled:
            one.computed += tokens
            one.missing = max(one.missing - tokens, 0)
            if one.missing:
                continue
            one.emitted += 1
            one.last_ns = self._now
            one.first_ns = one.first_ns or self._now
            if one.emitted >= one.load.output_tokens:
                self._done[one.index] = one
                one.blocks, freed = 0, one.blocks
                self._free = None if self._free is None else self._free + freed
                ended = True
        if ended:
            self._running = [one for one in self._running if self._done[one.index] is None]

    def _result(self, steps: int) -> Played:
        ended = [one for one in self._done if one is not None]
        first = tuple(one.first_ns - one.load.sent_ns + one.load.first_output_ns for one in ended)
        whole = tuple(one.last_ns - one.load.sent_ns + one.load.output_ns for one in ended)
        each = tuple(
            (whole[place] - first[place]) // (one.emitted - 1) for place, one in enumerate(ended) if one.emitted > 1
        )
        end = max((one.last_ns + one.load.output_ns for one in ended), default=0)
        return Played(first, whole, each, self._preemptions, steps, end)
