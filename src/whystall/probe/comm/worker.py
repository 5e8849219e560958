"""A process of a sweep: ``python -m whystall.probe.comm.worker FOLDER RANK``, or a rank of a torchrun job.

The folder's ``plan.json`` is its task. Each rank writes its progress and the reason of a failure there, rank 0 the
result: the starting process needs no connection to it.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from whystall.json_text import parse_json
from whystall.probe.comm.fit import fits
from whystall.probe.comm.plan import Plan, groups_of
from whystall.probe.comm.results import CommProbe, Measured, Network, NotMeasured
from whystall.probe.comm.sweep import Member, sweep
from whystall.probe.device import cpu_name, machine_name

PLAN: Final = "plan.json"
RESULT: Final = "result.json"
STORE: Final = "store"
_LOOPBACK: Final = "lo0" if sys.platform == "darwin" else "lo"
LOOPBACK: Final = {"GLOO_SOCKET_IFNAME": _LOOPBACK, "NCCL_SOCKET_IFNAME": f"={_LOOPBACK}", "NCCL_IB_DISABLE": "1"}
"""Variables that keep gloo and NCCL on this machine."""
GAVE_UP: Final = 75  # the exit code of a process that stopped waiting, EX_TEMPFAIL of sysexits.h
_GRACE_S: Final = 5.0


def main(folder: Path, rank: int) -> int:
    """Takes part in the sweep that the folder describes; 0, or 1 with the reason in ``rank<R>.error``."""
    plan = parse_json((folder / PLAN).read_bytes(), type=Plan)
    _end_with_parent(plan.timeout_s + _GRACE_S)
    at = folder / f"rank{rank}.at"
    try:
        import torch.distributed as dist  # noqa: PLC0415 - takes seconds

        store = dist.FileStore(str(folder / STORE), plan.ranks)  # listens on no port
        found = _take_part(plan, rank, rank, lambda text: _replace(at, text), "loopback", {"store": store})
    except (RuntimeError, OSError, ImportError, ValueError, NotImplementedError) as error:
        _replace(folder / f"rank{rank}.error", (str(error).splitlines() or [type(error).__name__])[0][:300])
        return 1
    if rank == 0:
        _replace(folder / RESULT, msgspec.json.encode(found).decode())
    return 0


def take_part_in_job(plan: Plan, give_up: Callable[[str], NoReturn]) -> CommProbe:
    """This rank's part in a job that torchrun started, with torchrun's variables; every rank gets the result.

    ``give_up`` is called with where this rank stands, from a thread, once the time is over. Raises ``RuntimeError``
    where a peer is lost.
    """
    where = ["the start"]
    late = threading.Timer(plan.timeout_s, lambda: give_up(where[0]))
    late.daemon = True
    late.start()
    here = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
    for name, value in LOOPBACK.items() if here else ():
        os.environ.setdefault(name, value)
    interfaces = {os.environ.get(f"{library}_SOCKET_IFNAME", "").lstrip("=") for library in ("GLOO", "NCCL")}
    alone = here and interfaces == {_LOOPBACK}
    network: Network = "loopback" if alone else "job"
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    try:
        return _take_part(plan, rank, local, lambda text: where.__setitem__(0, text), network, {})
    finally:
        late.cancel()


def _take_part(
    plan: Plan,
    rank: int,
    local_rank: int,
    at: Callable[[str], None],
    network: Network,
    joining: dict[str, Any],
) -> CommProbe:
    import torch  # noqa: PLC0415 - takes seconds
    import torch.distributed as dist  # noqa: PLC0415

    at("the start")
    gpu = plan.backend == "nccl"
    device = torch.device(f"cuda:{local_rank}" if gpu else "cpu")
    if gpu:
        torch.cuda.set_device(device)
    limit = dt.timedelta(seconds=plan.timeout_s)
    dist.init_process_group(plan.backend, rank=rank, world_size=plan.ranks, timeout=limit, **joining)
    try:
        with torch.inference_mode():
            members, group = _group(dist, plan, rank)
            rows = list(sweep(Member(torch, dist, device, rank, plan.ranks, at, members, group), plan))
    finally:
        dist.destroy_process_group()
    results = [row for row in rows if isinstance(row, Measured)]
    return CommProbe(
        backend=plan.backend,
        ranks=plan.ranks,
        device=torch.cuda.get_device_name(device) if gpu else cpu_name(),
        kind="gpu" if gpu else "cpu",
        machine=machine_name(),
        network=network,
        split=plan.split,
        torch=str(torch.__version__),
        measured_on=dt.datetime.now(dt.UTC).date().isoformat(),
        results=results,
        fits=fits(results),
        skipped=[row for row in rows if isinstance(row, NotMeasured)],
    )


def _group(dist: Any, plan: Plan, rank: int) -> tuple[list[int], Any]:
    """The ranks of this one's group, and the group; ``None`` where all are one. All ranks make all groups."""
    groups = groups_of(plan.ranks, plan.split)
    if len(groups) == 1:
        return groups[0], None
    made = [(members, dist.new_group(members)) for members in groups]
    return next((members, group) for members, group in made if rank in members)


def _end_with_parent(limit_s: float) -> None:
    """Ends this process when the one that started it is gone, and at the latest when the time is over."""
    parent, end = os.getppid(), time.monotonic() + limit_s

    def watch() -> None:
        while os.getppid() == parent and time.monotonic() < end:
            time.sleep(0.5)
        os._exit(GAVE_UP)

    threading.Thread(target=watch, daemon=True).start()


def _replace(path: Path, text: str) -> None:
    staged = path.with_name(f".{path.name}.part")
    staged.write_text(text, "utf-8")
    staged.replace(path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
