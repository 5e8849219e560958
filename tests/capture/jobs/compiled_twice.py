"""A function that torch compiles again for another length, and where a graph ends; no code is generated."""

import torch


def scores(x: torch.Tensor) -> torch.Tensor:
    if x.sum().item() > 1e9:
        return x
    return x * 2


model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
compiled = torch.compile(scores, backend="eager", dynamic=False)
for step in range(12):
    compiled(model(torch.ones(2 + step % 2, 4))).sum().backward()
    optimizer.step()
print("trained")
