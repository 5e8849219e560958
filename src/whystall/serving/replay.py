"""Plays the recorded arrivals through vLLM V1's scheduler with the fitted step model, as it is or with other settings.

The rules are those of `v1/core/sched/scheduler.py`, 0.32, synchronous: running requests first in their order, chunks
within the budget, the last running one preempted when blocks run out, waiting ones first come, first served and only
if none was preempted, the whole prompt reserved. New requests are seen between steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whystall.serving.engine import Costs, Engine, Request
from whystall.serving.machine import STEADY, Machine
from whystall.serving.server import Server
from whystall.serving.step_model import StepModel

__all__ = ["Load", "Played", "Server", "fits", "play"]


@dataclass(frozen=True, slots=True)
class Load:
    """A request to play: when it was sent, the time on its way to the scheduler, that of its first and last token back.

    The way back comes on top of the machine's delivery. ``blocks`` are its prompt's full blocks, for the prefix cache;
    ``due_ns`` is when its client would have sent it without a limit of its own.
    """

    sent_ns: int
    front_ns: int
    first_output_ns: int
    output_ns: int
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    due_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Played:
    """A replay's times of each request in nanoseconds, in the order of the load, and the number of preemptions.

    ``most_sequences`` and ``most_tokens`` are those of its largest steps, ``end_ns`` is when the last token came.
    """

    ttft_ns: tuple[int, ...]
    e2e_ns: tuple[int, ...]
    tpot_ns: tuple[int, ...]
    preemptions: int
    steps: int
    begin_ns: int
    end_ns: int
    most_sequences: int
    most_tokens: int


def play(
    loads: Sequence[Load], server: Server, model: StepModel, *, gap_ns: int = 0, machine: Machine = STEADY
) -> Played | None:
    """The times of all requests; each step takes its work and ``gap_ns`` of the engine's, at the machine's pace.

    ``None`` where a request never fits (`fits`), and after `MOST_EVENTS` events.
    """
    if not fits(loads, server):
        return None
    client = _Client(loads, server.max_concurrency, machine)
    requests = [
        Request(place, one.input_tokens, max(one.output_tokens, 1), one.blocks) for place, one in enumerate(loads)
    ]
    engine = Engine(
        requests,
        client,
        Costs.of(model, gap_ns),
        max_num_seqs=server.max_num_seqs,
        budget=server.max_num_batched_tokens,
        kv_blocks=server.kv_blocks,
        block_tokens=server.block_tokens,
        prefix_caching=server.prefix_caching,
    )
    return client.played(engine) if engine.run() else None


def fits(loads: Sequence[Load], server: Server) -> bool:
    """Whether the cache has blocks enough for each request alone, with its prompt and its output."""
    if server.kv_blocks is None:
        return True
    longest = max((one.input_tokens + max(one.output_tokens, 1) for one in loads), default=0)
    return -(-longest // server.block_tokens) < server.kv_blocks  # vLLM keeps one block empty


class _Client:
    """The side of the load: when requests come to the scheduler, and when their tokens come back."""

    def __init__(self, loads: Sequence[Load], limit: int | None, machine: Machine) -> None:
        self._loads = loads
        self._machine = machine
        self._sent = [one.sent_ns for one in loads]
        self._queue: list[int] = []
        due = [one.sent_ns if one.due_ns is None else one.due_ns for one in loads]
        self._due = due
        now = range(len(loads))
        if limit is not None:
            self._queue = sorted(now, key=lambda place: (due[place], loads[place].sent_ns, place))
            now = range(0)
        self.first: list[tuple[int, int]] = [self._arrival(place) for place in now]
        """Work until the arrival of each request that does not wait for another, with its place."""
        self._queue.reverse()
        for _ in range(min(limit or 0, len(self._queue))):
            self.first.append(self._send(None))

    def _arrival(self, place: int) -> tuple[int, int]:
        return self._machine.work_at(self._sent[place] + self._loads[place].front_ns), place

    def _send(self, free_ns: int | None) -> tuple[int, int]:
        """The arrival of the next request that waits in the client, in a slot that is free from a time on."""
        place = self._queue.pop()
        self._sent[place] = self._due[place] if free_ns is None else max(self._due[place], free_ns)
        return self._arrival(place)

    def ended(self, place: int, work: int) -> tuple[int, int] | None:
        """The arrival of the request that a client with a limit sends when another has ended."""
        return self._send(self._back(work, self._loads[place].output_ns)) if self._queue else None

    def _back(self, work: int, own_ns: int) -> int:
        return self._machine.delivered(self._machine.time_at(work)) + own_ns

    def played(self, engine: Engine) -> Played:
        """The client's times after the engine has run."""
        first, whole, each, ends = [], [], [], [0]
        for load, one, sent in zip(self._loads, engine.requests, self._sent, strict=True):
            end = self._back(one.last, load.output_ns)
            start = min(self._back(one.first, load.first_output_ns), end)
            first.append(start - sent)
            whole.append(end - sent)
            ends.append(end)
            if one.output_tokens > 1:
                each.append((end - start) // (one.output_tokens - 1))
        return Played(
            tuple(first),
            tuple(whole),
            tuple(each),
            engine.preemptions,
            engine.steps,
            min(self._sent, default=0),
            max(ends),
            engine.most_sequences,
            engine.most_tokens,
        )
