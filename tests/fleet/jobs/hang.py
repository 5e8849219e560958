"""A gloo job of several ranks that hangs in a known way; every rank dumps its flight recorder, and then ends.

``hang.py FAULT FOLDER`` with torchrun's variables. In the third round rank 1 does not reduce the gradients as the
others do: ``sleep`` never comes to it, ``skip`` leaves it out and goes on, ``other`` calls broadcast
instead; with ``none`` it does.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

c10d: Any = _distributed_c10d  # its dumps are not in torch's stubs
ROUNDS = 3
GUILTY = 1


def reduce_gradients(fault: str | None) -> None:
    gradients = torch.ones(16)
    if fault == "sleep":
        threading.Event().wait()  # line of the sleeper
    elif fault == "other":
        dist.broadcast(gradients, src=0)  # line of the wrong call
    elif fault != "skip":
        dist.all_reduce(gradients)  # line of the gradients


def gather_metrics() -> None:
    metrics = [torch.empty(4) for _ in range(dist.get_world_size())]
    dist.all_gather(metrics, torch.ones(4))  # line of the metrics


def train(fault: str, rank: int) -> None:
    for number in range(ROUNDS):
        reduce_gradients(fault if rank == GUILTY and number == ROUNDS - 1 else None)
        gather_metrics()


def recorded() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = pickle.loads(c10d._dump_fr_trace())["entries"]  # noqa: S301 - torch's own
    return entries


def dump(folder: Path, rank: int, world: int, expected: int, ended: int) -> None:
    """Dumps once all that this rank will ever call is recorded and the rest has ended; ends with the others."""
    while len(entries := recorded()) < expected or not all(one["retired"] for one in entries[:ended]):
        time.sleep(0.02)
    for form, content in (("pickle", c10d._dump_fr_trace()), ("json", c10d._dump_fr_trace_json())):
        partial = folder / f".{form}_{rank}"
        partial.write_bytes(content)
        partial.rename(folder / form / f"trace_rank_{rank}")
    while len(list((folder / "json").iterdir())) < world:
        time.sleep(0.02)
    os._exit(0)


def main(fault: str, folder: Path) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    at_last = {"none": 2, "sleep": 0 if rank == GUILTY else 1}.get(fault, 1)
    expected = 2 * (ROUNDS - 1) + at_last
    threading.Thread(
        target=dump,
        args=(folder, rank, world, expected, expected if fault == "none" else 2 * (ROUNDS - 1)),
        daemon=True,
    ).start()
    try:
        train(fault, rank)
    except RuntimeError as error:  # gloo notices some mistakes by itself
        print("rank", rank, error, file=sys.stderr)
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
