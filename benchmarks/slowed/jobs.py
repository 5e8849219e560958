"""Jobs that become slow while they run: ordinary loops, and a fault that begins some seconds after the first step.

    python benchmarks/slowed/jobs.py FAULT --onset FILE [--after S] [--seconds S] [--over FILE]

When the fault begins the job writes the instant into FILE; it never does with ``--after inf``, nor in ``healthy``. The
job ends after so many seconds, or once the file ``--over`` is there.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

JOBS: dict[str, Callable[[Clock], None]] = {}


class Clock:
    """Says when the fault begins, in every process of the job, and when the job ends."""

    def __init__(self, options: argparse.Namespace, rank: int = 0) -> None:
        self.began = time.time()
        self.options = options
        self.rank = rank
        self._said = False

    @property
    def faulty(self) -> bool:
        """Whether the fault has begun; the first to know writes it down."""
        begun = bool(time.time() - self.began > self.options.after)
        if begun and not self._said and self.rank == 0:
            self._said = True
            Path(self.options.onset).write_text(json.dumps(time.time()))
        return begun

    @property
    def over(self) -> bool:
        """Whether the job is to end."""
        wanted = self.options.over is not None and Path(self.options.over).exists()
        return wanted or time.time() - self.began >= self.options.seconds

    def steps(self) -> Iterator[int]:
        """Numbers of steps until the job is over."""
        step = 0
        while not self.over:
            yield step
            step += 1


def job(function: Callable[[Clock], None]) -> Callable[[Clock], None]:
    """Enters a job by its name."""
    JOBS[function.__name__] = function
    return function


class Pictures(Dataset[tuple[Tensor, int]]):
    """Noise that is read, with a store that answers late from some moment on, or a decoder that works harder."""

    def __init__(self, clock: Clock, store_s: float = 0.0, decoded: int = 0) -> None:
        self.clock = clock
        self.store_s = store_s
        self.decoded = decoded
        self.rows = torch.randn(4096, 3, 32, 32)

    def __len__(self) -> int:
        """Rows."""
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """A picture and its class."""
        picture = self.rows[index]
        if time.time() - self.clock.began > self.clock.options.after:
            if self.store_s:
                time.sleep(self.store_s)
            for _ in range(self.decoded):
                picture = picture.sort(dim=-1).values.flip(-1)
        return picture, index % 10


def convolutional() -> nn.Module:
    """A small network for pictures."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 10),
    )  # fmt: skip


def pictures(clock: Clock, dataset: Pictures) -> None:
    """Trains on pictures, with one worker that keeps up."""
    model = convolutional()
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    steps = clock.steps()
    while True:
        for batch, labels in DataLoader(dataset, batch_size=32, num_workers=1, shuffle=True, persistent_workers=False):
            if next(steps, None) is None:
                return
            _ = clock.faulty
            loss = nn.functional.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@job
def healthy(clock: Clock) -> None:
    """Pictures, and nothing happens to them."""
    pictures(clock, Pictures(clock))


@job
def storage(clock: Clock) -> None:
    """The store that the worker reads from answers late."""
    pictures(clock, Pictures(clock, store_s=0.004))


@job
def decoding(clock: Clock) -> None:
    """Samples that come later need more work of the worker."""
    pictures(clock, Pictures(clock, decoded=18))


def tables(clock: Clock, within: Callable[[int, nn.Module, optim.Optimizer], None]) -> None:
    """Trains a network for tables whose rows are in memory; ``within`` is called in every step."""
    model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2))
    optimizer = optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    rows, labels = torch.randn(65536, 128), torch.randint(0, 2, (65536,))
    for step in clock.steps():
        chosen = torch.randint(0, len(rows), (512,))
        loss = nn.functional.cross_entropy(model(rows[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        within(step, model, optimizer)


@job
def collections(clock: Clock) -> None:
    """A cache of objects was filled, and somebody collects garbage in every step."""
    cache: list[dict[str, list[int]]] = []

    def within(_step: int, _model: nn.Module, _optimizer: optim.Optimizer) -> None:
        if clock.faulty:
            if not cache:
                cache.extend({"ids": [n, n + 1], "at": [n]} for n in range(120_000))
            gc.collect()

    tables(clock, within)


@job
def checkpoints(clock: Clock) -> None:
    """The score improves in every step, and the best model is kept."""
    folder = tempfile.mkdtemp()

    def within(_step: int, model: nn.Module, optimizer: optim.Optimizer) -> None:
        if clock.faulty:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/best.pt")

    tables(clock, within)


@job
def listener(clock: Clock) -> None:
    """A client connects, and a thread of Python's parses what it sends."""
    stop = threading.Event()

    def parse() -> None:
        words = "alpha beta gamma delta " * 200
        while not stop.is_set():
            sum(len(word) * ord(word[0]) for word in words.split())

    def within(_step: int, _model: nn.Module, _optimizer: optim.Optimizer) -> None:
        if (
            clock.faulty
            and threading.active_count() < 40
            and not any(t.name == "client" for t in threading.enumerate())
        ):
            threading.Thread(target=parse, name="client", daemon=True).start()

    tables(clock, within)
    stop.set()


@job
def tokens(clock: Clock) -> None:
    """Texts that come later are not in the cache of the tokenizer, which is Python."""
    model = nn.Sequential(nn.Embedding(4096, 128), nn.Flatten(), nn.Linear(64 * 128, 256), nn.ReLU(), nn.Linear(256, 2))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    letters = random.Random(0)  # noqa: S311 - texts, no secrets
    texts = ["".join(letters.choice("abcdefghij ") for _ in range(300)) for _ in range(64)]

    def ids_of(text: str) -> list[int]:
        ids: list[int] = []
        for place in range(64):
            piece, number = text[place * 4 : place * 4 + 4], 7
            for letter in piece * 3:
                number = (number * 31 + ord(letter)) % 4096
            ids.append(number)
        return ids

    known = torch.tensor([ids_of(text) for text in texts])
    labels = torch.randint(0, 2, (64,))
    for _ in clock.steps():
        ids = torch.tensor([ids_of(text) for text in texts]) if clock.faulty else known
        loss = nn.functional.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@job
def history(clock: Clock) -> None:
    """Embeddings of all steps are kept, and compared with those of the step: more of them from step to step."""
    model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128))
    optimizer = optim.SGD(model.parameters(), lr=1e-3)
    kept: list[Tensor] = [torch.randn(256, 128)]
    for _ in clock.steps():
        seen = model(torch.randn(256, 128))
        loss = (seen @ torch.cat(kept).T).logsumexp(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if clock.faulty:
            kept.append(seen.detach())


@job
def recompiled(clock: Clock) -> None:
    """A number that the compiled model is guarded on changes from some moment on."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))
            self.scale = "1"

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) * float(self.scale)

    torch.compiler.config.recompile_limit = torch.compiler.config.accumulated_recompile_limit = 10_000
    model = Scaled()
    compiled = torch.compile(model)
    optimizer = optim.SGD(model.parameters(), lr=1e-3)
    for step in clock.steps():
        if clock.faulty and step % 2 == 0:
            model.scale = str(1 + step / 1e6)
        loss = compiled(torch.randn(512, 256)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@job
def rank(clock: Clock) -> None:
    """Two ranks; one of them gets work to do in Python before its backward pass."""
    dist.init_process_group("gloo")
    clock.rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)))
    optimizer = optim.SGD(model.parameters(), lr=1e-3)
    goes_on = torch.ones(1)
    while True:
        loss = model(torch.randn(256, 256)).square().mean()
        if clock.faulty and clock.rank == 1:
            numbers = [n * n % 97 for n in range(150_000)]
            loss = loss * (1 + 0 * len(numbers))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        goes_on[0] = not clock.over
        dist.broadcast(goes_on, 0)
        if not goes_on.item():
            break
    dist.destroy_process_group()


def main() -> None:
    """Runs the job that is named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("fault", choices=sorted(JOBS))
    parser.add_argument("--onset", required=True)
    parser.add_argument("--after", type=float, default=25.0)
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--over", help="ends once this file is there")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    JOBS[options.fault](Clock(options))


if __name__ == "__main__":
    main()
