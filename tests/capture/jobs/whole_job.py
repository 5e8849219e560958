"""Sleeps in each part of the job: by how long is known."""

import time

time.sleep(0.3)  # before torch is imported
import torch  # noqa: E402


def prepares() -> None:
    time.sleep(0.8)


def publishes() -> None:
    time.sleep(0.6)


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
prepares()
for step in range(30):
    if step == 0:
        time.sleep(0.4)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
publishes()
print("trained")
