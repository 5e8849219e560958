"""What TraceML says of the same jobs, where it is installed in an environment of its own.

It watches a plain training loop only between brackets (``traceml.trace_step``), which the jobs have; its verdict names
a class of causes, and is counted as right where the class holds the cause.
"""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
from pathlib import Path
from types import MappingProxyType

from benchmarks.accuracy import real_jobs
from benchmarks.accuracy.show import Peer

TRACEML = Path(__file__).resolve().parents[2] / ".venv-traceml" / "bin" / "traceml"
CLASSES = MappingProxyType(
    {
        "INPUT": ("input.",),
        "COMPUTE": ("compute.",),
        "RESIDUAL": ("episodic.", "host."),
        "STRAGGLER": ("communication.straggler",),
        "MEMORY": ("memory.",),
        "CREEP": ("memory.",),
        "CPU": ("host.cpu-contention",),
    }
)
"""Words of its verdicts, and what they hold by the table in its manual ("What TraceML diagnoses")."""


def verdict(case: real_jobs.JobCase) -> str:
    """Its verdict, or why there is none."""
    if not TRACEML.exists():
        return "not installed (make .venv-traceml/.ready)"
    with tempfile.TemporaryDirectory() as scratch:
        line = [str(TRACEML), "run", "--mode", "summary", "--logs-dir", scratch, "--run-name", "job"]
        line += ["--aggregator-port", str(_free_port()), "--master-port", str(_free_port())]
        line += ["--nproc-per-node", str(case.ranks), "--interval", "0.5", str(real_jobs.JOBS / case.script)]
        line += ["--args", *case.arguments(steps=2 * real_jobs.STEPS)]
        environment = real_jobs.quiet(ACCURACY_TRACEML="1")
        try:
            done = subprocess.run(
                line, capture_output=True, text=True, check=False, timeout=real_jobs.TIMEOUT_S, env=environment
            )
        except subprocess.TimeoutExpired:
            return "no answer in time"
        summary = Path(scratch) / "job" / "final_summary.json"
        if not summary.exists():
            return f"failed: {done.stderr.strip()[-200:] or done.returncode}"
        return said(json.loads(summary.read_text("utf-8")))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def said(summary: dict[str, object]) -> str:
    """The headline of its summary."""
    primary = summary.get("primary_diagnosis") or {}
    return str(primary.get("status") or primary.get("kind") or "none") if isinstance(primary, dict) else str(primary)


def right(case: real_jobs.JobCase, named: str) -> bool:
    """Whether a verdict's class holds the job's cause; for a healthy job, whether nothing is wrong by it."""
    held = tuple(cause for word, causes in CLASSES.items() if word in named.upper() for cause in causes)
    if not case.causes:
        return not tells(named)
    return any(cause.startswith(held) for cause in case.causes) if held else False


def tells(named: str) -> bool:
    """Whether a verdict says that something is wrong: a job that computes all the time is what a healthy one is."""
    return any(word in named.upper() for word in CLASSES if word != "COMPUTE")


def judged(case: real_jobs.JobCase, named: str) -> Peer:
    """A verdict with its marks."""
    return Peer(named, right(case, named), right(case, named) and (tells(named) or not case.causes))
