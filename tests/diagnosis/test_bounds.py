"""No gain is beyond what a count by hand allows: what the device computes has to be computed, whoever was late.

What is removed by causes of the host, of input and of communication leaves all kernels of compute in
place, so that no step can be shorter than the device needs for them. The count is of the raw events.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from benchmarks.accuracy.simulator.case import Case
from benchmarks.accuracy.simulator.registry import all_cases, by_name
from benchmarks.accuracy.simulator.simulate import simulate
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import RealTraces
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job

import whystall
from whystall.diagnosis.catalogue import causes
from whystall.report.schema import Report

LEAVE_COMPUTE: Final = re.compile(r"^(host|input|communication|memory)\.")
COMMUNICATES: Final = re.compile(r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|sendrecv|deep_ep", re.IGNORECASE)
RECORDED: Final = (
    "bert-small-h100.json.gz",
    "cnn-v100-ns.json.gz",
    "ddp-2rank-a100.json.gz",
    "deepseek-v3-dualpipe-h800.json",
    "dlrm-8rank-a100.json.gz",
    "qwen-0.5b-prefill-h100.json.gz",
    "recsys-2rank-v100.json.gz",
    "resnet50-workers0-v100.json.gz",
    "resnet50-workers4-v100.json.gz",
    "tp-decode-b200.json.gz",
)
# What is uncertain of a replay is added on top of a ceiling (docs/diagnosis.md): the model's 2 % of what stays.
MODEL: Final = 0.02
# The count is of all steps, the gain of those that are replayed.
SLACK: Final = 1.05


def events(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    found = json.loads(text)
    return list(found["traceEvents"] if isinstance(found, dict) else found)


def computed_share(path: Path) -> float:
    """Of a recording from its first step to its last (or of all of it): the share in which a kernel computes."""
    timed = [one for one in events(path) if one.get("ph") == "X" and one.get("dur") is not None]
    kernels = [one for one in timed if str(one.get("cat", "")).lower() == "kernel"]
    compute = sorted((one["ts"], one["ts"] + one["dur"]) for one in kernels if not COMMUNICATES.search(one["name"]))
    if not compute:
        return 0.0
    busy, until = 0.0, compute[0][0]
    for begin, end in compute:
        busy += max(end - max(begin, until), 0)
        until = max(until, end)
    device = [one for one in timed if str(one.get("cat", "")).lower() in ("kernel", "gpu_memcpy", "gpu_memset")]
    whole = max(one["ts"] + one["dur"] for one in device) - min(one["ts"] for one in device)
    return float(busy / whole)


def beyond(report: Report, computed: float) -> list[tuple[str, float, float]]:
    """Findings whose ceiling leaves the device less time than it computes."""
    unsure = (report.noise or 0.0) + (1 - (report.fidelity or 1.0)) + MODEL
    out = []
    for one in report.findings:
        # What happens now and then is weighed by how often it does, and not by how often this recording saw it.
        if one.gain is not None and LEAVE_COMPUTE.match(one.id) and causes()[one.id].statistic == "median":
            expected, ceiling = (1 / max(computed, 1e-9), 1 / max(computed * (1 - unsure), 1e-9))
            if one.gain.expected > expected * SLACK or one.gain.ceiling > ceiling * SLACK:
                out.append((one.id, one.gain.ceiling, ceiling))
    return out


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_traces(name: str, real_traces: RealTraces) -> None:
    path = real_traces.path(name)
    assert not beyond(whystall.analyze(path), computed_share(path))


def judged_end_to_end(case: Case) -> bool:
    """Whether `tests/benchmarks_accuracy/test_quick.py` makes a report of the case, and holds it against its bounds."""
    return case.quick and case.job.parallel.ranks <= 2 and not case.name.startswith("pair-")


@pytest.mark.parametrize("name", [case.name for case in all_cases() if case.quick and not judged_end_to_end(case)])
def test_simulated_jobs(name: str, tmp_path: Path) -> None:
    paths = simulate(by_name(name).job).write(tmp_path)
    # A rank that is slow may become as fast as its peers: the one that computes least is what all could be like.
    assert not beyond(whystall.analyze(paths), min(map(computed_share, paths)))


@settings(max_examples=25)
@given(
    st.lists(st.integers(20_000, 3_000_000), min_size=1, max_size=5),
    st.integers(0, 4_000_000),
    st.integers(0, 4_000_000),
)
def test_drawn_jobs(kernels: list[int], python_ns: int, fetch_ns: int) -> None:
    """Steps of some kernels, a fetch and Python, in which the host waits for the device."""
    job = Job()
    for _ in job.steps(8):
        with job.marked("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            job.python(fetch_ns)
        job.python(python_ns)
        for lasts in kernels:
            job.operator("aten::mm", "gemm", lasts)
        job.wait()
    bound = job.step_ns / sum(kernels)
    for finding in found_in(job.built).values():
        assert finding.gain is not None
        assert finding.gain.floor <= finding.gain.expected <= finding.gain.ceiling
        if LEAVE_COMPUTE.match(finding.id):
            assert finding.gain.expected <= bound * 1.001
            assert finding.gain.ceiling <= bound / (1 - MODEL) * 1.02
