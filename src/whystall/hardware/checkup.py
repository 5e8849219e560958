"""This machine's support for capturing and analysing, checked without importing torch or touching a device."""

from __future__ import annotations

import ast
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from whystall.json_text import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path("/")
LOW_DISK_BYTES = 1 << 30  # a captured step of a large model is some 100 MB of trace
TORCH_TIMEOUT_S = 120
ASK_TORCH = """\
import json, torch
from torch.profiler import supported_activities
devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(json.dumps([devices, sorted(a.name for a in supported_activities())]))
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its result, and the remedy where it falls short."""

    name: str
    status: Literal["ok", "warning", "missing"]
    found: str
    advice: str | None = None


def checkup(*, import_torch: bool = False) -> list[Check]:
    """Every check, in the order of ``CHECKS``; ``import_torch`` also runs torch, in a process of its own."""
    checks = [check() for check in CHECKS]
    return [*checks, ask_torch()] if import_torch else checks


def python() -> Check:
    """The Python that runs."""
    return Check("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def torch() -> Check:
    """The torch that a capture would use, from its files alone."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Check("torch", "missing", "not installed", "needed to capture; analysing traces works without it")
    return Check("torch", "ok", f"{version}, built for {_torch_build()}")


def _torch_build() -> str:
    facts = _torch_version_facts()
    if facts.get("cuda"):
        return f"CUDA {facts['cuda']}"
    if facts.get("hip"):
        return f"ROCm {facts['hip']}"
    return "the CPU"


def _torch_version_facts() -> dict[str, str | None]:
    """The constants of ``torch/version.py``, read and not run."""
    spec = util.find_spec("torch")
    folders = list(spec.submodule_search_locations or []) if spec else []
    facts: dict[str, str | None] = {}
    for folder in folders:
        try:
            tree = ast.parse((Path(folder) / "version.py").read_text(encoding="utf-8"))
        except (OSError, SyntaxError):
            continue
        for node in tree.body:
            target, value = _assignment(node)
            if target is not None and isinstance(value, ast.Constant) and isinstance(value.value, str | None):
                facts[target] = value.value
    return facts


def _assignment(node: ast.stmt) -> tuple[str | None, ast.expr | None]:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id, node.value
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id, node.value
    return None, None


def accelerator(root: Path = ROOT) -> Check:
    """The device nodes that the driver made."""
    nodes = sorted(node.name for node in (root / "dev").glob("nvidia[0-9]*"))
    if nodes:
        return _access("accelerator", [root / "dev" / node for node in nodes], f"NVIDIA: {', '.join(nodes)}")
    if (root / "dev" / "kfd").exists():
        return _access("accelerator", [root / "dev" / "kfd"], "AMD: kfd")
    return Check("accelerator", "missing", "no NVIDIA or AMD device", "captures here show the CPU alone")


def _access(name: str, nodes: list[Path], found: str) -> Check:
    closed = [node for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    if closed:
        return Check(name, "warning", found, f"no access to {closed[0]}: add your user to its group")
    return Check(name, "ok", found)


def driver(root: Path = ROOT) -> Check:
    """The NVIDIA driver's version."""
    try:
        line = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        return Check("NVIDIA driver", "missing", "not loaded")
    return Check("NVIDIA driver", "ok", line.removeprefix("NVRM version: ").strip())


def cupti(root: Path = ROOT) -> Check:
    """The library that records kernels; without it a trace has no GPU events."""
    for library in _cupti_libraries(root):
        return Check("CUPTI", "ok", str(library))
    return Check(
        "CUPTI", "missing", "not found", "on an NVIDIA machine install nvidia-cuda-cupti; no kernels otherwise"
    )


def _cupti_libraries(root: Path) -> Iterator[Path]:
    for folder in sys.path:
        yield from sorted(Path(folder).glob("nvidia/cu*/lib/libcupti.so*"))
        yield from sorted(Path(folder).glob("torch/lib/libcupti*.so*"))
    yield from sorted(root.glob("usr/local/cuda*/extras/CUPTI/lib64/libcupti.so*"))


def counters(root: Path = ROOT) -> Check:
    """Whether hardware counters are open to users. Timelines do not need them."""
    try:
        parameters = (root / "proc/driver/nvidia/params").read_text(encoding="utf-8")
    except OSError:
        return Check("GPU counters", "missing", "no NVIDIA driver")
    if "RmProfilingAdminOnly: 1" in parameters and os.geteuid() != 0:
        advice = "timelines work; counters need NVreg_RestrictProfilingToAdminUsers=0"
        return Check("GPU counters", "warning", "open to administrators alone", advice)
    return Check("GPU counters", "ok", "open")


def nvml() -> Check:
    """The package that samples power, clocks and memory."""
    try:
        version = metadata.version("nvidia-ml-py")
    except metadata.PackageNotFoundError:
        return Check(
            "nvidia-ml-py", "missing", "not installed", "pip install 'whystall[nvidia]' to sample clocks and power"
        )
    return Check("nvidia-ml-py", "ok", version)


def cache_folder() -> Check:
    """Whether parsed traces can be kept."""
    from whystall.trace.cache import default_folder  # noqa: PLC0415 - loads polars, which no other check needs

    folder = default_folder().absolute()
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        return Check("cache", "warning", f"{folder} cannot be written", "traces are read again each time")
    return Check("cache", "ok", str(folder))


def disk() -> Check:
    """Room for traces in the working folder."""
    free = shutil.disk_usage(Path.cwd()).free
    found = f"{free / (1 << 30):.1f} GiB free in the working folder"
    if free < LOW_DISK_BYTES:
        return Check("disk", "warning", found, "a large model's trace may not fit")
    return Check("disk", "ok", found)


CHECKS: tuple[Callable[[], Check], ...] = (
    python,
    torch,
    accelerator,
    driver,
    cupti,
    counters,
    nvml,
    cache_folder,
    disk,
)


def ask_torch() -> Check:
    """The answer of torch itself, from a process of its own, so that its crash is not ours."""
    name = "torch, asked"
    try:
        answer = subprocess.run(  # noqa: S603 - our own interpreter and program
            [sys.executable, "-c", ASK_TORCH], capture_output=True, text=True, timeout=TORCH_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(name, "warning", f"did not answer: {error}")
    if answer.returncode != 0:
        last = answer.stderr.strip().splitlines()[-1:] or ["no message"]
        return Check(name, "warning", f"import failed: {last[0]}")
    devices, activities = parse_json(answer.stdout.splitlines()[-1])
    return Check(name, "ok", f"devices: {', '.join(devices) or 'none'}; profiles: {', '.join(activities)}")
