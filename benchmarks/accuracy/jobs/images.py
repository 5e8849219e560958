"""Trains a small convolutional network on made-up pictures that a DataLoader reads and decodes.

python images.py [--fault
synchronous-sleep|synchronous-decode|few-workers|busy-workers|slow-storage|restarts|heavy-tail|many-tensors|
                 cheap-inline [--cured]]
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.accuracy.jobs.loop import Asked, Clock, bracket, main

BATCH = 16
RARE = 160


class Pictures(Dataset[tuple[Tensor, int, list[Tensor]]]):
    """Pictures that take ``read_s`` to read (waiting, as for a disk) and ``decode_s`` to decode (computing).

    One in `RARE` takes ``rare_s`` more. Each comes with its label and with ``marks`` small tensors.
    """

    def __init__(self, count: int, read_s: float, decode_s: float, rare_s: float = 0.0, marks: int = 0) -> None:
        self.count, self.read_s, self.decode_s, self.rare_s, self.marks = count, read_s, decode_s, rare_s, marks

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int, list[Tensor]]:
        if self.read_s:
            time.sleep(self.read_s)
        if self.rare_s and index % RARE == RARE // 2:
            time.sleep(self.rare_s)
        end_s = time.thread_time() + self.decode_s
        picture = torch.full((3, 32, 32), index % 7 / 7)
        while time.thread_time() < end_s:
            picture = picture.flip(-1)
        return picture, index % 10, [torch.full((4,), float(index)) for _ in range(self.marks)]


@dataclass(frozen=True)
class Input:
    """What reading and decoding a picture cost in seconds, and how the DataLoader is set up."""

    read_s: float = 0.0002
    decode_s: float = 0.0
    workers: int = 2
    persistent: bool = True
    epoch_steps: int | None = None
    rare_s: float = 0.0
    marks: int = 0
    """Small tensors beside each picture."""
    stacked: bool = True
    """Whether workers make one tensor out of those of a batch."""


HEALTHY = Input()
FAULTS = {
    "synchronous-sleep": (Input(0.0015, workers=0), Input(0.0015)),
    "synchronous-decode": (Input(0.0, 0.001, workers=0), Input(0.0, 0.001, workers=1)),
    "few-workers": (Input(0.006, workers=1), Input(0.006, workers=8)),
    "busy-workers": (Input(0.0, 0.006), Input(0.0, 0.0003)),
    "slow-storage": (Input(0.012, 0.0002), Input(0.0002, 0.0002)),
    "restarts": (Input(epoch_steps=8, persistent=False), Input(epoch_steps=8)),
    "heavy-tail": (Input(rare_s=0.5), HEALTHY),
    "many-tensors": (Input(marks=8, stacked=False), Input(marks=8)),
    "cheap-inline": (Input(0.0, workers=0), HEALTHY),
}
"""By fault: the input that has it, and the same input cured."""


def apart(samples: list[tuple[Tensor, int, list[Tensor]]]) -> tuple[list[Tensor], Tensor, list[list[Tensor]]]:
    """A batch whose tensors stay single."""
    return [each[0] for each in samples], torch.tensor([each[1] for each in samples]), [each[2] for each in samples]


def loader(given: Input, steps: int) -> DataLoader[tuple[Tensor, int, list[Tensor]]]:
    """The DataLoader, as the fault has it."""
    return DataLoader(
        Pictures(BATCH * (given.epoch_steps or steps), given.read_s, given.decode_s, given.rare_s, given.marks),
        batch_size=BATCH,
        collate_fn=None if given.stacked else apart,
        num_workers=given.workers,
        persistent_workers=given.workers > 0 and given.persistent,
        multiprocessing_context="fork" if given.workers else None,
    )


def network() -> nn.Sequential:
    """Five convolutions and a classifier."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 32), (32, 64), (64, 64), (64, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        if outputs != inputs:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def train(asked: Asked, clock: Clock) -> None:
    """The training loop."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    given = FAULTS[asked.fault][asked.cured] if asked.fault else HEALTHY
    batches = loader(given, asked.steps)
    done = 0
    while done < asked.steps:
        for pictures, labels, _ in batches:
            with bracket(model):
                optimizer.zero_grad()
                inputs = pictures if given.stacked else torch.stack(pictures)
                loss = functional.cross_entropy(model(inputs), labels)
                loss.backward()
                optimizer.step()
            clock.mark()
            done += 1
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main(train, tuple(FAULTS))
