"""Builds dumps of the flight recorder as torch writes them, with known truth."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

NAME = "0", "default_pg"
TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
START_NS = 1_700_000_000_000_000_000


class Job:
    """What each rank's recorder holds; a rank's calls are numbered by group, as the recorder does."""

    def __init__(self, ranks: int, *, library: str = "nccl", version: str = "2.10") -> None:
        self.ranks = tuple(range(ranks))
        self.library = library
        self.version = version
        self.entries: dict[int, list[dict[str, Any]]] = {rank: [] for rank in self.ranks}
        self.groups: dict[str, dict[str, str]] = {}
        self.group(NAME, self.ranks)

    def group(self, name: tuple[str, str], ranks: tuple[int, ...]) -> Job:
        self.groups[name[0]] = {"name": name[0], "desc": name[1], "ranks": str(list(ranks))}
        return self

    def call(self, operation: str, *, ranks: tuple[int, ...] | None = None, **options: Any) -> Job:
        for rank in self.ranks if ranks is None else ranks:
            self.one(rank, operation, **options)
        return self

    def one(
        self,
        rank: int,
        operation: str,
        *,
        line: int = 10,
        size: tuple[int, ...] = (8,),
        dtype: str = "Float",
        state: str = "completed",
        at_ms: float | None = None,
        group: tuple[str, str] = NAME,
        p2p: bool = False,
        count: int = 1,
    ) -> None:
        """One call; ``count`` operations that were coalesced under one number."""
        own = self.entries[rank]
        kind = "p2p_seq_id" if p2p else "collective_seq_id"
        before = {one[kind] for one in own if one["process_group"] == group and one["is_p2p"] == p2p}
        sequence = len(before) + 1
        created = START_NS + round((len(own) * 10 if at_ms is None else at_ms) * 1e6)
        for _ in range(count):
            own.append(
                {
                    "record_id": len(own),
                    "pg_id": int(group[0]),
                    "process_group": group,
                    "collective_seq_id": 0 if p2p else sequence,
                    "p2p_seq_id": sequence if p2p else 0,
                    "op_id": len(own) + 1,
                    "profiling_name": f"{self.library}:{operation}",
                    "time_created_ns": created,
                    "input_sizes": [list(size)],
                    "input_dtypes": [dtype],
                    "output_sizes": [list(size)],
                    "output_dtypes": [dtype],
                    "state": state,
                    "time_discovered_started_ns": None,
                    "time_discovered_completed_ns": None,
                    "retired": state == "completed",
                    "timeout_ms": 600_000,
                    "is_p2p": p2p,
                    "frames": [
                        {"name": "all_reduce", "filename": TORCH, "line": 1},
                        {"name": "step", "filename": "/home/me/train.py", "line": line},
                    ],
                }
            )

    def body(self, rank: int) -> dict[str, Any]:
        return {
            "version": self.version,
            "comm_lib_version": "2.27.3",
            "pg_config": self.groups,
            "pg_status": {"0": {"last_enqueued_collective": len(self.entries[rank])}},
            "entries": self.entries[rank],
        }

    def write(self, folder: Path, *, form: str = "pickle", without: tuple[int, ...] = ()) -> Path:
        for rank in self.ranks:
            if rank not in without:
                body = self.body(rank)
                data = pickle.dumps(body, protocol=2) if form == "pickle" else as_json(body)
                (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
        return folder


def as_json(body: dict[str, Any]) -> bytes:
    """The same dump as torch writes it in JSON: no stacks, 0 for unknown times, text for the groups' states."""
    entries = [
        {key: 0 if value is None else value for key, value in one.items() if key != "frames"} for one in body["entries"]
    ]
    status = {name: {key: str(value) for key, value in one.items()} for name, one in body["pg_status"].items()}
    told = body | {"entries": entries, "pg_status": status}
    if not entries:
        del told["entries"]
    return json.dumps(told).encode()
