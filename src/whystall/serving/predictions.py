"""The effect of another setting, by replay: medians and tails before and after, with a self-check.

Each prediction stands beside the replay of the same run, and that beside the measurement: a replay that misses its own
run says nothing of another. The self-check plays the machine as it was at each moment. A change is for another time, on
the same machine: it is the median over replays on the machine as it was, on draws of its slow and fast periods, and
on a machine that is never slow, with and without the change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np

from whystall.serving.machine import STEADY, Machine
from whystall.serving.membership import Placed
from whystall.serving.parts import Part
from whystall.serving.records import ClientRequest, ClientRun, ServerRequest
from whystall.serving.replay import Load, Played, play
from whystall.serving.request_ledger import Engine, way_in_ns
from whystall.serving.run_analysis import Analysis
from whystall.serving.server import Server
from whystall.serving.step_ledger import alive_after
from whystall.serving.step_model import StepModel
from whystall.serving.timeline import back_to_back

__all__ = ["TRUSTED", "Metric", "Prediction", "Rate", "Replayer", "SelfCheck", "open_loop"]

_DRAWS: Final = 20
"""Draws of the machine's pace from blocks of its recording: one draw more would lie within them in 19 of 21 cases."""
TRUSTED: Final = 0.25
"""Largest relative error of the replay's own run at the median E2E. Published simulators of servers are off by 5 to
12 % on other configurations (LLM-Emu, BLIS); a shared machine doubles that."""
_MOST_REQUESTS: Final = 300_000
_MANY_REQUESTS: Final = 2_000
"""Requests of a long load. Chosen: it takes minutes, so that it meets most slow periods in each draw."""
_FEW_DRAWS: Final = 6
"""Draws for a long load: 16 replays, with and without a change, make an answer on 10,000 requests take 8 s."""
METRICS: Final = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric at a percentile: measured or replayed before, and after with its interval over the draws.

    ``change`` is the smallest and the largest ratio of after to before of the same draw.
    """

    name: str
    percentile: int
    before_ns: int
    after_ns: int
    low_ns: int
    high_ns: int
    change: tuple[float, float] | None = None

    @property
    def error(self) -> float:
        """Relative distance of after from before."""
        return abs(self.after_ns - self.before_ns) / max(self.before_ns, 1)

    @property
    def verdict(self) -> Literal["better", "worse", "unclear"]:
        """Better or worse, where all draws agree."""
        if self.change is None:
            return "unclear"
        low, high = self.change
        if high < 1:
            return "better"
        return "worse" if low > 1 else "unclear"


@dataclass(frozen=True, slots=True)
class Rate:
    """Output tokens per second from the first send to the last token, before and after with its interval."""

    before: float
    after: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Relative distance of after from before."""
        return abs(self.after / self.before - 1) if self.before else 0.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """The change of each metric by one change: from the replay of the run as it was to that with the change."""

    change: str
    metrics: tuple[Metric, ...]
    preemptions: tuple[int, int]
    rate: Rate | None = None
    most_sequences: int = 0
    most_tokens: int = 0

    def metric(self, name: str, percentile: int) -> Metric:
        """One of the metrics."""
        return next(one for one in self.metrics if (one.name, one.percentile) == (name, percentile))


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """The replay of the run as it was, against its measurement."""

    metrics: tuple[Metric, ...]
    preemptions: int
    rate: Rate | None = None

    def metric(self, name: str, percentile: int) -> Metric:
        """One of the metrics."""
        return next(one for one in self.metrics if (one.name, one.percentile) == (name, percentile))

    @property
    def error(self) -> float:
        """Relative error of the median E2E."""
        return self.metric("e2e", 50).error

    @property
    def is_trusted(self) -> bool:
        """Whether the replay meets its own run well enough to say something of another."""
        return self.error <= TRUSTED

    def worst(self, percentile: int) -> float:
        """The largest relative error of a metric at a percentile."""
        return max(one.error for one in self.metrics if one.percentile == percentile)

    def trusts(self, metric: Metric) -> bool:
        """Whether the replay meets its own run in this metric."""
        return self.metric(metric.name, metric.percentile).error <= TRUSTED

    def trusted_part(self, prediction: Prediction) -> Prediction:
        """The prediction without metrics that the replay misses in its own run."""
        metrics = tuple(one for one in prediction.metrics if self.trusts(one))
        meets_rate = self.rate is not None and self.rate.error <= TRUSTED
        return replace(prediction, metrics=metrics, rate=prediction.rate if meets_rate else None)


class Replayer:
    """Replays of one run. ``None`` comes back where the run cannot be replayed.

    With a part of each step's time alone (`Analysis.is_partial`) no cost of a step is known, and nothing is replayed.
    """

    def __init__(self, analysis: Analysis) -> None:
        self.model = None if analysis.is_partial else analysis.model
        self._places = _replayed(analysis)
        self.loads = _loads(analysis, self._places)
        self.gap_ns = 0 if analysis.timeline is None else analysis.timeline.usual_gap_ns
        self._recorded = _machine(analysis)
        self._analysis = analysis
        settings, client = analysis.settings, analysis.run.client
        self.server = Server(
            settings.max_num_seqs,
            settings.max_num_batched_tokens,
            settings.kv_blocks,
            settings.block_tokens or 16,
            prefix_caching=bool(settings.prefix_caching),
            max_concurrency=None if client is None or not _gates(client) else client.max_concurrency,
        )
        self.check = self._self_check()
        if self.server.max_concurrency is not None and (self.check is None or not self.check.is_trusted):
            # The client's sends do not follow from the limit that it states: they are played as they were.
            self.server = replace(self.server, max_concurrency=None)
            self.check = self._self_check()

    @cached_property
    def machines(self) -> list[Machine]:
        """The machine as it was, at other times, and never slow."""
        draws = _DRAWS if len(self.loads) < _MANY_REQUESTS else _FEW_DRAWS
        return [self._recorded, *(self._recorded.drawn(seed) for seed in range(draws)), STEADY]

    @cached_property
    def _base(self) -> list[Played]:
        """The run as it was, on each machine."""
        return self._draws(self.server, self.loads, self.machines)

    @property
    def gates_ns(self) -> list[int]:
        """The time that each replayed request waited in its client."""
        return [self._analysis.ledgers[place].of(Part.CLIENT_GATE) for place in self._places]

    @property
    def block_ids(self) -> list[tuple[int, ...]]:
        """The hashes of each replayed request's prompt; none where the arrivals do not have them."""
        run = self._analysis.run
        places = run.client.positions if run.client is not None else ()
        known = bool(places) and places[-1] < len(run.arrivals)
        return [run.arrivals[places[place]].block_ids if known else () for place in self._places]

    def predict(
        self,
        change: str,
        *,
        server: Server | None = None,
        loads: Callable[[tuple[Load, ...]], Sequence[Load]] | None = None,
        model: Callable[[StepModel], StepModel] | None = None,
    ) -> Prediction | None:
        """The metrics after a change of the server, of the load or of the steps' cost."""
        if self.check is None or self.model is None:
            return None
        changed = self._draws(
            server or self.server,
            self.loads if loads is None else loads(self.loads),
            self.machines,
            self.model if model is None else model(self.model),
        )
        if not changed or not self._base:
            return None
        metrics = tuple(_changed(name, percentile, self._base, changed) for name in METRICS for percentile in (50, 99))
        rates = [_tokens_per_s(one, self._tokens) for one in changed]
        before = float(np.median([_tokens_per_s(one, self._tokens) for one in self._base]))
        return Prediction(
            change,
            metrics,
            (_preemptions(self._base), _preemptions(changed)),
            Rate(before, float(np.median(rates)), min(rates), max(rates)),
            max(one.most_sequences for one in changed),
            max(one.most_tokens for one in changed),
        )

    def _self_check(self) -> SelfCheck | None:
        played = self._draws(self.server, self.loads, [self._recorded])
        if not played:
            return None
        measured = _measured(self._analysis, self._places)
        metrics = tuple(
            _checked(name, percentile, measured[name], played[0]) for name in METRICS for percentile in (50, 99)
        )
        after = _tokens_per_s(played[0], self._tokens)
        begin = min(one.sent_ns for one in self.loads)
        end = max(one.sent_ns + took for one, took in zip(self.loads, measured["e2e"], strict=True))
        rate = Rate(self._tokens * 1e9 / max(end - begin, 1), after, after, after)
        return SelfCheck(metrics, played[0].preemptions, rate)

    @property
    def _tokens(self) -> int:
        return sum(one.output_tokens for one in self.loads)

    def _draws(
        self, server: Server, loads: Sequence[Load], machines: Sequence[Machine], model: StepModel | None = None
    ) -> list[Played]:
        """A replay on each machine; none at all where one of them is too long, or a request never fits."""
        model = model or self.model
        if model is None or not loads or len(loads) > _MOST_REQUESTS:
            return []
        found = []
        for machine in machines:
            played = play(loads, server, model, gap_ns=self.gap_ns, machine=machine)
            if played is None:
                return []
            found.append(played)
        return found


def _tokens_per_s(played: Played, tokens: int) -> float:
    return tokens * 1e9 / max(played.end_ns - played.begin_ns, 1)


def _preemptions(played: Sequence[Played]) -> int:
    return int(np.median([one.preemptions for one in played]))


def _checked(name: str, percentile: int, measured: Sequence[int], played: Played) -> Metric:
    """A metric as it was measured, beside its replay on the recorded machine."""
    after = _percentile(getattr(played, f"{name}_ns"), percentile)
    return Metric(name, percentile, _percentile(measured, percentile), after, after, after)


def _changed(name: str, percentile: int, base: Sequence[Played], changed: Sequence[Played]) -> Metric:
    """A metric without and with a change, draw by draw."""
    before, after = (_percentiles(one, name, percentile) for one in (base, changed))
    ratios = [new / max(old, 1) for old, new in zip(before, after, strict=True)]
    medians = int(np.median(before)), int(np.median(after))
    return Metric(name, percentile, *medians, min(after), max(after), (min(ratios), max(ratios)))


def _percentiles(played: Sequence[Played], name: str, percentile: int) -> list[int]:
    return [_percentile(getattr(one, f"{name}_ns"), percentile) for one in played]


def _percentile(values: Sequence[int], percentile: int) -> int:
    return int(np.percentile(values, percentile)) if values else 0


def _measured(analysis: Analysis, places: Sequence[int]) -> dict[str, list[int]]:
    """The client's own times of the requests that are replayed."""
    used = [analysis.ledgers[place] for place in places]
    several = [one for one in used if one.output_tokens > 1]
    return {
        "ttft": [one.ttft_ns for one in used],
        "e2e": [one.server_ns for one in used],
        "tpot": [(one.server_ns - one.ttft_ns) // (one.output_tokens - 1) for one in several],
    }


def _replayed(analysis: Analysis) -> list[int]:
    """The places of the requests that can be replayed: sent at a known time and seen in steps."""
    requests = analysis.run.client.requests if analysis.run.client is not None else ()
    pairs = zip(requests, analysis.placed, strict=True)
    return [place for place, (one, placed) in enumerate(pairs) if placed is not None and one.sent_ns is not None]


def _gates(client: ClientRun) -> bool:
    """Whether each wait for the client's own limit is known, so that other waits follow for other settings."""
    return all(one.gate_ns is not None for one in client.requests)


def _loads(analysis: Analysis, places: Sequence[int]) -> tuple[Load, ...]:
    """The requests as they were sent, each with its own time on the way in and out."""
    client, engine = analysis.run.client, analysis.engine
    if client is None or engine is None:
        return ()
    return tuple(
        _load(
            client.requests[place],
            placed,
            engine,
            analysis.spans[place],
            analysis.blocks[place] if analysis.blocks else (),
        )
        for place in places
        if (placed := analysis.placed[place]) is not None
    )


def _load(
    request: ClientRequest, placed: Placed, engine: Engine, span: ServerRequest | None, blocks: tuple[int, ...]
) -> Load:
    """A request; of its way back only the time after other tokens of the same step or a later one is its own."""
    sent, seen = request.sent_ns or 0, engine.timeline.seen_ns
    return Load(
        sent,
        way_in_ns(sent, placed, engine, span),
        max(sent + request.ttft_ns - int(seen[placed.first_token_step]), 0),
        max(sent + request.latency_ns - int(seen[placed.last_step]), 0),
        request.input_tokens,
        max(request.output_tokens, 1),
        blocks,
        sent - (request.gate_ns or 0),
    )


def _machine(analysis: Analysis) -> Machine:
    """The machine's pace in each step with the gap before it: usual over measured time. While idle it is the mean."""
    times, usual = analysis.timeline, analysis.usual_ns
    if times is None or usual is None:
        return STEADY
    busy = alive_after(len(usual), analysis.placed)[:-1] > 0
    begin = back_to_back(times, busy)
    work = usual + np.concatenate(([0], np.where(busy, times.usual_gap_ns, 0)))
    mean = float(work.sum()) / max(int((times.end_ns - begin).sum()), 1)
    boundaries, done = [int(begin[0])], []
    for start, end, amount in zip(begin.tolist(), times.end_ns.tolist(), work.tolist(), strict=True):
        if start > boundaries[-1]:
            done.append(mean * (start - boundaries[-1]))
            boundaries.append(start)
        if end > boundaries[-1]:
            done.append(amount)
            boundaries.append(end)
    if not done:
        return STEADY
    deliveries = zip(times.start_ns.tolist(), times.end_ns.tolist(), times.seen_ns.tolist(), strict=True)
    return Machine.recorded(boundaries, done, tuple(deliveries))


def open_loop(loads: Sequence[Load], gates_ns: Sequence[int]) -> tuple[Load, ...]:
    """The load as it would be without the client's own limit."""
    return tuple(replace(one, sent_ns=one.sent_ns - gate) for one, gate in zip(loads, gates_ns, strict=True))
