import gzip
import os
import pickle
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from stopwatch import report

EVERY = 1000 if os.environ.get("CURED") == "1" else 10
FOLDER = tempfile.mkdtemp() if os.environ.get("RANK", "0") == "0" else None


def keep(model, step):
    """Rank 0 keeps the weights, packed; the others go on once they are on disk."""
    if dist.get_rank() == 0:
        weights = {k: v.numpy() for k, v in model.module.state_dict().items()}
        with gzip.open(os.path.join(FOLDER, f"weights-{step % 3}.gz"), "wb", compresslevel=6) as f:
            pickle.dump(weights, f)
    dist.barrier()


def build():
    return nn.Sequential(
        nn.Embedding(3100, 254),
        nn.Flatten(),
        nn.Linear(254 * 9, 730),
        nn.ReLU(),
        nn.Linear(730, 610),
        nn.ReLU(),
        nn.Linear(610, 3100),
    )


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(build())
    optim = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    clock = []
    for step in range(70):
        t0 = time.perf_counter()
        words = torch.randint(0, 3100, (88, 10))
        optim.zero_grad()
        loss = criterion(model(words[:, :9]), words[:, 9])
        loss.backward()
        optim.step()
        if step % EVERY == EVERY - 1:
            keep(model, step)
        clock.append(time.perf_counter() - t0)
    report(clock)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
