"""A loop of two roles over a folder: rollouts make samples of the weights that a trainer leaves, which waits for them.

    python roles.py trainer FOLDER ROUNDS
    python roles.py rollout FOLDER ROUNDS NUMBER PASSES

What each really did is written into FOLDER as lines of begin and end (ns since 1970), by the job's own clock.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import nn

ROLLOUTS = 2
torch.set_num_threads(1)


def awaited(path: Path) -> None:
    while not path.exists():
        time.sleep(0.002)


def main() -> None:
    role, folder, rounds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
    lines = []
    if role == "rollout":
        number, passes = int(sys.argv[4]), int(sys.argv[5])
        for turn in range(rounds):
            awaited(folder / f"weights{turn}")
            began = time.time_ns()
            with torch.no_grad():
                for _ in range(passes):
                    net(torch.randn(256, 512))
            lines.append(f"{began} {time.time_ns()}")
            (folder / f"samples{turn}.{number}").touch()
    else:
        number = 0
        optimizer = torch.optim.Adam(net.parameters())
        (folder / "weights0").touch()
        for turn in range(rounds):
            for rollout in range(ROLLOUTS):
                awaited(folder / f"samples{turn}.{rollout}")
            began = time.time_ns()
            optimizer.zero_grad()
            for _ in range(8):
                net(torch.randn(256, 512)).square().mean().backward()
            optimizer.step()
            lines.append(f"{began} {time.time_ns()}")
            (folder / f"weights{turn + 1}").touch()
    (folder / f"truth.{role}{number}").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
