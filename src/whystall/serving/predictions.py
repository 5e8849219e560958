"""The effect of another setting, by replay: medians and tails before and after, with a self-check.

Each prediction stands beside the replay of the same run, and that beside the measurement: a replay that misses its own
run says nothing of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from whystall.serving.parts import Part
from whystall.serving.replay import Load, Pace, Played, Server, play
from whystall.serving.run_analysis import Analysis
from whystall.serving.step_ledger import alive_after
from whystall.serving.step_model import StepModel

__all__ = ["Metric", "Prediction", "Rate", "Replayer", "SelfCheck", "open_loop"]

_SHIFTS: Final = (0.0, *(draw / 14 for draw in range(1, 14)))
"""Shifts of the machine's recorded pace against the clock, as shares of the recording.

Slow whiles hit other steps then. The first one is the prediction; its interval covers the others, and a machine that is
never slow.
"""
_TRUSTED: Final = 0.25
"""Largest relative error of the replay's own run at the median E2E. Published simulators of servers are off by 5 to
12 % on other configurations (LLM-Emu, BLIS); a shared machine doubles that."""
_MOST_TOKENS: Final = 2_000_000  # generated tokens and chunks that are replayed: some seconds a draw
_MANY_TOKENS: Final = 250_000  # from here on fewer draws, of half a second and more each
METRICS: Final = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric at a percentile: measured or replayed before, and after with its interval over the draws."""

    name: str
    percentile: int
    before_ns: int
    after_ns: int
    low_ns: int
    high_ns: int

    @property
    def error(self) -> float:
        """Relative distance of after from before."""
        return abs(self.after_ns - self.before_ns) / max(self.before_ns, 1)

    @property
    def verdict(self) -> Literal["better", "worse", "unclear"]:
        """Better or worse, where the interval leaves no doubt."""
        if self.high_ns < self.before_ns:
            return "better"
        return "worse" if self.low_ns > self.before_ns else "unclear"


@dataclass(frozen=True, slots=True)
class Rate:
    """Output tokens per second from the first send to the last token, before and after with its interval."""

    before: float
    after: float
    low: float
    high: float


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
        return self.error <= _TRUSTED

    def trusts(self, metric: Metric) -> bool:
        """Whether the replay meets its own run in this metric."""
        return self.metric(metric.name, metric.percentile).error <= _TRUSTED


@dataclass(frozen=True, slots=True)
class Prediction:
    """The change of each metric by one change: from the replay of the run as it was to that with the change."""

    change: str
    metrics: tuple[Metric, ...]
    preemptions: tuple[int, int]
    rate: Rate | None = None

    def metric(self, name: str, percentile: int) -> Metric:
        """One of the metrics."""
        return next(one for one in self.metrics if (one.name, one.percentile) == (name, percentile))


class Replayer:
    """Replays of one run. ``None`` comes back where the run cannot be replayed."""

    def __init__(self, analysis: Analysis) -> None:
        self._model = analysis.model
        self._places = _replayed(analysis)
        self._loads = _loads(analysis, self._places)
        self._gap_ns = 0 if analysis.timeline is None else analysis.timeline.usual_gap_ns
        self._pace = _pace(analysis)
        self._analysis = analysis
        settings = analysis.settings
        self.server = Server(
            settings.max_num_seqs,
            settings.max_num_batched_tokens,
            settings.kv_blocks,
            settings.block_tokens or 16,
            prefix_caching=bool(settings.prefix_caching),
        )
        self._base = self._draws(self.server, self._loads, self._model)
        self.check = self._self_check()

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
        if self.check is None or self._model is None:
            return None
        changed = self._draws(
            server or self.server,
            self._loads if loads is None else loads(self._loads),
            self._model if model is None else model(self._model),
        )
        if not changed:
            return None
        metrics = tuple(
            _metric(name, percentile, _replayed_metric(self._base, name, percentile), changed)
            for name in METRICS
            for percentile in (50, 99)
        )
        before = self._rates(self._base)[0]
        return Prediction(
            change, metrics, (self._base[0].preemptions, changed[0].preemptions), _rate(before, self._rates(changed))
        )

    def _self_check(self) -> SelfCheck | None:
        if not self._base:
            return None
        measured = _measured(self._analysis)
        metrics = tuple(
            _metric(name, percentile, _percentile(measured[name], percentile), self._base)
            for name in METRICS
            for percentile in (50, 99)
        )
        ends = [one.sent_ns + took for one, took in zip(self._loads, measured["e2e"], strict=True)]
        before = self._tokens_per_s(max(ends))
        return SelfCheck(metrics, self._base[0].preemptions, _rate(before, self._rates(self._base)))

    def _rates(self, played: Sequence[Played]) -> list[float]:
        return [self._tokens_per_s(one.end_ns) for one in played]

    def _tokens_per_s(self, end_ns: int) -> float:
        """Output tokens per second, from the first send to an end."""
        begin = min(one.sent_ns for one in self._loads)
        return sum(one.output_tokens for one in self._loads) * 1e9 / max(end_ns - begin, 1)

    def _draws(self, server: Server, loads: Sequence[Load], model: StepModel | None) -> list[Played]:
        work = sum(one.output_tokens for one in loads)
        if server.max_num_batched_tokens:
            work += sum(one.input_tokens for one in loads) // server.max_num_batched_tokens
        if model is None or not loads or work > _MOST_TOKENS:
            return []
        length = self._pace.length_ns
        shifts = _SHIFTS if work < _MANY_TOKENS else _SHIFTS[::4]
        played = [
            play(loads, server, model, gap_ns=self._gap_ns, pace=pace, shift_ns=shift)
            for pace, shift in [*((self._pace, round(share * length)) for share in shifts), (Pace(), 0)]
        ]
        return [one for one in played if one is not None]


def _rate(before: float, after: Sequence[float]) -> Rate:
    return Rate(before, after[0], min(after), max(after))


def _metric(name: str, percentile: int, before_ns: int, played: Sequence[Played]) -> Metric:
    each = [_percentile(getattr(one, f"{name}_ns"), percentile) for one in played]
    return Metric(name, percentile, before_ns, each[0], min(each), max(each))


def _replayed_metric(played: Sequence[Played], name: str, percentile: int) -> int:
    return _percentile(getattr(played[0], f"{name}_ns"), percentile)


def _percentile(values: Sequence[int], percentile: int) -> int:
    return int(np.percentile(values, percentile)) if values else 0


def _measured(analysis: Analysis) -> dict[str, list[int]]:
    """The client's own times of the requests that are replayed."""
    used = [one for one, placed in zip(analysis.ledgers, analysis.placed, strict=True) if placed is not None]
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


def _loads(analysis: Analysis, places: Sequence[int]) -> tuple[Load, ...]:
    """The requests as they were sent, each with its own time on the way in and out."""
    client = analysis.run.client
    if client is None:
        return ()
    found = []
    for place in places:
        request, parts = client.requests[place], analysis.ledgers[place]
        found.append(
            Load(
                request.sent_ns or 0,
                parts.of(Part.HTTP_AND_FRONT, Part.HTTP, Part.FRONT),
                _first_output_ns(analysis, place),
                parts.of(Part.OUTPUT),
                request.input_tokens,
                max(request.output_tokens, 1),
                analysis.blocks[place] if analysis.blocks else (),
            )
        )
    return tuple(found)


def _first_output_ns(analysis: Analysis, place: int) -> int:
    """From the end of the step of a request's first token to its arrival at the client."""
    first, placed, times = analysis.ledgers[place].ttft_ns, analysis.placed[place], analysis.timeline
    sent = analysis.run.client.requests[place].sent_ns if analysis.run.client is not None else None
    if placed is None or times is None or sent is None:
        return 0
    return max(sent + first - int(times.end_ns[placed.first_token_step]), 0)


def _pace(analysis: Analysis) -> Pace:
    """The machine's pace in each step with the gap before it: usual over measured time. While idle it is the usual."""
    times, usual = analysis.timeline, analysis.usual_ns
    if times is None or usual is None:
        return Pace()
    begin = times.start_ns.copy()
    busy = alive_after(len(usual), analysis.placed)[:-1] > 0
    begin[1:][busy] = times.end_ns[:-1][busy]
    work = usual + np.concatenate(([0], np.where(busy, times.usual_gap_ns, 0)))
    boundaries, done = [int(begin[0])], []
    for start, end, amount in zip(begin.tolist(), times.end_ns.tolist(), work.tolist(), strict=True):
        if start > boundaries[-1]:
            done.append(float(start - boundaries[-1]))
            boundaries.append(start)
        if end > boundaries[-1]:
            done.append(amount)
            boundaries.append(end)
    return Pace(boundaries, done) if done else Pace()


def open_loop(loads: Sequence[Load], gates_ns: Sequence[int]) -> tuple[Load, ...]:
    """The load as it would be without the client's own limit."""
    return tuple(replace(one, sent_ns=one.sent_ns - gate) for one, gate in zip(loads, gates_ns, strict=True))
