"""What a loader's worker is worth on cores that training fills: with all threads, with one fewer, and as told.

    python benchmarks/bench_workers.py          # five minutes; the machine should do nothing else
    python benchmarks/bench_workers.py convolutions

Four networks are fed decoded images. Each is run without a worker, with one, and with one and a thread less, in turn;
what counts is the median of the ratios of mean steps. Beside them stands what `whystall run` says of the first.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROUNDS = 3
SECONDS = 5.0
BATCH = 16
SIDE = 64
CORES = len(os.sched_getaffinity(0))


def networks() -> dict[str, Any]:
    """By what they compute: a few operators that two threads share well, or many that they do not."""
    from torch import nn  # noqa: PLC0415 - only a measuring process needs torch

    end = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return {
        "convolutions": lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), *end
        ),
        "large convolutions": lambda: nn.Sequential(
            *(nn.Conv2d(3, 64, 3, 1, 1), nn.ReLU(), nn.Conv2d(64, 32, 3, 2, 1), nn.ReLU()),
            *(nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU(), *end),
        ),
        "one wide product": lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 256), nn.ReLU(), nn.Linear(256, 10)
        ),
        "many small products": lambda: nn.Sequential(
            *(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(3 * SIDE * SIDE // 16, 128)),
            *(layer for _ in range(20) for layer in (nn.Linear(128, 128), nn.ReLU())),
            nn.Linear(128, 10),
        ),
    }


def train(name: str, workers: int, threads: int, seconds: float, times: str | None) -> None:
    """One network, fed by a plain loader."""
    import torch  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415
    from torch.utils.data import DataLoader  # noqa: PLC0415

    torch.set_num_threads(threads)
    model = networks()[name]()
    optimizer = torch.optim.Adam(model.parameters())
    kept = {"num_workers": workers, "persistent_workers": True} if workers else {}
    spent, last = [], time.perf_counter()
    end = last + seconds
    for images, labels in DataLoader(Photos(), batch_size=BATCH, **kept):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        spent.append(now - last)
        last = now
        if now > end:
            break
    if times:
        Path(times).write_text(json.dumps(spent), "utf-8")


class Photos:
    """JPEG images that are decoded when they are asked for."""

    def __init__(self) -> None:
        from PIL import Image  # noqa: PLC0415

        noise = np.random.default_rng(0).integers(0, 255, (128, 128, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noise).save(buffer, "jpeg")
        self._bytes = buffer.getvalue()

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import torch  # noqa: PLC0415
        from PIL import Image  # noqa: PLC0415

        image = Image.open(io.BytesIO(self._bytes)).convert("RGB").resize((SIDE, SIDE))
        pixels: npt.NDArray[np.float32] = np.asarray(image, np.float32).transpose(2, 0, 1) / np.float32(255)
        return torch.from_numpy(np.ascontiguousarray(pixels)), index % 10


def mean_step(name: str, workers: int, threads: int) -> float:
    """In seconds, without the first fifth of the steps."""
    with tempfile.TemporaryDirectory() as folder:
        times = str(Path(folder, "times.json"))
        command = [sys.executable, __file__, name, "--train", str(workers), str(threads), times]
        subprocess.run(command, check=True, capture_output=True)
        spent = json.loads(Path(times).read_text("utf-8"))
    return statistics.fmean(spent[len(spent) // 5 :])


def told(name: str) -> str:
    """What whystall says of the network without a worker."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "whystall", "run", "-q", "-o", str(Path(folder, "run"))]
        command += [__file__, name, "--train", "0", str(CORES), str(Path(folder, "times.json"))]
        subprocess.run(command, check=True, capture_output=True)
        report = json.loads(Path(folder, "run", "report.json").read_text("utf-8"))
    for finding in report["findings"]:
        if finding["id"] == "input.synchronous-loader":
            gain = finding["gain"]
            fewer = "set_num_threads" in (finding["remedy"]["patch"] or "")
            worth = f"{gain['expected']:.2f} ({gain['floor']:.2f} to {gain['ceiling']:.2f})" if gain else "no gain"
            return f"{worth}{', with fewer threads' if fewer else ''}"
    return "nothing of it"


def main() -> None:
    """Prints a row per network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*networks(), []], default=[])
    parser.add_argument("--train", nargs=3, metavar=("WORKERS", "THREADS", "TIMES"))
    args = parser.parse_args()
    if args.train:
        workers, threads, times = args.train
        train(args.names[0], int(workers), int(threads), SECONDS, times)
        return
    print("| network | without a worker | a worker, all threads | a thread less | told |\n|---|---|---|---|---|")
    for name in args.names or networks():
        rounds = [
            [mean_step(name, 0, CORES), mean_step(name, 1, CORES), mean_step(name, 1, CORES - 1)] for _ in range(ROUNDS)
        ]
        before = statistics.median(row[0] for row in rounds)
        crowded, fewer = (statistics.median(row[0] / row[which] for row in rounds) for which in (1, 2))
        print(f"| {name} | {before * 1e3:.1f} ms | {crowded:.2f} | {fewer:.2f} | {told(name)} |", flush=True)


if __name__ == "__main__":
    main()
