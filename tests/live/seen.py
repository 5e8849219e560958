"""Observations as a sentence: who was where for how long."""

from __future__ import annotations

from typing import Any

from whystall.live.observation import Look, Observation, ProcessUse, Stack, ThreadUse
from whystall.vocabulary.frames import Frame

PID = 100
SITE = "/venv/lib/python3.11/site-packages"
LOOP = Frame("train.py", 30, "main")


def stack(*frames: tuple[str, int, str]) -> Stack:
    return (LOOP, *(Frame(*frame) for frame in frames))


def torch(place: str, symbol: str) -> Stack:
    """The loop's line, and beneath it a function of torch's."""
    return stack((f"{SITE}/torch/{place}.py", 1, symbol))


WORKERS = stack(
    (f"{SITE}/torch/utils/data/dataloader.py", 700, "_BaseDataLoaderIter.__next__"),
    (f"{SITE}/torch/utils/data/dataloader.py", 1200, "_MultiProcessingDataLoaderIter._try_get_data"),
    ("/usr/lib/python3.11/multiprocessing/queues.py", 113, "Queue.get"),
    ("/usr/lib/python3.11/selectors.py", 415, "select"),
)
BATCHES = stack(
    (f"{SITE}/torch/utils/data/dataloader.py", 700, "_SingleProcessDataLoaderIter._next_data"),
    (f"{SITE}/torch/utils/data/_utils/fetch.py", 50, "_MapDatasetFetcher.fetch"),
    ("data.py", 12, "Signals.__getitem__"),
)
FORWARD = torch("nn/modules/linear", "Linear.forward")
BACKWARD = torch("autograd/graph", "_engine_run_backward")
OPTIMIZER = torch("optim/adam", "Adam.step")
OWN = stack(("metrics.py", 41, "distance"))


def thread(tid: int = PID, **more: Any) -> ThreadUse:
    told: dict[str, Any] = {"tid": tid, "name": "python", "on_core": 0.95, "late": 0.0, "on_disk": 0.0}
    return ThreadUse(**(told | more))


def process(pid: int = PID, *threads: ThreadUse, **more: Any) -> ProcessUse:
    told: dict[str, Any] = {"resident_bytes": (1 << 30, 1 << 30), "read_bytes": 0, "written_bytes": 0}
    return ProcessUse(pid=pid, threads=threads or (thread(pid),), **(told | more))


def looks(of: Stack, count: int = 10, *, ran: bool = True, holder: int | None = PID) -> list[Look]:
    return [Look(of, ran, holder)] * count


def seen(*ticks: tuple[Stack, int], **more: Any) -> Observation:
    """Ticks by stack, in turn every ten times."""
    told: dict[str, Any] = {
        "pid": PID,
        "seconds": 4.0,
        "cores": 8,
        "processes": {PID: process()},
        "training": PID,
        "ticks": [one for one, count in ticks for _ in range(count)],
        "looks": [],
        "children": {},
    }
    return Observation(**(told | more))
