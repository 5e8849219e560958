"""Two ranks over NCCL on one device; in step 30 rank 1 leaves a collective out: for `whystall run` and `whystall hang`.

torchrun --nproc-per-node 2 -m benchmarks.gpu.hang
"""

from __future__ import annotations

import datetime as dt
import os
import time

import torch
from benchmarks.gpu.together import one_device
from torch import distributed


def clip(model: torch.nn.Module, rank: int, step: int) -> None:
    """Norms of all ranks together; rank 1 leaves it out once."""
    norm = torch.stack([one.grad.norm() for one in model.parameters() if one.grad is not None]).norm()
    if rank != 1 or step != 30:
        distributed.all_reduce(norm)


def main() -> None:
    """Trains until it hangs."""
    one_device()
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(0)
    distributed.init_process_group("nccl", timeout=dt.timedelta(seconds=25))
    model = torch.nn.Linear(2048, 2048).cuda()
    wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
    stepper = torch.optim.SGD(wrapped.parameters(), lr=1e-3)
    for step in range(100):
        stepper.zero_grad()
        wrapped(torch.randn(256, 2048, device="cuda")).square().mean().backward()
        clip(model, rank, step)
        stepper.step()
        time.sleep(0.02)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
