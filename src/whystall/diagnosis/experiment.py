"""The outcome of an experiment: whether a step is shorter in a further run of the job with one thing changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from whystall.diagnosis.finding import Finding

# A smaller effect is not worth a change, even on a quiet machine.
_LEAST: Final = 0.03
_NOISES: Final = 2.0
# Two runs of the same that differ by more leave room for an effect that matters.
_NOISY: Final = 0.1

"""Where a run folder holds the outcomes of its experiments."""

CHANGES: Final = {
    "input": "the same batch handed out again",
    "gc": "garbage collection off",
    "logging": "logging silent",
    "threads": "another number of threads",
}
# Causes that an experiment tests: by family, or by id.
_SPEAKS_OF: Final = {
    "input": ("input.",),
    "gc": ("host.gc",),
    "logging": ("episodic.logging",),
    "threads": ("host.cpu-contention", "host.affinity"),
}
_SHORTER: Final = {
    "input": "making or waiting for batches holds the step up",
    "gc": "garbage collection holds the step up",
    "logging": "logging holds the step up",
    "threads": "the number of threads holds the step up",
}
_SAME: Final = {
    "input": "the input does not hold the step up",
    "gc": "garbage collection does not hold the step up",
    "logging": "logging does not hold the step up",
    "threads": "the number of threads does not matter here",
}


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment and its outcome; without a step it failed, and ``tells`` is the reason.

    ``step_ns`` is the mean steady step with the change, ``base_step_ns`` without it, measured in runs of the same
    length; ``noise`` is the share by which two runs without any change differed.
    """

    name: str
    change: str
    step_ns: int | None
    base_step_ns: int | None
    speedup: float | None
    noise: float | None
    tells: str


def outcome(
    name: str,
    step_ns: int,
    bases_ns: Sequence[int],
    change: str | None,
    findings: Sequence[Finding],
) -> Experiment:
    """The outcome of runs with and without a change, by their mean steps.

    ``change`` is the run's own description of the change.

    >>> outcome("gc", 80_000_000, [100_000_000, 102_000_000], None, []).speedup
    1.2625
    """
    base = sum(bases_ns) // len(bases_ns)
    noise = (max(bases_ns) - min(bases_ns)) / base
    speedup = base / step_ns
    return Experiment(
        name=name,
        change=change or CHANGES[name],
        step_ns=step_ns,
        base_step_ns=base,
        speedup=round(speedup, 4),
        noise=round(noise, 4),
        tells=_told(name, speedup, noise, findings),
    )


def needed(findings: Sequence[Finding]) -> list[str]:
    """The experiments that test a finding, or a cause that was considered beside it."""
    open_causes = [
        cause
        for one in findings
        if one.severity != "info"
        for cause in (one.id, *(rival.id for rival in one.rejected), *(other.id for other in one.instead))
    ]
    return [name for name in CHANGES if any(cause.startswith(_SPEAKS_OF[name]) for cause in open_causes)]


def bearing(experiments: Sequence[Experiment], cause: str) -> Experiment | None:
    """The experiment that bears on a cause, if there is one that measured something beyond its own noise."""
    for one in experiments:
        if one.name not in _SPEAKS_OF or one.speedup is None or one.noise is None or not one.speedup > 0:
            continue
        if not cause.startswith(_SPEAKS_OF[one.name]):
            continue
        if one.speedup > 1 + _least(one.noise):
            return one
        # An ineffective number of threads does not rule out that other programs take the cores.
        return one if one.noise <= _NOISY and one.name != "threads" else None
    return None


def saved_by(experiment: Experiment) -> tuple[float, float, float]:
    """The share of the step that went away in an experiment: at least, as measured, at most.

    >>> one = outcome("gc", 80_000_000, [100_000_000, 100_000_000], None, [])
    >>> [round(share, 3) for share in saved_by(one)]
    [0.176, 0.2, 0.223]
    """
    speedup, room = experiment.speedup or 1.0, 1 + _least(experiment.noise or 0.0)
    low, middle, high = (max(1 - 1 / max(value, 1.0), 0.0) for value in (speedup / room, speedup, speedup * room))
    return low, middle, high


def _least(noise: float) -> float:
    """The least effect that counts beside such a noise."""
    return max(_LEAST, _NOISES * noise)


def failure(name: str, because: str) -> Experiment:
    """An experiment that measured nothing."""
    return Experiment(
        name=name,
        change=CHANGES[name],
        step_ns=None,
        base_step_ns=None,
        speedup=None,
        noise=None,
        tells=f"nothing: {because}",
    )


def _told(name: str, speedup: float, noise: float, findings: Sequence[Finding]) -> str:
    named = [one.id for one in findings if one.severity != "info" and one.id.startswith(_SPEAKS_OF[name])]
    least = _least(noise)
    if speedup > 1 + least:
        return f"{_SHORTER[name]}{_verdict_on(named, 'speaks for')}"
    if 1 / speedup > 1 + least:
        against = _verdict_on(named, "speaks against")
        return f"a step is longer with it: what was changed does not hold the step up{against}"
    if noise > _NOISY:
        return f"nothing beyond the noise of {noise * 100:.0f} %: repeat it on a quieter machine"
    return f"{_SAME[name]}, to within {least * 100:.0f} %{_verdict_on(named, 'speaks against')}"


def _verdict_on(named: Sequence[str], word: str) -> str:
    return f"; this {word} {', '.join(dict.fromkeys(named))}" if named else ""
