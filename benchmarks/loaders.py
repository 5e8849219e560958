"""Six data loaders, each slow for another reason: `whystall probe data benchmarks/loaders.py:decode_bound`."""

from __future__ import annotations

import io
import time
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset


def in_memory() -> DataLoader[Any]:
    """Tensors that are there already."""
    return DataLoader(TensorDataset(torch.randn(4096, 64), torch.zeros(4096, dtype=torch.long)), batch_size=64)


class Images(Dataset[Any]):
    """Compressed pictures of noise, unpacked and scaled with numpy: processor time of a sample."""

    def __init__(self) -> None:
        numbers = np.random.default_rng(0)
        self._packed = []
        for _ in range(64):
            buffer = io.BytesIO()
            np.savez_compressed(buffer, image=numbers.integers(0, 16, (160, 160, 3), dtype=np.uint8))
            self._packed.append(buffer.getvalue())

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        image = np.load(io.BytesIO(self._packed[index % 64]))["image"]
        return torch.from_numpy(image.astype(np.float32) / 255).permute(2, 0, 1)


def decode_bound() -> DataLoader[Any]:
    """Samples that are unpacked."""
    return DataLoader(Images(), batch_size=16)


class Remote(Dataset[Any]):
    """Samples that come over a network: 4 ms each, in which no processor works."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.004)
        return torch.full((3, 32, 32), float(index))


def storage_bound() -> DataLoader[Any]:
    """Samples that are waited for."""
    return DataLoader(Remote(), batch_size=8)


class Boxes(Dataset[Any]):
    """Samples of many small tensors, as those of detection are, that cost next to nothing to make."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        return [torch.full((4,), float(index)) for _ in range(4)]


def as_they_are(rows: list[Any]) -> list[Any]:
    """A batch as a list, as detection's collate functions make it."""
    return rows


def ipc_bound() -> DataLoader[Any]:
    """Batches that take longer to hand over than to make: each tensor is a file in shared memory."""
    return DataLoader(Boxes(), batch_size=16, collate_fn=as_they_are)


class Uneven(Dataset[Any]):
    """One sample in fifty takes thirty times as long: a long document."""

    def __init__(self) -> None:
        numbers = np.random.default_rng(0)
        self._rounds = np.where(numbers.random(4096) < 0.02, 300, 10).tolist()

    def __len__(self) -> int:
        return len(self._rounds)

    def __getitem__(self, index: int) -> torch.Tensor:
        values = np.arange(20_000, dtype=np.float64)
        for _ in range(self._rounds[index]):
            values = np.sqrt(values + 1.0)
        return torch.from_numpy(values[:1000].copy())


def heavy_tailed() -> DataLoader[Any]:
    """Some samples that take far longer than most."""
    return DataLoader(Uneven(), batch_size=16)


class Sentences(Dataset[Any]):
    """Token lists of different lengths."""

    def __init__(self) -> None:
        numbers = np.random.default_rng(0)
        self._rows: list[list[int]] = [
            numbers.integers(0, 30_000, numbers.integers(50, 500)).tolist() for _ in range(2048)
        ]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> list[int]:
        return self._rows[index]


def padded(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """A batch padded token by token, as many a collate function does it."""
    longest = max(len(row) for row in rows)
    full = [[row[place] if place < len(row) else 0 for place in range(longest)] for row in rows]
    mask = [[1 if place < len(row) else 0 for place in range(longest)] for row in rows]
    return {"input_ids": torch.tensor(full), "attention_mask": torch.tensor(mask)}


def collate_bound() -> DataLoader[Any]:
    """Batches that are padded in Python."""
    return DataLoader(Sentences(), batch_size=32, collate_fn=padded)


LOADERS = (in_memory, decode_bound, storage_bound, ipc_bound, heavy_tailed, collate_bound)
