"""Brings in what other packages add by entry points: rules, readers, sections. Each is loaded when it is asked for."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from importlib import metadata
from importlib.metadata import EntryPoints
from typing import Any

_Places = tuple[tuple[str, int | None], ...]


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


def entry_points(*, group: str) -> EntryPoints:
    """The entry points of a group, in the packages that are installed now.

    Reading those of a hundred packages takes 30 ms: they are read again after a package was installed or removed.
    """
    return _of_group(group, tuple((place, _changed_ns(place)) for place in sys.path))


@lru_cache(maxsize=16)
def _of_group(group: str, places: _Places) -> EntryPoints:
    found: EntryPoints = _installed(places).select(group=group)
    return found


@lru_cache(maxsize=1)
def _installed(_: _Places) -> Any:  # another type before Python 3.12
    return metadata.entry_points()


def _changed_ns(place: str) -> int | None:
    """The time at which a folder of packages last got or lost one; ``None`` where there is no such folder."""
    try:
        return os.stat(place or os.curdir).st_mtime_ns  # noqa: PTH116 - a `Path` of each takes longer than the rest
    except OSError:
        return None
