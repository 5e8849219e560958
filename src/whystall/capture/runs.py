"""The run folder after the job: what its processes wrote, joined into ``run.json``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from whystall._version import __version__
from whystall.capture.launch import Launch

RUN_SCHEMA: Final = "whystall.run/1"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """What a run left behind, by rank."""

    path: Path
    traces: list[Path] = field(default_factory=list)
    samples: list[Path] = field(default_factory=list)
    ranks: list[dict[str, Any]] = field(default_factory=list)


def read_run_folder(path: Path) -> RunFolder:
    """The files of a run; a rank that was killed has samples but no description."""
    ranks = []
    for file in sorted(path.glob("rank*.run.json")):
        try:
            ranks.append(msgspec.json.decode(file.read_bytes(), type=dict[str, Any]))
        except (OSError, msgspec.DecodeError):
            continue
    return RunFolder(
        path,
        traces=sorted(path.glob("rank*.trace.json.gz")),
        samples=sorted(path.glob("rank*.samples.jsonl")),
        ranks=ranks,
    )


def describe_run(folder: RunFolder, *, launch: Launch, exit_code: int, began_unix_ns: int, schedule: Any) -> bytes:
    """``run.json``. Folders and arguments of the command are left out: they may hold secrets."""
    document = {
        "schema": RUN_SCHEMA,
        "whystall": __version__,
        "kind": launch.kind,
        "command": launch.what,
        "exit_code": exit_code,
        "began_unix_ns": began_unix_ns,
        "schedule": schedule,
        "ranks": folder.ranks,
        "traces": [path.name for path in folder.traces],
        "samples": [path.name for path in folder.samples],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def overhead_sentences(folder: RunFolder) -> list[str]:
    """What observation cost, per rank that knows."""
    out = []
    for rank in folder.ranks:
        cost = rank.get("overhead") or {}
        share = cost.get("hooks_share")
        if not isinstance(share, float):
            continue
        text = f"rank {rank.get('rank')}: watching cost {share:.2%} of the steps outside windows"
        ratio = cost.get("profiled_over_unprofiled")
        if isinstance(ratio, float):
            text += f"; steps under the profiler took {ratio:.2f} x as long (nothing is subtracted)"
        out.append(text)
    return out
