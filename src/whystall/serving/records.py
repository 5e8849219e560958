"""The content of a served run's files, in one form for all tools: times are integer nanoseconds.

Prompts, generated texts, keys, error texts and paths have no field here, so that nothing behind the readers can show
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = [
    "BY_SERVER",
    "NO_SETTINGS",
    "SGLANG",
    "Arrival",
    "BatchLines",
    "ClientRequest",
    "ClientRun",
    "Iterations",
    "Metrics",
    "Part",
    "QueueReadings",
    "ServedRun",
    "ServerRequest",
    "Settings",
    "StepParts",
]

BY_SERVER: Final = "the server's spans"
"""In place of a client's tool: no client's result is there, and requests are as the server saw them."""
SGLANG: Final = "SGLang"
"""The name of a server that is not vLLM."""
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a request should be sent, after the first, and its sizes; equal ``block_ids`` are equal tokens."""

    at_ns: int
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request as its client saw it.

    ``sent_ns`` is on the client's own clock and follows ``gate_ns``, the wait for the client's limit of concurrent
    requests. ``token_ns`` are the arrivals of chunks after ``sent_ns``, the first token's first. ``latency_ns`` ends
    with the last token.
    """

    sent_ns: int | None
    gate_ns: int | None
    latency_ns: int
    ttft_ns: int
    input_tokens: int
    output_tokens: int
    token_ns: tuple[int, ...] = ()
    late_ns: int | None = None
    key: str | None = None

    @property
    def first_token_ns(self) -> int | None:
        """When the first token came, on the client's clock."""
        return None if self.sent_ns is None else self.sent_ns + self.ttft_ns


@dataclass(frozen=True, slots=True)
class ClientRun:
    """The result file of a load generator. ``positions`` are the requests' places in the list of intended arrivals."""

    tool: str
    requests: tuple[ClientRequest, ...]
    failed: int = 0
    max_concurrency: int | None = None
    positions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """A finished request by the server's own clocks (an OpenTelemetry span). ``arrived_ns`` is wall clock."""

    key: str
    arrived_ns: int
    e2e_ns: int
    ttft_ns: int
    queue_ns: int
    prefill_ns: int
    decode_ns: int
    inference_ns: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Iterations:
    """The engine's steps in order, one entry of each column a step; tokens are those computed in the step."""

    context_requests: Ints
    context_tokens: Ints
    generation_requests: Ints
    generation_tokens: Ints
    elapsed_ns: Ints
    kv_permille: Ints
    dummy: Ints

    def __len__(self) -> int:
        return len(self.elapsed_ns)


@dataclass(frozen=True, slots=True)
class QueueReadings:
    """Requests that run and that wait, and the share of the cache in use (-1 if unknown): one entry a reading."""

    running: Ints
    waiting: Ints
    kv_permille: Ints

    def __len__(self) -> int:
        return len(self.running)


@dataclass(frozen=True, slots=True)
class BatchLines:
    """The lines on batches in SGLang's log: each prefill, and one in many decodes.

    The counts are of all lines; ``durations`` are queue and forward of single finished requests in nanoseconds, with
    their prompt and output tokens.
    """

    prefills: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    decodes: int = 0
    without_graph: int = 0
    retracted: int = 0
    durations: tuple[tuple[int, int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Metrics:
    """Counters, sums and gauges of one reading of ``/metrics``, by name without unit suffix ``_total``.

    Series of several engines are added up; ``engines`` has the number of requests of each.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    engines: Mapping[str, float] = field(default_factory=dict)
    created_s: float | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The server's settings as its log and metrics state them; ``None`` where they do not."""

    version: str | None = None
    device: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_tokens: int | None = None
    kv_blocks: int | None = None
    prefix_caching: bool | None = None
    enforce_eager: bool | None = None
    async_scheduling: bool | None = None
    logits_processors: bool | None = None
    speculative: bool | None = None
    server: str | None = None


NO_SETTINGS = Settings()


@dataclass(frozen=True, slots=True)
class StepParts:
    """Median parts of a step by a worker's trace: forward pass, choice of tokens, the engine between steps.

    With ``on_device`` the trace has work of a device, and waiting for it may lie in any of them.
    """

    steps: int
    forward_ns: int
    choosing_ns: int
    engine_ns: int
    on_device: bool


@dataclass(frozen=True, slots=True)
class Part:
    """The content of one file; a reader fills the fields that its format has."""

    kind: str
    arrivals: tuple[Arrival, ...] = ()
    client: ClientRun | None = None
    spans: tuple[ServerRequest, ...] = ()
    iterations: Iterations | None = None
    metrics: Metrics | None = None
    step_parts: StepParts | None = None
    settings: Settings = NO_SETTINGS
    engines: int = 1
    waiting: tuple[tuple[int, int], ...] = ()
    readings: QueueReadings | None = None
    batches: BatchLines | None = None


@dataclass(frozen=True, slots=True)
class ServedRun:
    """All that the files of a served run say.

    ``waiting`` are running and waiting requests of the log's stats lines and of all readings.
    """

    sources: tuple[str, ...] = ()
    arrivals: tuple[Arrival, ...] = ()
    client: ClientRun | None = None
    spans: tuple[ServerRequest, ...] = ()
    iterations: Iterations | None = None
    before: Metrics | None = None
    after: Metrics | None = None
    step_parts: StepParts | None = None
    settings: Settings = NO_SETTINGS
    engines: int = 1
    waiting: tuple[tuple[int, int], ...] = ()
    readings: QueueReadings | None = None
    batches: BatchLines | None = None
    notes: tuple[str, ...] = ()

    def counted(self, name: str) -> float | None:
        """The growth of a counter or sum between the two readings of ``/metrics``; ``None`` without both.

        A counter that fell belongs to a server that was started in between: ``None`` again.
        """
        if self.before is None or self.after is None or name not in self.after.values:
            return None
        grown = self.after.values[name] - self.before.values.get(name, 0.0)
        return grown if grown >= 0 else None
