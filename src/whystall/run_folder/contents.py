"""A run folder on disk: its files by rank, and each rank's description."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whystall.run_folder.description import read_document
from whystall.run_folder.layout import rank_files


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of a run, by rank."""

    path: Path
    traces: list[Path] = field(default_factory=list)
    samples: list[Path] = field(default_factory=list)
    ranks: list[dict[str, Any]] = field(default_factory=list)


def read_run_folder(path: Path) -> RunFolder:
    """The files of a run; a rank that was killed has samples but no description."""
    ranks = [rank for file in rank_files(path, "description") if (rank := read_document(file))]
    return RunFolder(path, rank_files(path, "trace"), rank_files(path, "samples"), ranks)


def overhead_sentences(folder: RunFolder) -> list[str]:
    """The cost of observation, for each rank that measured it."""
    out = []
    for rank in folder.ranks:
        cost = rank.get("overhead") or {}
        share = cost.get("hooks_share")
        if not isinstance(share, float):
            continue
        text = f"rank {rank.get('rank')}: watching cost {share:.2%} of the steps outside windows"
        threads = cost.get("threads_share")
        if isinstance(threads, float) and threads > 0:
            text += f", up to {share + threads:.2%} where our threads take a core or Python's lock from the job"
        paused, watched = cost.get("paused_ns"), cost.get("watched_ns")
        if isinstance(paused, int) and isinstance(watched, int) and 0 < paused <= watched:
            text += (
                f" and recording held the job up for {paused / 1e9:.3g} s, {paused / watched:.1%} of the time watched"
            )
        looked = cost.get("looked_ns")
        if isinstance(looked, int) and isinstance(watched, int) and 0 < looked <= watched:
            text += f"; checking for repeated computation took {looked / 1e9:.3g} s, {looked / watched:.1%}"
        ratio = cost.get("profiled_over_unprofiled")
        if isinstance(ratio, float):
            text += f"; steps under the profiler took {ratio:.2f} x as long (nothing is subtracted)"
        out.append(text)
    return out
