"""An index of Python's own lists is one of tensors: nothing else is predicted of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystall import predict

MODEL = """
import torch

class Ends(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(256, 256)

    def forward(self, x):
        ends = self.inner(x)[:, {index}]
        seen = x.clone()
        seen[:, {index}] = 0
        return ends.sum() + seen.sum()

def make():
    return Ends(), torch.randn(64, 16, 256)
"""


@pytest.mark.parametrize("index", ["[-1, 0]", "[[0, 3], [1, 2]]"])
def test_lists_index_as_tensors_do(index: str, tmp_path: Path) -> None:
    peaks = []
    for place, one in enumerate((index, f"torch.tensor({index})")):
        file = tmp_path / f"model{place}.py"
        file.write_text(MODEL.format(index=one))
        peaks.append(predict(f"{file}:make", device="NVIDIA H200", optimizer="sgd").peak_bytes)
    assert peaks[0] == peaks[1]
    assert peaks[0] > 64 * 16 * 256 * 4
