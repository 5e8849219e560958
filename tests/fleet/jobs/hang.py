"""A gloo job of several ranks that hangs in a known way; every rank dumps its flight recorder, and then ends.

``hang.py FAULT FOLDER`` under torchrun's variables. Rank 1 is the one at fault: ``sleep`` never reaches the fourth all_reduce,
``skip`` leaves the fourth out and goes on with the next, ``other`` calls broadcast there, ``size`` brings another size,
``exit`` never waits for anything and ends early. A healthy rank is at rest inside a collective when it dumps.
"""

import json
import os
import pickle
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

GOOD = 3
GUILTY = 1


def train(fault: str, rank: int) -> None:
    for _ in range(GOOD):
        dist.all_reduce(torch.ones(8))
    gradient = torch.ones(16)
    if rank == GUILTY and fault == "sleep":
        threading.Event().wait()
    elif rank == GUILTY and fault == "other":
        dist.broadcast(gradient, src=0)  # the wrong collective
    elif rank == GUILTY and fault == "size":
        dist.all_reduce(torch.ones(32))  # the wrong size
    elif not (rank == GUILTY and fault == "skip"):
        dist.all_reduce(gradient)  # the gradients
    dist.all_gather([torch.empty(4) for _ in range(dist.get_world_size())], torch.ones(4))  # the metrics


def recorded() -> list[dict[str, object]]:
    entries: list[dict[str, object]] = pickle.loads(c10d._dump_fr_trace())["entries"]  # noqa: S301 - torch's own, of this process
    return entries


def dump(folder: Path, rank: int, world: int, expected: int) -> None:
    while len(recorded()) < expected:
        time.sleep(0.02)
    end = time.monotonic() + 1
    while time.monotonic() < end:  # until what can complete has
        time.sleep(0.05)
    for name, content in (("trace", c10d._dump_fr_trace()), ("trace_json", c10d._dump_fr_trace_json().encode() if isinstance(c10d._dump_fr_trace_json(), str) else c10d._dump_fr_trace_json())):
        (folder / f".{name}_{rank}").write_bytes(content)
        (folder / f".{name}_{rank}").rename(folder / f"{name}_rank_{rank}")
    while len(list(folder.glob("trace_json_rank_*"))) < world:
        time.sleep(0.02)
    os._exit(0)


def main(fault: str, folder: Path) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    expected = GOOD if fault == "sleep" and rank == GUILTY else GOOD + 1
    threading.Thread(target=dump, args=(folder, rank, world, expected), daemon=True).start()
    try:
        train(fault, rank)
    except RuntimeError as error:
        print("rank", rank, error, file=sys.stderr)
    threading.Event().wait()


main(sys.argv[1], Path(sys.argv[2]))
