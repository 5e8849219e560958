"""A data set that fails in the middle of training."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 40:
            raise KeyError("no such sample")
        return torch.ones(4)


model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(Samples(), batch_size=4):
    model(batch).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
