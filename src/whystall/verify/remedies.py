"""The local record of remedies that were tried: what was predicted, what was measured.

It lies under the user's data folder, one JSON line a remedy. Later predictions for a cause are scaled by what its
remedies brought here, once there are enough of them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

VARIABLE: Final = "WHYSTALL_DATA"
_FILE: Final = "remedies.jsonl"
_LARGEST_BYTES: Final = 8 << 20
_FEWEST: Final = 3
# One bad measurement must not turn a prediction upside down.
_LEAST, _MOST = 0.3, 1.5


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """One remedy: the cause it was for, the predicted speed-up if one was known, and the measured one."""

    cause: str
    predicted: float | None
    measured: float
    low: float
    high: float
    unix_s: int


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
    with path.open("ab") as file:
        file.write(msgspec.json.encode(tried) + b"\n")


def read(path: Path) -> list[Tried]:
    """All remedies; what cannot be read is left out."""
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            return []
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    out = []
    for line in lines:
        try:
            out.append(msgspec.json.decode(line, type=Tried))
        except msgspec.DecodeError:
            continue
    return out


def scales(tried: list[Tried]) -> dict[str, float]:
    """Per cause what its remedies brought of what was predicted (of speed-up minus one), in the median of some.

    >>> row = dict(low=1.0, high=2.0, unix_s=0)
    >>> scales([Tried(cause="host.sync", predicted=1.2, measured=1.1, **row)] * 3)
    {'host.sync': 0.5}
    """
    found: dict[str, list[float]] = {}
    for one in tried:
        if one.predicted is not None and one.predicted > 1.005 and one.measured > 0:
            found.setdefault(one.cause, []).append((one.measured - 1) / (one.predicted - 1))
    return {
        cause: round(min(max(float(np.median(ratios)), _LEAST), _MOST), 4)
        for cause, ratios in found.items()
        if len(ratios) >= _FEWEST
    }
