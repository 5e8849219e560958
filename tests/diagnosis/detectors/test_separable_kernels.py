"""compute.slow-convolution: kernels that are a column times a row, in recordings of torch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.diagnosis.detectors.recordings import found_in, told_in

from whystall.diagnosis.finding import Finding

torch = pytest.importorskip("torch")
F = torch.nn.functional


def of_kernels(found: dict[str, Finding]) -> Finding | None:
    """What is said of such kernels."""
    one = found.get("compute.slow-convolution")
    return one if one is not None and "a column times a row" in one.title else None


def filtered(way: str, side: int = 17, channels: int = 3) -> Callable[[], object]:
    """A step that filters pictures, and multiplies two matrices."""
    torch.manual_seed(0)
    x, weight = torch.rand(8, channels, 64, 64), torch.randn(256, 256)
    at = torch.arange(side).float() - side // 2
    learned = torch.randn(channels, 1, side, side)

    def bell(width: float) -> Any:
        g = torch.exp(-0.5 * (at / width) ** 2)
        return g / g.sum()

    def kernel() -> Any:
        g = bell(2.0)
        if way == "as libraries write it":  # torchvision's _get_gaussian_kernel2d
            return g.unsqueeze(-1) * g
        if way == "an outer product":
            return torch.outer(g, g)
        if way == "divided afterwards":
            square = g[:, None] * g[None]
            return square / square.sum()
        if way == "a difference of two":
            h = bell(4.0)
            return g[:, None] * g[None] - h[:, None] * h[None]
        if way == "masked":
            return torch.where(learned[0, 0] > 0, g[:, None] * g[None], 0.0)
        return g[:, None] * g[None]

    def step() -> Any:
        weight @ weight
        if way == "two passes":
            g = bell(2.0)
            row = F.conv2d(x, g.expand(channels, 1, 1, side).contiguous(), padding=(0, side // 2), groups=channels)
            return F.conv2d(
                row, g[:, None].expand(channels, 1, side, 1).contiguous(), padding=(side // 2, 0), groups=channels
            )
        given = x.contiguous(memory_format=torch.channels_last) if way == "channels last" else x
        made = learned if way == "learned" else kernel().expand(channels, 1, side, side).contiguous()
        return F.conv2d(given, made, padding=side // 2, groups=channels)

    return step


@pytest.mark.parametrize("way", ["plain", "as libraries write it", "an outer product", "divided afterwards"])
def test_a_column_times_a_row_is_worth_two_convolutions(way: str, tmp_path: Path) -> None:
    finding = told_in(filtered(way), tmp_path, of_kernels, worth=1.5)
    assert [one.value for one in finding.evidence[:2]] == [17 * 17, 34]
    assert finding.remedy is not None
    assert "F.conv2d" in (finding.remedy.patch or "")


@pytest.mark.parametrize("way", ["a difference of two", "masked", "learned", "two passes", "channels last"])
def test_other_kernels_are_none(way: str, tmp_path: Path) -> None:
    assert of_kernels(found_in(filtered(way), tmp_path)) is None


@pytest.mark.parametrize(("side", "channels"), [(11, 3), (17, 1)])
def test_what_is_as_fast_whole_is_none(side: int, channels: int, tmp_path: Path) -> None:
    assert of_kernels(found_in(filtered("plain", side, channels), tmp_path)) is None
