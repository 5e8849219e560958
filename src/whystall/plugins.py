"""Brings in what other packages add by entry points: rules, readers, sections. Each is loaded when it is asked for."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any


def brought(group: str, kind: type[Any], what: str) -> tuple[list[Any], list[str]]:
    """The objects of a group's entry points, in order of their names, and a sentence on each unusable one.

    An entry point names one object of ``kind`` or a collection of them. Any error in another package becomes a sentence
    and never costs the result.
    """
    found: list[Any] = []
    failures: list[str] = []
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        try:
            loaded = entry.load()
            given = [loaded] if isinstance(loaded, kind) else list(loaded)
        except Exception as error:  # noqa: BLE001 - another package's code
            failures.append(f"the {what} of {entry.name} could not be loaded: {error}")
            continue
        fitting = [one for one in given if isinstance(one, kind)]
        if len(fitting) < len(given):
            failures.append(f"the {what} of {entry.name} hold something else than a {kind.__name__}: it is left out")
        found += fitting
    return found, failures
