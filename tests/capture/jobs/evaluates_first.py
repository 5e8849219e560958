"""Evaluates a model for a while, without an optimizer in sight, and then trains it for twelve steps."""

import time

import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(60, 8)), batch_size=2)


def evaluate() -> None:
    with torch.no_grad():
        for (batch,) in loader:
            model(batch)
            time.sleep(0.2)


model.eval()
evaluate()
model.train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number, (batch,) in enumerate(loader):
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.1)
    if number == 11:
        break
print("trained")
