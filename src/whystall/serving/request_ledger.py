"""Each request's time from its intended send to its last token, in parts that add up exactly.

Three grades of sources: the engine's step lines give own and others' steps, spans give the server's own phases, the
client alone gives two residuals. A request gets the finest that its sources allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from whystall.serving.membership import Placed
from whystall.serving.parts import Part
from whystall.serving.records import ClientRequest, Ints, Iterations, ServerRequest, Settings
from whystall.serving.step_model import StepModel, prompt_tokens, sequences
from whystall.serving.timeline import Timeline

__all__ = ["Engine", "RequestLedger", "ledger_of", "middle", "way_in_ns"]

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RequestLedger:
    """A request's parts in nanoseconds. Their sum is ``total_ns``: lateness, the client's gate and its E2E latency."""

    index: int
    total_ns: int
    ttft_ns: int
    input_tokens: int
    output_tokens: int
    parts: Mapping[Part, int]
    preemptions: int = 0

    @property
    def server_ns(self) -> int:
        """The client's E2E latency: without lateness and gate."""
        return self.total_ns - self.of(Part.LATE_SEND, Part.CLIENT_GATE)

    def of(self, *parts: Part) -> int:
        """The sum of some parts."""
        return sum(self.parts.get(part, 0) for part in parts)


class Engine:
    """The engine's steps prepared for many requests: sums up to each step of what a request may have spent there."""

    def __init__(
        self,
        steps: Iterations,
        timeline: Timeline,
        model: StepModel | None,
        settings: Settings,
        placed: Sequence[Placed | None] = (),
    ) -> None:
        """Takes the placed requests, of which the steps that admit are known."""
        self.timeline = timeline
        self.elapsed_ns = steps.elapsed_ns
        self.prompt_tokens = prompt_tokens(steps).astype(np.int64)
        self.prefill_ns = _prefill_ns(steps, model)
        gaps = np.zeros(len(steps), dtype=np.int64)
        gaps[1:] = timeline.start_ns[1:] - timeline.end_ns[:-1]
        self._gaps = _sums(gaps)
        self._elapsed = _sums(steps.elapsed_ns)
        self._prefill = _sums(self.prefill_ns)
        self._steps = steps
        self._settings = settings
        self._preempted = _preempted(len(steps), placed)
        self._ahead = _ahead(placed)
        self._longest = _longest(placed)

    def steps_ns(self, first: int, end: int) -> tuple[int, int, int]:
        """Decode, prefill and gaps in a range of steps; the gap before the first step belongs to it."""
        prefill = int(self._prefill[end] - self._prefill[first])
        return (
            int(self._elapsed[end] - self._elapsed[first]) - prefill,
            prefill,
            int(self._gaps[end] - self._gaps[first]),
        )

    def others_prefill_ns(self, placed: Placed, counted: Flags) -> int:
        """The time of others' prompts in those of a request's steps that are ``counted``."""
        own = {chunk.step: chunk.tokens for chunk in placed.chunks}
        found = sum(self.shared_ns(step, tokens) for step, tokens in own.items() if counted[step])
        for first, end in placed.emits:
            begin = first + (first in own)
            found += int(self.prefill_ns[begin:end][counted[begin:end]].sum())
        return found

    def shared_ns(self, step: int, tokens: int) -> int:
        """The part of a step's prefill time that belongs to others, beside ``tokens`` of a request."""
        others = max(int(self.prompt_tokens[step]) - tokens, 0)
        return int(self.prefill_ns[step]) * others // max(others + tokens, 1)

    def arrival_step(self, sent_ns: int, first_step: int) -> int | None:
        """The last step before a request's own that began after it was sent and had room for it.

        It was not in that step, so it came to the scheduler later. No step before the admission of the request ahead
        says so: first come, first served, and of those admitted together the largest may have been the first in line.
        ``None`` where there is no such step.
        """
        begin = max(int(np.searchsorted(self.timeline.start_ns, sent_ns)), self._ahead.get(first_step, 0))
        if begin >= first_step:
            return None
        free = np.flatnonzero(self._has_room(begin, first_step, self._longest[first_step]))
        return None if not len(free) else begin + int(free[-1])

    def _has_room(self, begin: int, end: int, prompt: int) -> Flags:
        """Whether each step of a range would have admitted one more request, had it been there.

        It needs a place, tokens of the budget and blocks for its whole prompt, beside one for each request that runs.
        While a preempted request waits, it stands in front. A step line gives the use of the cache after the step has
        freed its blocks, so that the line before counts, too.
        """
        steps, settings = self._steps, self._settings
        requests = steps.context_requests[begin:end] + steps.generation_requests[begin:end]
        room: Flags = self._preempted[begin:end] == 0
        if settings.max_num_seqs is not None:
            room &= requests < settings.max_num_seqs
        if settings.max_num_batched_tokens is not None:
            tokens = steps.context_tokens[begin:end] + steps.generation_tokens[begin:end]
            room &= tokens < settings.max_num_batched_tokens
        if settings.kv_blocks is not None and settings.block_tokens:
            needed = -(-prompt // settings.block_tokens) + requests
            prompts = steps.context_requests[begin:end] - (-steps.context_tokens[begin:end] // settings.block_tokens)
            blocks = settings.kv_blocks - 1  # one is kept empty
            now, before = steps.kv_permille[begin:end], np.roll(steps.kv_permille, 1)[begin:end]
            used = np.maximum((now * blocks + 500) // 1000, (before * blocks + 500) // 1000 + prompts)
            room &= (now < 0) | (blocks - used >= needed)
        return room


def ledger_of(
    index: int,
    request: ClientRequest,
    *,
    placed: Placed | None = None,
    span: ServerRequest | None = None,
    engine: Engine | None = None,
) -> RequestLedger:
    """The ledger of one request from the sources that there are for it."""
    late, gate = max(request.late_ns or 0, 0), max(request.gate_ns or 0, 0)
    if engine is not None and placed is not None and request.sent_ns is not None:
        inside = _by_steps(request, request.sent_ns, placed, span, engine)
    elif span is not None:
        inside = _by_span(request, span)
    else:
        inside = _by_client(request)
    parts: dict[Part, int] = {Part.LATE_SEND: late, Part.CLIENT_GATE: gate, **inside}
    return RequestLedger(
        index,
        late + gate + request.latency_ns,
        request.ttft_ns,
        request.input_tokens,
        request.output_tokens,
        {part: parts[part] for part in Part if parts.get(part)},
        0 if placed is None else len(placed.preempted),
    )


def _by_client(request: ClientRequest) -> dict[Part, int]:
    first = min(max(request.ttft_ns, 0), request.latency_ns)
    return {Part.BEFORE_FIRST_TOKEN: first, Part.AFTER_FIRST_TOKEN: request.latency_ns - first}


def _by_span(request: ClientRequest, span: ServerRequest) -> dict[Part, int]:
    phases = _Phases(request.latency_ns)
    return {
        Part.QUEUE: phases.take(span.queue_ns),
        Part.PREFILL: phases.take(span.prefill_ns),
        Part.GENERATION: phases.take(span.inference_ns - span.prefill_ns),
        Part.FRONT_AND_STEP_WAIT: phases.take(span.e2e_ns - span.queue_ns - span.inference_ns),
        Part.HTTP: phases.left_ns,
    }


@dataclass(slots=True)
class _Phases:
    """Time that is handed out in pieces, none larger than what is left: clocks of two processes may disagree."""

    left_ns: int

    def take(self, wanted_ns: int) -> int:
        """A piece of the wanted size, or all that is left."""
        taken = min(max(wanted_ns, 0), self.left_ns)
        self.left_ns -= taken
        return taken


def _by_steps(
    request: ClientRequest, sent_ns: int, placed: Placed, span: ServerRequest | None, engine: Engine
) -> dict[Part, int]:
    """The interval from sending to the last token, cut at the first own step and at the end of the last one."""
    last_ns = sent_ns + request.latency_ns
    start = min(max(int(engine.timeline.start_ns[placed.first_step]), sent_ns), last_ns)
    end = min(max(int(engine.timeline.end_ns[placed.last_step]), start), last_ns)
    parts = _own_steps(placed, engine, end - start)
    before = _before(sent_ns, start, placed, engine)
    if span is None:
        return _added(parts, before, {Part.OUTPUT: last_ns - end})
    inference = max(min(span.inference_ns, request.latency_ns), 0)
    return _added(_with_gap(parts, inference), _outside(request.latency_ns - inference, before, span))


def _own_steps(placed: Placed, engine: Engine, whole_ns: int) -> dict[Part, int]:
    """The time between the begin of the first own step and the end of the last, which is ``whole_ns`` long."""
    found: dict[Part, int] = dict.fromkeys((Part.OWN_PREFILL, Part.RECOMPUTE, Part.OTHERS_PREFILL, Part.DECODE), 0)
    computing = set()
    for chunk in placed.chunks:
        computing.add(chunk.step)
        shared = engine.shared_ns(chunk.step, chunk.tokens)
        own = int(engine.elapsed_ns[chunk.step]) - shared
        found[Part.RECOMPUTE if chunk.again else Part.OWN_PREFILL] += own
        found[Part.OTHERS_PREFILL] += shared
    for first, end in placed.emits:
        decode, prefill, _ = engine.steps_ns(first + (first in computing), end)
        found[Part.DECODE] += decode
        found[Part.OTHERS_PREFILL] += prefill
    found[Part.PREEMPTED] = sum(_between(engine, left, back) for left, back in placed.preempted)
    phases = _Phases(whole_ns)
    kept: dict[Part, int] = {part: phases.take(found[part]) for part in found}
    kept[Part.ENGINE_GAP] = phases.left_ns
    return kept


def _between(engine: Engine, left: int, back: int) -> int:
    """From the end of the last step before a preemption to the begin of the step that resumed."""
    return int(engine.timeline.start_ns[back] - engine.timeline.end_ns[left - 1])


def _before(sent_ns: int, start: int, placed: Placed, engine: Engine) -> dict[Part, int]:
    """The time from sending to the first own step: HTTP and front, the running step, the queue, the gap before it."""
    times, first = engine.timeline, placed.first_step
    spare = engine.arrival_step(sent_ns, first)
    arrived = sent_ns if spare is None else min(max(int(times.start_ns[spare]), sent_ns), start)
    running = int(np.searchsorted(times.end_ns, arrived, side="right")) if spare is None else spare
    is_running = running < first and int(times.start_ns[running]) <= arrived
    seen = min(max(int(times.end_ns[running]), arrived), start) if is_running else arrived
    left = start - seen
    waits = running + is_running < first
    # If no step passed, the request was on its way, but for the usual time between two steps.
    gap = 0 if waits else min(left, times.usual_gap_ns)
    return {
        Part.HTTP_AND_FRONT: arrived - sent_ns + (0 if waits else left - gap),
        Part.STEP_WAIT: seen - arrived,
        Part.QUEUE: left if waits else 0,
        Part.ENGINE_GAP: gap,
    }


def way_in_ns(sent_ns: int, placed: Placed, engine: Engine, span: ServerRequest | None) -> int:
    """The time from a request's sending until it waits for the scheduler, by the steps, or in a queue by its span."""
    times, first = engine.timeline, placed.first_step
    start = max(int(times.start_ns[first]), sent_ns)
    if span is None or span.queue_ns <= times.usual_gap_ns:
        return _before(sent_ns, start, placed, engine)[Part.HTTP_AND_FRONT]
    seen = start - span.queue_ns
    step = int(np.searchsorted(times.end_ns, seen, side="right")) - 1
    if step >= 0 and seen - int(times.end_ns[step]) <= max(times.usual_gap_ns, int(engine.elapsed_ns[step])):
        seen = int(times.start_ns[step] + times.end_ns[step]) // 2  # it came at some time of the step before
    return max(seen - sent_ns, 0)


def _with_gap(parts: Mapping[Part, int], inference_ns: int) -> dict[Part, int]:
    """The parts of own steps, with the server's own time of them as their sum."""
    phases = _Phases(inference_ns)
    kept: dict[Part, int] = {one: phases.take(value) for one, value in parts.items() if one is not Part.ENGINE_GAP}
    kept[Part.ENGINE_GAP] = phases.left_ns
    return kept


def _outside(whole_ns: int, before: Mapping[Part, int], span: ServerRequest) -> dict[Part, int]:
    """The time outside of own steps by the server's clocks; the running step's part is bounded by its front."""
    phases = _Phases(whole_ns)
    queue = phases.take(span.queue_ns)
    front = phases.take(span.e2e_ns - span.queue_ns - span.inference_ns)
    wait = min(before[Part.STEP_WAIT], front)
    return {Part.QUEUE: queue, Part.STEP_WAIT: wait, Part.FRONT: front - wait, Part.HTTP: phases.left_ns}


def _added(*many: Mapping[Part, int]) -> dict[Part, int]:
    """The sums by part."""
    total: dict[Part, int] = {}
    for parts in many:
        for part, value in parts.items():
            total[part] = total.get(part, 0) + value
    return total


def _preempted(count: int, placed: Sequence[Placed | None]) -> Ints:
    """How many requests wait again in each step, after they were preempted in it or before."""
    changes = np.zeros(count + 1, dtype=np.int64)
    for one in placed:
        for left, back in one.preempted if one is not None else ():
            changes[left] += 1
            changes[back] -= 1
    found: Ints = np.cumsum(changes)[:count]
    return found


def _ahead(placed: Sequence[Placed | None]) -> dict[int, int]:
    """The last step before each admitting step that admitted a request, too."""
    admitting = sorted({one.first_step for one in placed if one is not None})
    return dict(zip(admitting[1:], admitting, strict=False))


def _longest(placed: Sequence[Placed | None]) -> dict[int, int]:
    """The most prompt tokens of a request that each admitting step admitted."""
    found: dict[int, int] = {}
    for one in placed:
        if one is not None:
            tokens = sum(chunk.tokens for chunk in one.chunks if not chunk.again)
            found[one.first_step] = max(found.get(one.first_step, 0), tokens)
    return found


def _sums(values: Ints) -> Ints:
    """The sum of the values before each place, and of all."""
    found = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=found[1:])
    return found


def _prefill_ns(steps: Iterations, model: StepModel | None) -> Ints:
    """The part of each step that its prompt tokens cost: its duration over that of a decode step of its size."""
    tokens = prompt_tokens(steps)
    decode = steps.elapsed_ns[tokens == 0]
    usual = float(np.median(decode)) if len(decode) else 0.0
    base = np.full(len(steps), usual) if model is None else model.step_ns + model.sequence_ns * sequences(steps)
    over = np.clip(steps.elapsed_ns - base, 0, steps.elapsed_ns)
    found: Ints = np.where(tokens > 0, over, 0).astype(np.int64)
    return found


def middle(ledgers: Sequence[RequestLedger], share: float) -> RequestLedger:
    """The request at a quantile of the total time (nearest rank): one request, not the quantile of each part."""
    ordered = sorted(ledgers, key=lambda one: (one.total_ns, one.index))
    rank = max(-(-int(share * 1000) * len(ordered) // 1000), 1)
    return ordered[rank - 1]
