"""What holds of every report, whatever it says: checked on ``report.json`` of each case that is judged.

A gain that leaves the device's work as it is cannot exceed window / busy, one of communication not window / compute;
shares lie within the whole; floor ≤ expected ≤ ceiling; what is saved was spent; findings come in order of worth; the
replayed step is as long as the measured one; and no rule fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

_SLACK = 1.01
"""Rounding, and steps that are replayed apart from those that are counted."""
_SAVED = 1.06
"""What is saved beside the cause's own time, by what no longer waits for it: more is to be said in the evidence."""
_AS_LONG = 1.05
"""How many times as long a replayed step may be as the longest that was measured, or the shortest as it."""
_MOVES_WORK = frozenset({"host.pageable-copy", "host.recompile"})
"""Causes of the host whose cure takes work from the device as well."""


def broken(report: dict[str, Any]) -> tuple[str, ...]:
    """What does not hold of a report; nothing where all does."""
    return (*_of_source(report), *_of_devices(report), *_of_findings(report), *_of_order(report))


def _of_source(report: dict[str, Any]) -> Iterator[str]:
    for warning in report["source"]["warnings"]:
        if "error in whystall" in warning:
            yield warning
    for name in ("mfu", "hfu", "tensor_core_share"):
        value = (report.get("efficiency") or {}).get(name)
        if value is not None and not 0 <= value <= 1:
            yield f"{name} is {value}"


def _of_devices(report: dict[str, Any]) -> Iterator[str]:
    for device in report["devices"]:
        if not 0 <= device["compute_ns"] <= device["busy_ns"] <= device["window_ns"]:
            yield f"device {device['device']}: computes, is busy and is seen in no order"
        if sum(device["ledger"].values()) != device["window_ns"]:
            yield f"device {device['device']}: the ledger is not the window"


def _of_findings(report: dict[str, Any]) -> Iterator[str]:
    for finding in report["findings"]:
        for row in finding["evidence"]:
            if row.get("unit") == "share" and not 0 <= float(row["value"]) <= 1:
                yield f"{finding['id']}: {row['what']} is {row['value']}"
        if finding.get("gain") is not None:
            yield from (f"{finding['id']}: {what}" for what in _of_gain(report, finding, finding["gain"]))


def _of_gain(report: dict[str, Any], finding: dict[str, Any], gain: dict[str, Any]) -> Iterator[str]:
    name, expected = finding["id"], gain["expected"]
    if not 1 <= gain["floor"] <= expected <= gain["ceiling"]:
        yield f"{gain['floor']} to {gain['ceiling']} around {expected}"
    if finding["severity"] == "info":
        return
    if gain["method"].startswith("replay"):
        saved = (gain.get("step_ns") or 0) * (1 - 1 / expected)
        said = any(row["what"].startswith("saved beyond its own time") for row in finding["evidence"])
        if not said and saved > finding["attributed_ns_per_step"] * _SAVED + 1_000:
            yield f"saves {saved:.0f} ns of {finding['attributed_ns_per_step']}"
        steps = [step["window_ns"] for device in report["devices"] for step in device["steps"]]
        replayed = gain.get("step_ns") or 0
        if gain.get("of") == "step" and steps and not min(steps) <= replayed * _AS_LONG <= max(steps) * _AS_LONG**2:
            yield f"a replayed step of {replayed} ns, where measured ones take {min(steps)} to {max(steps)}"
    bound = _bound(report, name)
    if expected > bound * _SLACK:
        yield f"gains {expected} where the devices' own work allows {bound:.3f}"


def _bound(report: dict[str, Any], cause: str) -> float:
    """The largest gain that leaves the devices' work in place: of the recording, or of one of its steps."""
    one_rank = len({device["rank"] for device in report["devices"]}) == 1
    if cause.startswith("communication."):
        work = "compute_ns"
    elif cause.startswith(("host.", "input.")) and cause not in _MOVES_WORK and one_rank:
        work = "busy_ns"
    else:
        return math.inf
    places = [*report["devices"], *(step for device in report["devices"] for step in device["steps"])]
    return max((place["window_ns"] / max(place[work], 1) for place in places), default=math.inf)


def _of_order(report: dict[str, Any]) -> Iterator[str]:
    """A general cause counts for what it adds to the specific ones, which its line says."""
    worth = [
        (finding["id"], gain["expected"] if gain.get("adds") is None else 1 / (1 - gain["adds"]))
        for finding in report["findings"]
        if finding["severity"] != "info" and (gain := finding.get("gain")) is not None
    ]
    for (before, more), (after, less) in pairwise(worth):
        if less > more:
            yield f"{after} ({less}) comes after {before} ({more})"
