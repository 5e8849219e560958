"""The local record of remedies that were tried: the prediction and the measurement.

It lies under the user's data folder, one JSON line a remedy. Later predictions for a cause get an interval that
contains its remedies' real gains here, once enough of them were judged by the right statistic. They remove no finding:
a failed remedy is little evidence against the cause.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from whystall.diagnosis.causes import Statistic
from whystall.disk import writing
from whystall.disk.owned import is_own_file
from whystall.disk.reading import content
from whystall.json_text import NotJsonError, parse_json

VARIABLE: Final = "WHYSTALL_DATA"
_FILE: Final = "remedies.jsonl"
_LARGEST_BYTES: Final = 8 << 20
_FEWEST: Final = 3
# One bad measurement must not turn a prediction upside down.
_LEAST, _MOST = 0.0, 1.5


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """One remedy: its cause, the predicted speed-up if one was known, and the measured one.

    ``statistic`` is the steps' statistic that measured it; ``None``: not by steps, or by an earlier version of
    whystall.
    """

    cause: str
    predicted: float | None
    measured: float
    low: float
    high: float
    unix_s: int
    statistic: Statistic | None = None


def record_file(environment: dict[str, str] | None = None) -> Path:
    """Where remedies are recorded: ``$WHYSTALL_DATA``, else the user's data folder."""
    variables = os.environ if environment is None else environment
    if variables.get(VARIABLE):
        return Path(variables[VARIABLE]) / _FILE
    base = variables.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "whystall" / _FILE


def append(path: Path, tried: Tried) -> None:
    """Adds a remedy. Raises ``OSError`` where that cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writing.append(path, msgspec.json.encode(tried) + b"\n")


def read(path: Path) -> list[Tried]:
    """All remedies; unreadable ones are left out."""
    try:
        if not is_own_file(path):
            return []
        lines = content(path, _LARGEST_BYTES).splitlines()
    except OSError:
        return []
    out = []
    for line in lines:
        try:
            out.append(parse_json(line, type=Tried))
        except NotJsonError:
            continue
    return out


def brought(tried: Sequence[Tried], statistic: Callable[[str], Statistic]) -> dict[str, tuple[float, float]]:
    """The least and the largest ratio of real to predicted gain of each cause's remedies (of speed-up minus one).

    Only outcomes count that were measured by the ``statistic`` that shows the cause.

    >>> row = dict(cause="host.sync", predicted=1.2, low=1.0, high=2.0, unix_s=0, statistic="median")
    >>> brought([Tried(measured=measured, **row) for measured in (1.1, 1.2, 1.15)], lambda cause: "median")
    {'host.sync': (0.5, 1.0)}
    """
    found: dict[str, list[float]] = {}
    for one in tried:
        known = one.predicted is not None and one.predicted > 1.005 and one.measured > 0
        if known and one.predicted is not None and one.statistic == statistic(one.cause):
            found.setdefault(one.cause, []).append((one.measured - 1) / (one.predicted - 1))
    return {
        cause: (_limited(min(ratios)), _limited(max(ratios)))
        for cause, ratios in found.items()
        if len(ratios) >= _FEWEST
    }


def _limited(ratio: float) -> float:
    return round(min(max(ratio, _LEAST), _MOST), 4)
