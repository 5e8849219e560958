"""Sentences on a baseline's noise, and on gates finer than it."""

from __future__ import annotations

from math import ceil
from typing import Final, Literal

import msgspec

from whystall.analysis.run_noise import RunNoise
from whystall.diagnosis.sides import RunLength
from whystall.report.baseline import Baseline
from whystall.report.format import duration, plural

# Changes of a step whose price in pairs of runs is listed.
_CHANGES: Final = (0.10, 0.05, 0.03, 0.02, 0.01)


def saved_text(baseline: Baseline) -> str:
    """The content of a baseline, and the finest gate on the step that it supports."""
    noise = baseline.noise
    lengths = sorted(run.median_ns for run in baseline.runs)
    step = f"median step {duration(lengths[0])}"
    if noise is None:
        return (
            f"1 run, {step}. The spread between runs of the same job is not measured; a usual one is assumed: save "
            f"several runs before you set a gate on times. Counts need no more.\n"
        )
    least = noise.least_change()
    span = f"{step} to {duration(lengths[-1])}"
    differ = f"runs of the same job differ by {percent(noise.spread)} (standard deviation)"
    lines = [
        f"{plural(noise.runs, 'run')}, {span}: {differ}.",
        f"One run against it shows no change below {percent(least)}: a gate holds from step>+{whole(least)} on.",
        "",
        "change of a step  pairs of runs that show it, made in turn",
    ]
    lines += [f"{percent(change):>16}  {_pairs(noise, change)}" for change in _CHANGES]
    return "\n".join(lines) + "\n"


class _Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON of ``--save --json``: ``pairs`` of runs show a change of that many per cent, up to 64 pairs."""

    schema: Literal["whystall.baseline-noise/1"] = "whystall.baseline-noise/1"
    content: str
    runs: list[RunLength]
    noise: RunNoise | None
    least_change: float | None
    pairs: dict[str, int | None]


def saved_json(baseline: Baseline) -> str:
    """The same as JSON."""
    noise = baseline.noise
    saved = _Saved(
        content=baseline.content,
        runs=baseline.runs,
        noise=noise,
        least_change=None if noise is None else round(noise.least_change(), 4),
        pairs={} if noise is None else {f"{change * 100:g}%": noise.pairs_for(change) for change in _CHANGES},
    )
    return msgspec.json.format(msgspec.json.encode(saved), indent=1).decode() + "\n"


def too_fine(condition: str, change: float, noise: RunNoise, runs: int) -> str | None:
    """The reason why a gate on a change of the step is finer than the noise; ``None`` if it is coarse enough.

    ``change`` is a share of the step, ``runs`` the number of runs of the candidate.
    """
    least = noise.least_change(runs)
    if change <= 0 or change >= least:
        return None
    return (
        f"{condition} is finer than the noise: beside what {noise.runs} runs of the baseline differ by, "
        f"{plural(runs, 'run')} of the candidate can show no change below {percent(least)}. A threshold of "
        f"{whole(least)} would hold; for {percent(change)} make {_pairs(noise, change)} pairs of runs in turn (--again)"
    )


def percent(share: float) -> str:
    """A share in per cent, two digits.

    >>> percent(0.0514), percent(0.1), percent(0.0009)
    ('5.1 %', '10 %', '0.09 %')
    """
    return f"{share * 100:.2g} %"


def whole(share: float) -> str:
    """The next whole per cent above a share, as a condition has it; below one the next tenth.

    >>> whole(0.0514), whole(0.06), whole(0.0031)
    ('6%', '6%', '0.4%')
    """
    scale = 100 if share >= 0.01 else 1_000
    return f"{ceil(round(share * scale, 6)) / scale * 100:g}%"


def _pairs(noise: RunNoise, change: float) -> str:
    pairs = noise.pairs_for(change)
    return "more than 64" if pairs is None else str(pairs)
