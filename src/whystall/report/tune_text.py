"""A search over settings as text: what was tried, what won, how to keep it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from whystall.report.format import UNKNOWN, duration, plural
from whystall.report.probe_text import columns
from whystall.verify.tune.results import Trial, Tuning


def render_tuning(found: Tuning, command: str, lines: Sequence[str]) -> str:
    """The search as text; ``command`` and ``lines`` are how to keep what won."""
    parts = [_verdict(found)]
    if found.trials:
        parts.append(_table(found.trials))
    if found.left_out:
        parts.append("\n".join(f"not tried: {one.name}, {one.because}" for one in found.left_out))
    parts.append(
        f"{plural(len(found.trials), 'trial')}, {plural(found.runs, 'run')}; runs of the same settings differ by up to "
        f"{found.noise:.3f}; ended since {found.ended_because}"
    )
    if found.settings:
        parts.append("\n".join(["to keep it:", f"  {command}", *(f"  {line}" for line in lines)]))
    return "\n\n".join(parts) + "\n"


def _verdict(found: Tuning) -> str:
    confirmed = found.confirmed
    if not found.settings or confirmed is None or confirmed.speedup is None:
        step = duration(round(found.step_s * 1e9))
        return f"Nothing to gain: no setting made steps of {step} faster beyond the noise."
    interval = confirmed.interval
    bounds = "" if interval is None else f" ({interval.low:.2f} to {interval.high:.2f})"
    settings = ", ".join(f"{name}={value}" for name, value in found.settings.items())
    return f"{confirmed.speedup:.2f} times as fast{bounds} with {settings}."


def _table(trials: Sequence[Trial]) -> str:
    lines = [["setting", "before", "after", "times as fast", "pairs", ""]]
    notes = []
    for one in trials:
        lines.append([f"{one.name}={one.value}", *_cells(one), one.verdict])
        if one.because is not None:
            notes.append(f"{one.name}={one.value}: {one.because}")
    return "\n".join([columns(lines), *notes])


def _cells(one: Trial) -> list[str]:
    if one.speedup is None or not one.before_s or not one.after_s:
        return [UNKNOWN, UNKNOWN, UNKNOWN, str(len(one.after_s))]
    bounds = "" if one.interval is None else f" ({one.interval.low:.2f} to {one.interval.high:.2f})"
    before, after = (duration(round(median(times) * 1e9)) for times in (one.before_s, one.after_s))
    return [before, after, f"{one.speedup:.3f}{bounds}", str(len(one.after_s))]
