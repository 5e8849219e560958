"""What functions of torch's call on a device that is not there is what they would call on one that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystall import predict

INDEXED = """
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
BATCH, HEADS, LENGTH = 8, 4, 256
ENCODER = f"""
import torch

def make():
    layer = torch.nn.TransformerEncoderLayer({HEADS * 16}, {HEADS}, batch_first=True)
    return layer, torch.randn({BATCH}, {LENGTH}, {HEADS * 16})
"""
DEVICE = "NVIDIA H200"


@pytest.mark.parametrize("index", ["[-1, 0]", "[[0, 3], [1, 2]]"])
def test_lists_index_as_tensors_do(index: str, tmp_path: Path) -> None:
    peaks = []
    for place, one in enumerate((index, f"torch.tensor({index})")):
        file = tmp_path / f"model{place}.py"
        file.write_text(INDEXED.format(index=one))
        peaks.append(predict(f"{file}:make", device=DEVICE, optimizer="sgd").peak_bytes)
    assert peaks[0] == peaks[1]
    assert peaks[0] > 64 * 16 * 256 * 4


def test_the_attention_of_torchs_own_layers_keeps_no_probabilities(tmp_path: Path) -> None:
    """Nor does it on an H200, where an encoder's peak was 15 to 28 % less than predicted with them."""
    file = tmp_path / "encoder.py"
    file.write_text(ENCODER)
    fused, apart = (
        predict(f"{file}:make", device=DEVICE, optimizer="sgd", attention=kernel).peak_bytes
        for kernel in ("default", "math")
    )
    assert apart - fused >= BATCH * HEADS * LENGTH**2 * 4
