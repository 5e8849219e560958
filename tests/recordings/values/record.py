"""Records the run folders beside it again: `python -m tests.recordings.values.record` on a machine with nothing to do.

Each is a window of four steps of a small program, and the tensors that its operators were given in three later ones.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.analysis.dataflow.test_sameness import observed
from tests.diagnosis.detectors.recordings import recorded

from whystall.run_folder.layout import trace_name, values_name

HERE: Final = Path(__file__).parent
SIZE: Final = 384


def programs(torch: Any) -> dict[str, tuple[Callable[[], object], list[Any]]]:
    """The step of each program, and the tensors that it holds."""
    weight, table = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)

    def wasteful() -> None:
        x = torch.rand(SIZE, SIZE)
        y = (x @ weight).relu() + (x @ weight).tanh() + table @ weight
        (x.t() @ weight).exp()  # nothing reads this
        y.sum().item()

    def frugal() -> None:
        x = torch.rand(SIZE, SIZE)
        y = x @ weight
        (y.relu() + y.tanh()).sum().item()

    def measured() -> None:
        (torch.rand(SIZE, SIZE) @ weight).sort()

    return {"wasteful": (wasteful, [weight, table]), "frugal": (frugal, [weight]), "measured": (measured, [weight])}


def main() -> None:
    import torch

    for name, (step, held) in programs(torch).items():
        run = HERE / name
        run.mkdir(exist_ok=True)
        step()
        recorded(step, 1)  # starting to record takes long once per process
        with TemporaryDirectory() as folder:
            plain = Path(folder) / "trace.json"
            recorded(step, 4).export_chrome_trace(str(plain))
            (run / trace_name(0)).write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
            observed(step, Path(folder), held, steps=3)
            (run / values_name(0)).write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
        (run / "run.json").write_text(json.dumps({"schema": "whystall.run/1", "ranks": [{"rank": 0}]}) + "\n")


if __name__ == "__main__":
    main()
