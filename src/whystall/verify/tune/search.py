"""The search: one setting at a time against the best so far, in interleaved pairs, until nothing is left to gain.

It knows nothing of processes: the caller passes a function that runs a command with settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from msgspec.structs import replace

from whystall.analysis.paired import Paired, paired
from whystall.errors import WhystallError
from whystall.verify.tune.candidate import LEAST_GAIN, Candidate
from whystall.verify.tune.candidates import Knob, candidates, left_out
from whystall.verify.tune.losses import Compared, compare
from whystall.verify.tune.results import LeftOut, Losses, Outcome, Seen, Settings, Trial, Tuning, Verdict

Measure = Callable[[Settings], Outcome]
Progress = Callable[[str], None]

_FEWEST_PAIRS: Final = 3
_FIRST_RUNS: Final = 2
_PROMISING: Final = 1.05  # a speed-up inside the noise: tried again once something else has won
_MORE: Final = 1.5  # relative to its estimated gain at its trial: a setting is tried again
# This much slower than the best so far, beyond the noise, in the first pair, or in each of the first, is enough.
_FAR: Final = 1.5
_CLEARLY: Final = 1.10


class NotMeasurableError(WhystallError):
    """The command as it was given does not run, or shows no steps."""

    exit_code = 1


@dataclass(slots=True)
class _State:
    measure: Measure
    pairs: int
    tolerance: float
    progress: Progress
    runs: int = 0
    settings: Settings = field(default_factory=dict)
    outcome: Outcome | None = None
    same: list[list[float]] = field(default_factory=list)
    """Times of runs of the same settings, in turn."""
    made: list[tuple[Settings, list[Outcome]]] = field(default_factory=list)
    """All runs that gave a time, by their settings."""

    def run(self, settings: Settings) -> Outcome:
        self.runs += 1
        outcome = self.measure(settings)
        if outcome.step_s is not None:
            self.of(settings).append(outcome)
        return outcome

    def of(self, settings: Settings) -> list[Outcome]:
        """The runs with some settings."""
        for known, runs in self.made:
            if known == settings:
                return runs
        self.made.append((dict(settings), []))
        return self.made[-1][1]

    def losses(self, before: Settings, after: Settings) -> Compared:
        """Whether the job's own losses are the same with two settings."""
        same = [runs for _, runs in self.made]
        changed, seen = {**before, **after}, self.outcome.seen if self.outcome is not None else None
        return compare(self.of(before), self.of(after), same, changed, tolerance=self.tolerance, seen=seen)

    @property
    def noise(self) -> float:
        """The ratio between single runs of the same settings, at 95 %."""
        apart = [np.diff(np.log(np.array(times))) for times in self.same if len(times) > 1]
        if not apart:
            return 1.0
        # Two runs differ by the root of two times the scatter of each.
        return float(np.exp(1.96 * np.sqrt(np.mean(np.concatenate(apart) ** 2) / 2)))


def search(
    measure: Measure,
    *,
    knob: Knob | None = None,
    most_trials: int = 14,
    pairs: int = 6,
    tolerance: float = 0.01,
    progress: Progress = lambda _text: None,
) -> Tuning:
    """The settings that make steps faster beyond the noise, each found against the best before it.

    At the end the winner runs against the command as given, in further pairs: without a gain there nothing is named.
    Raises `NotMeasurableError` where the command as given does not run.
    """
    state = _State(measure, pairs, tolerance, progress)
    first = _first(state)
    step_s, seen = first.step_s or 0.0, first.seen
    trials: list[Trial] = []
    because = _climb(state, trials, knob, most_trials)
    confirmed = None
    settings = state.settings
    if settings:
        progress(f"confirming {told(settings)} against the command as given")
        confirmed = _pairs(state, {}, Candidate("all", told(settings), math.inf, _work(trials)), settings)
        if confirmed.verdict != "faster":
            settings, because = {}, f"what had won did not win again ({confirmed.verdict})"
    outcome_seen = state.outcome.seen if state.outcome is not None else seen
    return Tuning(
        trials=trials,
        left_out=_never_tried(outcome_seen, state.settings, trials),
        settings=settings,
        confirmed=confirmed,
        noise=round(state.noise, 4),
        runs=state.runs,
        step_s=step_s,
        ended_because=because,
        seen=seen,
    )


def told(settings: Settings) -> str:
    """Settings in one line.

    >>> told({"num_workers": 2, "optimizer": "fused"})
    'num_workers=2, optimizer=fused'
    """
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _first(state: _State) -> Outcome:
    """The command as given, run twice: its facts, and the difference between two runs of the same."""
    times: list[float] = []
    found: list[Outcome] = []
    for _ in range(_FIRST_RUNS):
        outcome = state.run({})
        if outcome.step_s is None:
            raise NotMeasurableError(f"the command as given cannot be measured: {outcome.failed_because}")
        times.append(outcome.step_s)
        found.append(outcome)
    state.same.append(times)
    state.outcome = found[-1]
    state.progress(
        f"as given, a step takes {min(times) * 1e3:.4g} ms; two runs differ by {abs(times[1] / times[0] - 1):.1%}"
    )
    return found[-1]


def _climb(state: _State, trials: list[Trial], knob: Knob | None, most_trials: int) -> str:
    """Tries one setting after another; why it ended."""
    tried: dict[tuple[str, object], _Tried] = {}
    while len(trials) < most_trials:
        seen = state.outcome.seen if state.outcome is not None else None
        if seen is None:
            return "a run without samples shows nothing to try"
        found = candidates(seen, state.settings, knob)
        waiting = [one for one in found if _is_worth_it(one, state.settings, tried.get((one.name, one.value)))]
        if not waiting:
            return "nothing that is left could bring more than two per cent"
        floor = 1 + max(LEAST_GAIN, (state.noise - 1) / 2)
        if waiting[0].most < floor:
            return f"what is left could bring {waiting[0].most - 1:.1%} at the most, which is inside the noise"
        chosen = waiting[0]
        state.progress(f"trial {len(trials) + 1}: {chosen.name}={chosen.value}")
        against = state.settings
        trial = _pairs(state, against, chosen, {**against, chosen.name: chosen.value}, keep=True)
        trials.append(trial)
        tried[chosen.name, chosen.value] = _Tried(chosen.most, against, trial)
        state.progress(f"trial {len(trials)}: {chosen.name}={chosen.value}: {sentence(trial)}")
    return f"{most_trials} trials were made"


@dataclass(frozen=True, slots=True)
class _Tried:
    """A trial: its possible gain, and its opponent."""

    most: float
    against: Settings
    trial: Trial


def _is_worth_it(one: Candidate, settings: Settings, before: _Tried | None) -> bool:
    """Whether it was not tried, or a later winner may make it visible: a wait for input hides all else."""
    if before is None:
        return True
    unclear = before.trial.verdict == "inside the noise" and (before.trial.speedup or 1.0) >= _PROMISING
    return before.against != settings and (unclear or one.most - 1 > _MORE * (before.most - 1))


def _pairs(state: _State, before: Settings, chosen: Candidate, after: Settings, *, keep: bool = False) -> Trial:
    """Runs both settings in turn until it is decided; with ``keep`` a winner becomes the next opponent."""
    times: tuple[list[float], list[float]] = ([], [])
    last: list[Outcome | None] = [None, None]
    for pair in range(state.pairs):
        for variant in (0, 1) if pair % 2 == 0 else (1, 0):
            outcome = state.run((before, after)[variant])
            last[variant] = outcome
            if outcome.step_s is None:
                if variant == 0:  # the former winner fails now: there is no verdict on the candidate
                    return _trial(chosen, times, None, "failed", f"the best so far: {outcome.failed_because}")
                return _trial(chosen, times, None, "failed", outcome.failed_because)
            work = chosen.work if variant == 1 else 1.0
            times[variant].append(outcome.step_s / work)
        verdict = _decide(times, state.noise, is_last=pair == state.pairs - 1)
        if verdict is not None:
            break
    state.same += times
    compared = _compared(state, last, before, after) if chosen.work == 1.0 else Compared("not compared")
    found = _trial(chosen, times, _paired(times), verdict or "inside the noise", None, compared.losses)
    if verdict == "faster" and compared.because is not None:
        return replace(found, verdict="losses differ", because=compared.because)
    if verdict == "faster" and keep:
        state.settings, state.outcome = after, last[1]
    return found


def _compared(state: _State, last: Sequence[Outcome | None], before: Settings, after: Settings) -> Compared:
    """The comparison of losses: the printed ones where they were requested, and those of the job's backward passes."""
    differ = _differ(last[0], last[1], state.tolerance)
    if differ is not None:
        return Compared("differ", differ)
    found = state.losses(before, after)
    printed = all(one is not None and one.losses for one in last)
    return Compared("agree") if printed and found.losses == "not compared" else found


def _paired(times: tuple[list[float], list[float]]) -> Paired | None:
    return paired(*times) if len(times[0]) >= 2 else None


def _decide(times: tuple[list[float], list[float]], noise: float, *, is_last: bool) -> Verdict | None:
    """The verdict of the pairs so far; ``None`` while more are needed."""
    before, after = times
    least = _FAR if len(before) == 1 else _CLEARLY
    if all(b > a * max(least, noise) for a, b in zip(before, after, strict=True)):
        return "slower"
    if len(before) >= _FEWEST_PAIRS:
        found = paired(before, after)
        worth = found.speedup.ratio >= 1 + LEAST_GAIN
        # In a few runs of the two, agreement of all is chance too often: the noise of all runs counts as well.
        if found.improved and worth and found.speedup.ratio > noise ** (2 / len(before)) ** 0.5:
            return "faster"
        if found.worsened:
            return "slower"
        if found.speedup.high < 1 + LEAST_GAIN or (found.speedup.ratio < 1 and len(before) > _FEWEST_PAIRS):
            return "inside the noise"
    return "inside the noise" if is_last else None


def _trial(
    chosen: Candidate,
    times: tuple[list[float], list[float]],
    found: Paired | None,
    verdict: Verdict,
    because: str | None,
    losses: Losses = "not compared",
) -> Trial:
    speedup = found.speedup.ratio if found is not None else None
    if speedup is None and times[0] and times[1]:
        speedup = times[0][0] / times[1][0]
    return Trial(
        name=chosen.name,
        value=chosen.value,
        before_s=times[0],
        after_s=times[1],
        speedup=speedup,
        interval=found.speedup if found is not None else None,
        verdict=verdict,
        because=because,
        work=chosen.work,
        losses=losses,
    )


def _differ(before: Outcome | None, after: Outcome | None, tolerance: float) -> str | None:
    """How the losses at the last place that both runs printed one differ, where that is more than allowed."""
    if before is None or after is None or not before.losses or not after.losses:
        return None
    place = min(len(before.losses), len(after.losses)) - 1
    first, second = before.losses[place], after.losses[place]
    if math.isclose(first, second, rel_tol=tolerance, abs_tol=1e-12):
        return None
    return f"loss {first:.6g} before, {second:.6g} after, at the same place"


def _work(trials: Sequence[Trial]) -> float:
    """By how much more a step does with all that won."""
    return math.prod(trial.work for trial in trials if trial.verdict == "faster")


def _never_tried(seen: Seen | None, settings: Settings, trials: Sequence[Trial]) -> list[LeftOut]:
    return [] if seen is None else left_out(seen, settings, [trial.name for trial in trials])


def sentence(trial: Trial) -> str:
    """The sentence on a trial."""
    if trial.because is not None:
        return f"{trial.verdict}: {trial.because}"
    if trial.speedup is None:
        return trial.verdict
    return f"{trial.verdict}, {trial.speedup:.3f} times as fast"
