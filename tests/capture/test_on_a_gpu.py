"""Capture on a CUDA device; skipped, with the reason, where there is none."""

from __future__ import annotations

import json

import pytest
import torch
from tests.capture.conftest import Jobs

import whystall

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

TRAIN = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(64, 1024, device="cuda")
for step in range(200):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
GRAPH = """
import torch

model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)]).cuda()
x = torch.randn(8, 256, device="cuda")
with torch.inference_mode():
    for _ in range(3):
        model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
import whystall
with whystall.profile(output="graph") as watched:
    for _ in range(40):
        graph.replay()
        watched.step()
torch.cuda.synchronize()
"""


def test_cuda_capture(jobs: Jobs) -> None:
    (jobs.home / "job.py").write_text(TRAIN)
    ran = jobs.whystall("job.py")
    assert ran.code == 0, ran.stderr
    (device,) = whystall.analyze(ran.folder, cache=False).devices
    assert device.kind == "gpu"
    assert device.launch.linked > 0.9 * device.gpu_events
    assert device.ledger.total_ns == device.window_ns
    assert any(step["device_us"] > 0 for step in ran.steps())


def test_graph_launch_owns_many_kernels(jobs: Jobs) -> None:
    (jobs.home / "job.py").write_text(GRAPH)
    import sys

    done = jobs.command(sys.executable, "job.py")
    assert done.code == 0, done.stderr
    trace = whystall.load(jobs.home / "graph" / "rank0.trace.json.gz", cache=False)
    per_launch = trace.device_events.group_by("launch").len()
    assert per_launch["len"].max() >= 8  # type: ignore[operator]


def test_nvml_is_sampled(jobs: Jobs) -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    (jobs.home / "job.py").write_text(TRAIN.replace("range(200)", "range(4000)"))
    ran = jobs.whystall("job.py")
    lines = (ran.folder / "rank0.samples.jsonl").read_text().splitlines()[1:]
    machine = [json.loads(line) for line in lines if line.startswith("{")]
    assert any(line.get("devices") for line in machine)
    assert any(line.get("allocator") for line in machine)
