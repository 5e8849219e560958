"""A job that sleeps where it is slow, so that other work on the machine decides nothing."""

JOB = """\
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 4 * 40

    def __getitem__(self, index):
        time.sleep(0.005)  # a slow disk
        return torch.full((8,), index / 160.0)


def main():
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
    for batch in DataLoader(Rows(), batch_size=4):
        optimizer.zero_grad()
        loss = model(batch).pow(2).mean()
        loss.backward()
        time.sleep(0.02)
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    # the end


if __name__ == "__main__":
    main()
"""
