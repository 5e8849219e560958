"""Reads ``run.json``: what a watched run said of its machine and its loaders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

NAME = "run.json"
_LARGEST_BYTES = 16 << 20


class RankFacts(msgspec.Struct, frozen=True):
    """One rank's part of ``run.json``, as far as analyses use it; what is missing or of another kind is ``None``."""

    cores_allowed: int | None
    torch_threads: int | None
    profiled_over_unprofiled: float | None
    loaders: tuple[dict[str, int | bool | None], ...]


def read_run_file(path: Path) -> list[RankFacts]:
    """The ranks of a run folder's ``run.json``; empty where there is none that can be read."""
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            return []
        document = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return []
    ranks = document.get("ranks") if isinstance(document, dict) else None
    return [_rank(rank) for rank in ranks if isinstance(rank, dict)] if isinstance(ranks, list) else []


def _rank(rank: dict[str, Any]) -> RankFacts:
    facts, overhead = _table(rank.get("facts")), _table(rank.get("overhead"))
    loaders = rank.get("loaders")
    ratio = overhead.get("profiled_over_unprofiled")
    return RankFacts(
        cores_allowed=_integer(facts.get("cores_allowed")),
        torch_threads=_integer(facts.get("torch_threads")),
        profiled_over_unprofiled=float(ratio) if isinstance(ratio, int | float) else None,
        loaders=tuple(
            {
                "workers": _integer(loader.get("workers")),
                "prefetch_factor": _integer(loader.get("prefetch_factor")),
                "persistent_workers": bool(loader.get("persistent_workers")),
                "pin_memory": bool(loader.get("pin_memory")),
            }
            for loader in (loaders if isinstance(loaders, list) else [])
            if isinstance(loader, dict)
        ),
    )


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else None
