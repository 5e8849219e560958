"""Two ranks train a model. ``planted``: with work that is done again, or for nothing; ``healthy``: without."""

import hashlib
import sys

import torch
from torch import nn
from torch.nn.functional import linear
from torch.nn.parallel import DistributedDataParallel

PLANTED = sys.argv[1] == "planted"
STEPS = 120


class Scores(nn.Module):
    """Scores a batch against a table, which a frozen layer makes."""

    def __init__(self) -> None:
        super().__init__()
        self.features = torch.randn(4096, 256)
        self.frozen = nn.Linear(256, 512).requires_grad_(False)
        self.project = nn.Linear(256, 768)
        self.left = nn.Linear(768, 32)
        self.right = nn.Linear(768, 32)
        self.kept: torch.Tensor | None = None

    def table(self) -> torch.Tensor:
        """The same in each step."""
        with torch.no_grad():
            return linear(self.features, self.frozen.weight, self.frozen.bias).tanh().mean()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scores of two heads."""
        if PLANTED:
            left = self.left(linear(x, self.project.weight, self.project.bias).relu())
            right = self.right(linear(x, self.project.weight, self.project.bias).sigmoid())
            return left + right + self.table()
        if self.kept is None:
            self.kept = self.table()
        projected = linear(x, self.project.weight, self.project.bias)
        return self.left(projected.relu()) + self.right(projected.sigmoid()) + self.kept


def main() -> None:
    """Trains."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Scores())
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=1e-3)
    chosen = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        x = torch.randn(2048, 256, generator=chosen)
        loss = model(x).square().mean()
        if PLANTED:
            torch.quantile(x.flatten()[:300_000], 0.9)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 40 == 0:
            print(f"loss {loss.item():.6f}")
    if rank == 0:
        torch.save(model.module.state_dict(), "model.pt")
        weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
        print(hashlib.sha256(weights).hexdigest(), torch.rand(1).item(), torch.get_rng_state().sum().item())
    torch.distributed.destroy_process_group()


main()
