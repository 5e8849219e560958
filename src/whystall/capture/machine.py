"""Observations of the machine by a thread beside the job, about once a second: workers, cores, devices."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any, Final

from whystall.capture import clock
from whystall.capture.devices import NoDevices, NvmlDevices, allocator, devices, nvml
from whystall.capture.own_thread import OwnThread
from whystall.capture.watched import Watched

_EVERY_S: Final = 1.0
_LOOK_EVERY_S: Final = 0.25
# Over a long run the lines become rarer, so that they stay a small part of the file.
_SLOWER_AFTER: Final = 600
_SLOWEST_S: Final = 30.0
_MOST_THREADS: Final = 64
_HEAD_OF_CPUINFO: Final = 2_048


class MachineSampler:
    """A daemon thread that writes a line now and then; it takes no lock that the job could wait for."""

    def __init__(self, session: Watched, torch: Any) -> None:
        self._session = session
        self._torch = torch
        self._devices: NoDevices | NvmlDevices | None = None
        self._nvml: Any = None
        self._thread = OwnThread(self._run)
        self._lines = 0
        self.cpu_ns = 0
        """How long this thread has computed."""

    def start(self) -> None:
        """Starts, after its imports.

        A later import beside the job's own could meet one that is half done.
        """
        self._nvml = nvml()
        self._thread.start()

    def stop(self) -> None:
        """Ends; waits for a line that is being written."""
        self._thread.stop(2.0)

    def _run(self) -> None:
        guard = self._session.faults.guard
        if self._devices is None:
            self._devices = devices(self._nvml, self._torch)
        before_ns = self.cpu_ns  # of the thread before a fork
        sample, look = guard("sampler", self._sample), guard("requests", self._session.look_around)
        due = clock.monotonic()
        while not self._thread.rests(_LOOK_EVERY_S):
            look()
            self.cpu_ns = before_ns + clock.thread_time_ns()
            if clock.monotonic() >= due and self._session.steps > 0:
                sample()
                due = clock.monotonic() + min(_EVERY_S * 2 ** (self._lines // _SLOWER_AFTER), _SLOWEST_S)

    def _sample(self) -> None:
        self._lines += 1
        line: dict[str, Any] = {"at_unix_ns": clock.time_ns(), "step": self._session.steps}
        workers = _children()
        if workers:
            line["children"] = workers
        threads = _threads(self._session.stepping_thread)
        if threads:
            line["threads"] = threads
        line["cpu_ticks"] = _cpu_ticks()
        said = {"devices": self._devices.sample() if self._devices else [], "allocator": allocator(self._torch)}
        line |= {key: values for key, values in said.items() if values}
        self._session.write_line(line)


def _children() -> list[tuple[int, str, int]]:
    """Each child process (data loader workers among them): id, state letter, CPU ticks so far."""
    out = []
    for task in Path("/proc/self/task").iterdir():
        try:
            pids = (task / "children").read_text("ascii").split()
        except OSError:
            continue
        for pid in pids[:64]:
            row = _task(f"/proc/{pid}/stat")
            if row is not None:
                out.append((int(pid), *row))
    return out


def _threads(stepping: int | None) -> list[tuple[int, str, int]]:
    """Each further Python thread (ours left out): its id, state letter, CPU ticks so far."""
    # Numbers and names at once: a thread that is over is not kept by us while files are read.
    known = [(thread.native_id, thread.ident, thread.name) for thread in threading.enumerate()]
    out = []
    for native, ident, name in known[:_MOST_THREADS]:
        if native is None or ident == stepping or name.startswith("whystall-"):
            continue
        row = _task(f"/proc/self/task/{native}/stat")
        if row is not None:
            out.append((native, *row))
    return out


def _task(path: str) -> tuple[str, int] | None:
    """State letter and CPU ticks of a process or thread; ``None`` when it is gone."""
    try:
        fields = Path(path).read_text("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[11]) + int(fields[12])


def _cpu_ticks() -> tuple[int, int]:
    """Ticks so far in which the machine's cores were busy, and those of this process and its children."""
    fields = [int(field) for field in Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()[1:9]]
    idle, waiting = fields[3], fields[4]
    own = os.times()
    mine = round((own.user + own.system + own.children_user + own.children_system) * os.sysconf("SC_CLK_TCK"))
    return sum(fields) - idle - waiting, mine + sum(ticks for _, _, ticks in _children())


def facts(torch: Any) -> dict[str, Any]:
    """Facts that are constant during a run: threads, cores, limits, devices."""
    return {
        "torch_threads": torch.get_num_threads(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cores_allowed": len(os.sched_getaffinity(0)),
        "cores_own": sorted(os.sched_getaffinity(0)),
        "ranks_here": os.environ.get("LOCAL_WORLD_SIZE"),
        "cgroup_cpu_max": _first_line("/sys/fs/cgroup/cpu.max"),
        "cgroup_memory_max": _first_line("/sys/fs/cgroup/memory.max"),
        # Transformers imports it only for those who ask for it.
        "trainer": "transformers" if "transformers.trainer" in sys.modules else None,
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if _cuda_in_use(torch)
        else [],
    }


def _cpu_model(path: str = "/proc/cpuinfo") -> str | None:
    """The CPU's name; an ARM core has numbers alone. With many cores the file is long: only its head is read."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            rows = [line.partition(":") for line in file.read(_HEAD_OF_CPUINFO).splitlines()]
    except OSError:
        return None
    said = {key.strip(): value.strip() for key, _, value in rows}
    if said.get("model name"):
        return said["model name"]
    numbers = [said[key] for key in ("CPU implementer", "CPU part") if said.get(key)]
    return f"CPU {' '.join(numbers)}" if len(numbers) == 2 else None


def _cuda_in_use(torch: Any) -> bool:
    return bool(torch.cuda.is_initialized() and torch.cuda.is_available())


def _first_line(path: str) -> str | None:
    try:
        return Path(path).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
