"""Which request was in which engine step, from the server's step lines and the client's order and lengths.

A step line has four counts: requests that still compute their prompt and tokens of theirs, requests that generate and
tokens of theirs. vLLM V1 admits first come, first served, running requests before waiting ones; a chunk takes what the
budget leaves; the last of the running requests is preempted and comes back first (`v1/core/sched/scheduler.py`, 0.32).
So the counts decide who was admitted, and the number of tokens is the check.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from whystall.serving.prefix_cache import PrefixCache
from whystall.serving.records import Iterations

__all__ = ["Asked", "Chunk", "Membership", "Placed", "reconstruct"]

_WINDOW: Final = 32  # requests next in line among which a step's new ones are looked for
_NEXT: Final = 3  # requests next in line that may have found blocks of which nothing is known
_MOST_TRIES: Final = 20_000
_DEEPEST: Final = 300  # requests of one step whose order is searched: each is a call on the stack


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as the scheduler got it, in the order of arrival; ``blocks`` are its prompt's full blocks."""

    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of a request that a step computed, prompt or recomputation."""

    step: int
    tokens: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class Placed:
    """A request's steps: its chunks, the ranges of steps that each emitted a token, the ranges without it."""

    chunks: tuple[Chunk, ...]
    emits: tuple[tuple[int, int], ...]
    preempted: tuple[tuple[int, int], ...] = ()

    @property
    def first_step(self) -> int:
        """The step that admitted it."""
        return self.chunks[0].step

    @property
    def first_token_step(self) -> int:
        """The step that emitted its first token."""
        return self.emits[0][0]

    @property
    def last_step(self) -> int:
        """The step that emitted its last token."""
        return self.emits[-1][1] - 1


@dataclass(frozen=True, slots=True)
class Membership:
    """The steps of each request, ``None`` where they were not found.

    ``mismatched`` steps are those whose counts the placed requests do not give. ``by_sum`` counts the requests that the
    number of tokens placed out of their order, ``foreign`` those that are not the client's.
    """

    placed: tuple[Placed | None, ...]
    steps: int
    mismatched: int
    by_sum: int
    foreign: int

    @property
    def known(self) -> int:
        """Number of requests whose steps are known."""
        return sum(one is not None for one in self.placed)


def reconstruct(
    steps: Iterations,
    asked: Sequence[Asked],
    *,
    budget: int | None,
    may_preempt: bool,
    cache: PrefixCache | None = None,
) -> Membership:
    """The membership of requests in steps. ``asked`` stands in the order in which the engine got them."""
    return _Scheduler(asked, budget, may_preempt, cache or PrefixCache(None)).play(steps)


@dataclass(slots=True)
class _Running:
    """A request between admission and end. ``missing`` tokens are to be computed before it emits again."""

    index: int
    missing: int
    computed: int = 0
    again: bool = False
    emitted: int = 0
    since: int | None = None
    chunks: list[Chunk] = field(default_factory=list)
    emits: list[tuple[int, int]] = field(default_factory=list)
    preempted: list[tuple[int, int]] = field(default_factory=list)
    left_at: int = 0
    version: int = 0

    def compute(self, step: int, tokens: int) -> None:
        """Takes tokens of a step; the last missing one lets it emit in the same step."""
        self.missing -= tokens
        self.computed += tokens
        self.chunks.append(Chunk(step, tokens, self.again))
        if self.missing <= 0:
            self.since = step

    def stop(self, step: int) -> None:
        """Ends the current range of emitting steps before ``step``."""
        if self.since is not None:
            self.emits.append((self.since, step))
            self.emitted += step - self.since
            self.since = None
        self.version += 1

    def placed(self) -> Placed:
        """The finished request."""
        return Placed(tuple(self.chunks), tuple(self.emits), tuple(self.preempted))


class _Scheduler:
    """Plays the step lines. Work is done where a request comes, goes or is preempted, not for each that goes on."""

    def __init__(self, asked: Sequence[Asked], budget: int | None, may_preempt: bool, cache: PrefixCache) -> None:
        self._asked = asked
        self._budget = budget
        self._may_preempt = may_preempt
        self._cache = cache
        self._waiting = deque(range(len(asked)))
        self._running: list[_Running] = []
        self._partial: list[_Running] = []
        self._preempted: deque[_Running] = deque()
        self._ends: dict[int, list[tuple[_Running, int]]] = {}
        self._ghosts = 0
        self._by_sum = self._foreign = 0
        self._placed: list[Placed | None] = [None] * len(asked)
        self._lines: list[tuple[int, int, int, int]] = []

    def play(self, steps: Iterations) -> Membership:
        """The membership, and how many step lines it does not explain."""
        mismatched = 0
        columns = (steps.context_requests, steps.context_tokens, steps.generation_requests, steps.generation_tokens)
        self._lines = list(zip(*(column.tolist() for column in columns), strict=True))
        for step, line in enumerate(self._lines):
            self._finish(step)
            mismatched += not self._step(step, *line)
        self._finish(len(steps))
        return Membership(tuple(self._placed), len(steps), mismatched, self._by_sum, self._foreign)

    def _finish(self, step: int) -> None:
        """Takes those out that emitted their last token in the step before."""
        for one, version in self._ends.pop(step, ()):
            if one.version == version:
                one.stop(step)
                self._running.remove(one)
                self._placed[one.index] = one.placed()

    def _step(self, step: int, context: int, context_tokens: int, generating: int, generated: int) -> bool:
        """Plays one step line; whether the requests that are known explain its counts."""
        decoding = len(self._running) - len(self._partial)
        resuming = [one for one in self._partial if one.emitted]
        fresh = [one for one in self._partial if not one.emitted]
        for one in fresh[context:] if self._may_preempt else ():
            self._preempt(one, step)  # the last of the running, before it had emitted
            fresh.remove(one)
        extra = generating - decoding - len(resuming) - self._ghosts
        exact = True
        if extra < 0:
            exact = self._lose(step, -extra)
            decoding = len(self._running) - len(self._partial)
        elif extra > 0:
            back = self._resume(step, extra)
            resuming += back
            self._ghosts += extra - len(back)
            exact = extra == len(back)
        exact = self._share(step, resuming, generated - decoding - self._ghosts) and exact
        left = context_tokens
        if self._budget is not None:
            left = min(left, max(self._budget - generated, 0))
        for one in fresh[:context]:
            tokens = min(one.missing, left)
            left -= tokens
            self._compute(one, step, tokens)
        new = context - len(fresh)
        while new > 0 and self._preempted and not self._preempted[0].emitted:
            one = self._come_back(step)
            tokens = min(one.missing, left)
            left -= tokens
            new -= 1
            self._compute(one, step, tokens)
        if new > 0:
            exact = self._admit(step, new, left, cut=self._is_full(step)) and exact
        elif new < 0 or left:
            exact = False
        return exact

    def _is_full(self, step: int) -> bool:
        """Whether a step used all tokens that it may."""
        _, context_tokens, _, generated = self._lines[step]
        return self._budget is not None and context_tokens + generated >= self._budget

    def _goes_on(self, step: int, rest: int) -> bool:
        """Whether the step after this one may hold the ``rest`` of a prompt that this one cut."""
        if self._budget is None or step + 1 == len(self._lines):
            return True
        context, tokens, _, generated = self._lines[step + 1]
        own = min(rest, max(self._budget - generated, 0))
        return own == tokens if context == 1 else own < tokens or context == 0

    def _compute(self, one: _Running, step: int, tokens: int) -> None:
        one.compute(step, tokens)
        if not one.again:
            self._cache.add(self._asked[one.index].blocks, one.computed)
        if one.missing <= 0:
            if one in self._partial:
                self._partial.remove(one)
            last = step + max(self._asked[one.index].output_tokens - one.emitted, 1)
            self._ends.setdefault(last, []).append((one, one.version))
        elif one not in self._partial:
            self._partial.append(one)

    def _lose(self, step: int, count: int) -> bool:
        """Fewer generate than did: strangers ended, or the last of the running were preempted."""
        ended = min(count, self._ghosts)
        self._ghosts -= ended
        count -= ended
        decoding = [one for one in self._running if one.missing <= 0]
        if not self._may_preempt:
            return count == 0
        for one in reversed(decoding[-count:] if count else []):
            self._preempt(one, step)
        return count <= len(decoding)

    def _preempt(self, one: _Running, step: int) -> None:
        """Takes a request out, to the front of the queue."""
        one.stop(step)
        one.left_at = step
        self._running.remove(one)
        if one in self._partial:
            self._partial.remove(one)
        self._preempted.appendleft(one)

    def _resume(self, step: int, count: int) -> list[_Running]:
        """Requests that come back from the front of the queue, all of whose tokens are missing."""
        back: list[_Running] = []
        while self._preempted and len(back) < count and self._preempted[0].emitted:
            back.append(self._come_back(step))
        return back

    def _come_back(self, step: int) -> _Running:
        one = self._preempted.popleft()
        one.preempted.append((one.left_at, step))
        one.missing = self._asked[one.index].input_tokens + one.emitted
        one.again = True
        self._running.append(one)
        self._partial.append(one)
        return one

    def _share(self, step: int, resuming: Sequence[_Running], tokens: int) -> bool:
        """Gives those that recompute their tokens of a step; whether these are all that were counted.

        The last one may have found blocks in the cache, or be cut by the budget: then it goes on in the next step.
        """
        for place, one in enumerate(resuming):
            others = len(resuming) - place - 1
            own = max(min(one.missing, tokens - others), 1)
            tokens -= own
            if own < one.missing and not self._is_full(step):
                one.missing = own
            self._compute(one, step, own)
        return tokens == 0

    def _admit(self, step: int, count: int, tokens: int, *, cut: bool) -> bool:
        """Admits new requests whose tokens in this step add up; whether some do."""
        found = self._found(count, tokens, (lambda rest: self._goes_on(step, rest)) if cut else None)
        if found is None:
            self._foreign += count
            self._ghosts += count  # a stranger generates from the next step on
            return False
        self._by_sum += sum(place != at for at, (place, _, _) in enumerate(found))
        indices = [self._waiting[place] for place, _, _ in found]
        for place in sorted((place for place, _, _ in found), reverse=True):
            del self._waiting[place]
        for index, (_, own, missing) in zip(indices, found, strict=True):
            one = _Running(index, missing, computed=self._asked[index].input_tokens - missing)
            self._running.append(one)
            self._compute(one, step, own)
        return True

    def _found(
        self, count: int, tokens: int, goes_on: Callable[[int], bool] | None
    ) -> list[tuple[int, int, int]] | None:
        """The places in the queue of the new requests, with their tokens of this step and those that they miss."""
        window = [self._asked[self._waiting[place]] for place in range(min(len(self._waiting), count + _WINDOW))]
        missing = [one.input_tokens - self._cache.hit_tokens(one.blocks, one.input_tokens) for one in window]
        picked = _picked(missing, count, tokens, goes_on)
        if picked is not None or not self._cache.block_tokens or count > 1:
            return picked
        return next(
            (
                [(place, tokens, tokens)]
                for place, one in enumerate(window[:_NEXT])
                if 0 < tokens < one.input_tokens and (one.input_tokens - tokens) % self._cache.block_tokens == 0
            ),
            None,
        )


def _picked(
    sizes: Sequence[int], count: int, tokens: int, goes_on: Callable[[int], bool] | None
) -> list[tuple[int, int, int]] | None:
    """The first ``count`` entries, in order, whose tokens add up.

    With ``goes_on`` the last one may take what is left, if its rest may follow.
    """
    if count <= len(sizes) and sum(sizes[:count]) == tokens:
        return [(place, size, size) for place, size in enumerate(sizes[:count])]
    if not 0 < count <= _DEEPEST:
        return None
    tries = 0

    def rest(start: int, count: int, tokens: int) -> list[tuple[int, int, int]] | None:
        nonlocal tries
        for place in range(start, len(sizes) - count + 1):
            size = sizes[place]
            tries += 1
            if tries > _MOST_TRIES:
                return None
            if count == 1:
                if size == tokens or (goes_on is not None and size > tokens > 0 and goes_on(size - tokens)):
                    return [(place, tokens, size)]
            elif size < tokens and (found := rest(place + 1, count - 1, tokens - size)) is not None:
                return [(place, size, size), *found]
        return None

    return rest(0, count, tokens) if count <= len(sizes) else None
