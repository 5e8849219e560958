"""Records the execution traces beside this file: `python tests/trace/readers/execution_traces/record.py FOLDER`.

A training step with views, writes in place, indexing and a list of tensors, once as PyTorch writes it and once as
Kineto records the same run.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import torch
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, record_function


def main(folder: Path) -> None:
    """Writes ``training.json.gz`` and ``training.kineto.json.gz``."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    table, numbers = torch.randn(10, 8), torch.tensor([1, 2, 3, 3, 2, 1])
    observer = ExecutionTraceObserver().register_callback(str(folder / "training.json"))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, execution_trace_observer=observer) as recorded:
        for step in range(2):
            with record_function(f"ProfilerStep#{step}"):
                rows = table[numbers]
                out = model(torch.cat([rows, rows * 2])).t().contiguous()
                out.mul_(0.5)
                out.square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    recorded.export_chrome_trace(str(folder / "training.kineto.json"))
    for name in ("training.json", "training.kineto.json"):
        path = folder / name
        (folder / f"{name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
