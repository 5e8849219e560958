"""Traces with a signal taken away: what stays must still be read rightly."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

Document: TypeAlias = dict[str, Any]
_SHAPES = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")


def _keep(document: Document, wanted: Callable[[Document], bool]) -> Document:
    return document | {"traceEvents": [event for event in document["traceEvents"] if wanted(event)]}


def _without_stacks(document: Document) -> Document:
    return _keep(document, lambda event: event.get("cat") != "python_function")


def _without_sync_events(document: Document) -> Document:
    return _keep(document, lambda event: event.get("cat") != "cuda_sync")


def _without_shapes(document: Document) -> Document:
    def bare(event: Document) -> Document:
        if event.get("cat") != "cpu_op":
            return event
        return event | {"args": {key: value for key, value in event["args"].items() if key not in _SHAPES}}

    return document | {"traceEvents": [bare(event) for event in document["traceEvents"]]}


REMOVALS: Mapping[str, Callable[[Document], Document]] = MappingProxyType(
    {
        "stacks": _without_stacks,
        "shapes": _without_shapes,
        "sync events": _without_sync_events,
    }
)
A_RANK, HALF = "a rank", "half the file"
ALL = (*REMOVALS, HALF, A_RANK)


def write_without(folder: Path, removed: str, target: Path) -> list[Path]:
    """The folder's traces without a signal; no path where nothing would change."""
    paths = sorted(folder.glob("rank*.trace.json.gz"))
    if removed == A_RANK:
        return paths[:-1]
    target.mkdir(parents=True, exist_ok=True)
    changed, written = False, []
    for path in paths:
        data = gzip.decompress(path.read_bytes())
        if removed == HALF:
            changed = True
            written.append(target / path.name.removesuffix(".gz"))
            written[-1].write_bytes(data[: len(data) // 2])
            continue
        document = json.loads(data)
        bare = REMOVALS[removed](document)
        changed |= bare != document
        written.append(target / path.name)
        written[-1].write_bytes(gzip.compress(json.dumps(bare).encode(), compresslevel=1, mtime=0))
    return written if changed else []
