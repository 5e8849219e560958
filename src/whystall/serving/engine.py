"""vLLM V1's scheduler over work instead of time, with the steps between two events done at once.

While requests only decode, nothing changes from one step to the next but their context: the steps until the next
arrival, end or lack of blocks are one sum. Requests that decode are therefore kept as a count, the sum of their
contexts, and the places in their last blocks; only steps that preempt look at each of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import isqrt
from typing import Final, Protocol

from whystall.serving.machine import UNIT, units
from whystall.serving.prefix_cache import PrefixCache
from whystall.serving.step_model import StepModel

__all__ = ["MOST_EVENTS", "Arrivals", "Costs", "Engine", "Request"]

_UNBOUNDED: Final = 1 << 60
MOST_EVENTS: Final = 20_000_000
"""Events after which a replay is given up: 60 for each of the 300,000 requests of the longest load that is replayed."""


class Arrivals(Protocol):
    """The client as the engine sees it."""

    first: list[tuple[int, int]]

    def ended(self, place: int, work: int) -> tuple[int, int] | None:
        """The arrival that the end of a request leads to."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The step model in whole units of work. ``pair`` is that of half a pair."""

    step: int
    token: int
    sequence: int
    context: int
    pair: int

    @classmethod
    def of(cls, model: StepModel, gap_ns: int) -> Costs:
        """The costs of a model, with the engine's own time between steps."""
        return cls(
            max(units(model.step_ns) + gap_ns * UNIT, 1),
            units(model.token_ns),
            units(model.sequence_ns),
            units(model.context_ns),
            units(model.pair_ns / 2),
        )


@dataclass(slots=True)
class Request:
    """A request under way. ``missing`` tokens must be computed before it emits.

    While it decodes, ``computed`` and ``emitted`` are those at the begin of step ``since``. ``first`` and ``last`` are
    the work done when its tokens are ready.
    """

    place: int
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    missing: int = 0
    computed: int = 0
    emitted: int = 0
    since: int = 0
    held: int = 0
    first: int = 0
    last: int = 0
    stays: int = 0


class Engine:
    """The engine: the work done, the queue, the running requests and the free blocks."""

    def __init__(
        self,
        requests: Sequence[Request],
        client: Arrivals,
        costs: Costs,
        *,
        max_num_seqs: int | None = None,
        budget: int | None = None,
        kv_blocks: int | None = None,
        block_tokens: int = 16,
        prefix_caching: bool = False,
    ) -> None:
        self.requests = requests
        self._client = client
        self._costs = costs
        self._seqs = max_num_seqs or _UNBOUNDED
        self._budget = budget or _UNBOUNDED
        self._block = block_tokens
        self._blocks = _UNBOUNDED if kv_blocks is None else kv_blocks - 1
        self._free = self._blocks
        self._cache = PrefixCache(block_tokens if prefix_caching else None)
        self._coming = list(client.first)
        heapify(self._coming)
        self._waiting: deque[Request] = deque()
        self._partial: Request | None = None
        self._decoding: dict[int, Request] = {}
        self._context = 0
        self._last_blocks = [0] * block_tokens
        self._ends: list[tuple[int, int, int]] = []
        self._finished: list[int] = []
        self._now = self._coming[0][0] if self._coming else 0
        self.steps = 0
        self.preemptions = 0
        self.most_sequences = 0
        self.most_tokens = 0
        for one in requests:
            one.missing = one.input_tokens

    def run(self) -> bool:
        """Plays all requests; ``False`` where one never gets its blocks, and after `MOST_EVENTS` events."""
        for _ in range(MOST_EVENTS):
            self._take_in()
            if not (self._decoding or self._partial or self._waiting):
                return not self._coming
            if not self._go_on():
                return False
        return False

    def _take_in(self) -> None:
        """Requests that have come, and if there is nothing to do, the next one."""
        coming = self._coming
        if coming and not (self._decoding or self._partial or self._waiting):
            self._now = max(self._now, coming[0][0])
        while coming and coming[0][0] <= self._now:
            self._waiting.append(self.requests[heappop(coming)[1]])

    def _go_on(self) -> bool:
        """Does a step, or all steps until the next event; whether one was possible."""
        rows = len(self._decoding)
        needed = self._last_blocks[-self.steps % self._block]
        if rows > self._budget or needed > self._free:
            return self._step_by_request()
        self._free -= needed
        chunk = self._chunk(self._budget - rows)
        if chunk is None:
            self._free += needed
            return self._step_by_request()
        running = rows + (self._partial is not None)
        chunk += self._admit(running, self._budget - rows - sum(tokens for _, tokens in chunk))
        if chunk:
            self._step(chunk)
            return True
        self._free += needed
        if not rows:
            return self._step_by_request()
        self._decode(self._quiet_steps(rows))
        return True

    def _chunk(self, left: int) -> list[tuple[Request, int]] | None:
        """The next part of the prompt that a budget has cut; ``None`` where it lacks blocks."""
        one = self._partial
        if one is None or not left:
            return []
        tokens = min(one.missing, left)
        if self._needs(one.computed + tokens) - one.held > self._free:
            return None
        self._take_blocks(one, tokens)
        return [(one, tokens)]

    def _take_blocks(self, one: Request, tokens: int) -> None:
        more = max(self._needs(one.computed + tokens) - one.held, 0)
        self._free -= more
        one.held += more
        self._cache.add(one.blocks, min(one.computed + tokens, one.input_tokens))

    def _admit(self, running: int, left: int) -> list[tuple[Request, int]]:
        """Takes waiting requests in, first come, first served; the head of the queue blocks the others."""
        found: list[tuple[Request, int]] = []
        while self._waiting and left and running < self._seqs:
            one = self._waiting[0]
            if one.missing == one.input_tokens + one.emitted:
                hits = self._cache.hit_tokens(one.blocks, one.input_tokens)
                one.computed = min(hits, max(one.missing - 1, 0))
                one.missing -= one.computed
            if self._needs(one.computed + one.missing) > self._free:
                break
            self._waiting.popleft()
            tokens = min(one.missing, left)
            self._take_blocks(one, tokens)
            found.append((one, tokens))
            left -= tokens
            running += 1
        return found

    def _needs(self, tokens: int) -> int:
        return -(-tokens // self._block)

    def _step(self, chunks: Sequence[tuple[Request, int]]) -> None:
        """One step of all that decode, and of these requests with their tokens."""
        rows = len(self._decoding)
        self._work(chunks, rows, self._context)
        self._context += rows
        self.steps += 1
        self._partial = None
        for one, tokens in chunks:
            one.computed += tokens
            one.missing -= tokens
            if one.missing:
                self._partial = one
            elif self._emits(one):
                self._start_decoding(one)
        self._end()

    def _work(self, chunks: Sequence[tuple[Request, int]], rows: int, context: int) -> None:
        """Adds the work of a step of some chunks beside ``rows`` requests that decode with their ``context``."""
        prompt = pairs = 0
        for one, tokens in chunks:
            if tokens > 1 or not one.emitted:  # a last token computed again is as a new one
                prompt += tokens
                pairs += tokens * (2 * one.computed + tokens)
            else:
                context += one.computed
        costs, count = self._costs, rows + len(chunks)
        self._now += costs.step + costs.token * prompt + costs.pair * pairs
        self._now += costs.sequence * count + costs.context * context
        self._note_size(count, rows + sum(tokens for _, tokens in chunks))

    def _note_size(self, sequences: int, tokens: int) -> None:
        self.most_sequences = max(self.most_sequences, sequences)
        self.most_tokens = max(self.most_tokens, tokens)

    def _emits(self, one: Request) -> bool:
        """Counts a token that is ready; whether more follow."""
        if not one.emitted:
            one.first = self._now
        one.emitted += 1
        if one.emitted < one.output_tokens:
            return True
        self._finish(one)
        return False

    def _start_decoding(self, one: Request) -> None:
        """Counts a request among those that decode from the next step on."""
        one.since = self.steps
        one.stays += 1
        self._decoding[one.place] = one
        self._context += one.computed
        self._last_blocks[(one.computed - self.steps) % self._block] += 1
        heappush(self._ends, (self.steps + one.output_tokens - one.emitted, one.place, one.stays))

    def _stop_decoding(self, one: Request) -> None:
        """Brings a request's counts up to date and takes it from those that decode."""
        del self._decoding[one.place]
        self._last_blocks[(one.computed - one.since) % self._block] -= 1
        done = self.steps - one.since
        one.computed += done
        one.emitted += done
        one.held = self._needs(one.computed)
        one.stays += 1
        self._context -= one.computed

    def _finish(self, one: Request) -> None:
        one.last = self._now
        self._free += one.held
        one.held = 0
        self._finished.append(one.place)

    def _end(self) -> None:
        """Takes out the requests whose last token is ready, and lets the client go on."""
        ends = self._ends
        while ends and ends[0][0] <= self.steps:
            _, place, stays = heappop(ends)
            one = self.requests[place]
            if one.stays == stays:
                self._stop_decoding(one)
                self._finish(one)
        for place in sorted(self._finished):
            following = self._client.ended(place, self._now)
            if following is not None:
                heappush(self._coming, following)
        self._finished.clear()

    def _quiet_steps(self, rows: int) -> int:
        """The number of steps until something else than decoding happens: at least one."""
        while self._ends[0][2] != self.requests[self._ends[0][1]].stays:
            heappop(self._ends)
        count = self._ends[0][0] - self.steps
        if self._coming and not self._waiting:
            count = min(count, self._steps_until(self._coming[0][0], rows))
        if self._free < (count // self._block + 1) * rows:
            count = min(count, self._steps_with_blocks(count, rows))
        return max(count, 1)

    def _steps_until(self, work: int, rows: int) -> int:
        """The first number of steps after which that work is done."""
        wanted = work - self._now
        growth = self._costs.context * rows
        base = self._decode_cost(rows)
        if not growth:
            return -(-wanted // base)
        # The positive root of growth/2 n^2 + (base - growth/2) n = wanted, then the whole steps around it.
        middle = 2 * base - growth
        count = max((isqrt(middle * middle + 8 * growth * wanted) - middle) // (2 * growth), 0)
        while self._decoded(count, rows) < wanted:
            count += 1
        while count > 1 and self._decoded(count - 1, rows) >= wanted:
            count -= 1
        return count

    def _decode_cost(self, rows: int) -> int:
        costs = self._costs
        return costs.step + costs.sequence * rows + costs.context * self._context

    def _decoded(self, count: int, rows: int) -> int:
        """The work of that many steps that only decode."""
        return count * self._decode_cost(rows) + self._costs.context * rows * (count * (count - 1) // 2)

    def _steps_with_blocks(self, most: int, rows: int) -> int:
        """The number of steps, up to ``most``, for which there are blocks."""
        rounds = min(most // self._block, self._free // rows)
        free, count = self._free - rounds * rows, rounds * self._block
        while count < most:
            free -= self._last_blocks[-(self.steps + count) % self._block]
            if free < 0:
                break
            count += 1
        return count

    def _decode(self, count: int) -> None:
        """That many steps in which each running request gets a token."""
        rows = len(self._decoding)
        self._now += self._decoded(count, rows)
        if self._blocks < _UNBOUNDED:
            rounds, rest = divmod(count, self._block)
            self._free -= rounds * rows
            self._free -= sum(self._last_blocks[-(self.steps + more) % self._block] for more in range(rest))
        self._context += count * rows
        self._note_size(rows, rows)
        self.steps += count
        self._end()

    def _step_by_request(self) -> bool:
        """A step that looks at each running request, since not all get a token or blocks; whether it did anything."""
        running = list(self._decoding.values())
        for one in running:
            self._stop_decoding(one)
        if self._partial is not None:
            running.append(self._partial)
            self._partial = None
        lost = self.preemptions
        scheduled = self._scheduled(running)
        if lost == self.preemptions:
            left = self._budget - sum(tokens for _, tokens in scheduled)
            admitted = self._admit(len(running), left)
            scheduled += admitted
            running += [one for one, _ in admitted]
        if scheduled:
            decoded = [one for one, _ in scheduled if not one.missing]
            chunks = [(one, tokens) for one, tokens in scheduled if one.missing]
            self._work(chunks, len(decoded), sum(one.computed for one in decoded))
            self.steps += 1
        ended = {one.place for one, tokens in scheduled if not self._computes(one, tokens)}
        for one in running:
            if one.missing:
                self._partial = one
            elif one.place not in ended:
                self._start_decoding(one)
        self._end()
        return bool(scheduled) or lost < self.preemptions

    def _computes(self, one: Request, tokens: int) -> bool:
        """Counts a request's tokens of a step; whether it goes on."""
        one.computed += tokens
        one.missing = max(one.missing - tokens, 0)
        return bool(one.missing) or self._emits(one)

    def _scheduled(self, running: list[Request]) -> list[tuple[Request, int]]:
        """The running requests of a step with their tokens; those that lose their blocks leave the list."""
        found: list[tuple[Request, int]] = []
        left = self._budget
        while len(found) < len(running) and left:
            one = running[len(found)]
            tokens = min(max(one.missing, 1), left)
            needed = self._needs(one.computed + tokens) - one.held
            while needed > self._free and len(found) < len(running):
                self._preempt(running.pop())
            if len(found) == len(running):
                break  # it was the last, and lost its own
            self._take_blocks(one, tokens)
            found.append((one, tokens))
            left -= tokens
        return found

    def _preempt(self, one: Request) -> None:
        """Takes a request's blocks, and puts it to the front of the queue with all its tokens missing."""
        self._free += one.held
        one.held = one.computed = 0
        one.missing = one.input_tokens + one.emitted
        self._waiting.appendleft(one)
        self.preemptions += 1
