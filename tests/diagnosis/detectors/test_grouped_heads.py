"""compute.redundant-work: keys and values copied for each query head of a group, in recordings of torch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.diagnosis.detectors.recordings import found_in, told_in

from whystall.diagnosis.finding import Finding

torch = pytest.importorskip("torch")
BATCH, HEADS, GROUP, PLACES, WIDE = 2, 3, 4, 900, 64


def copied(found: dict[str, Finding]) -> Finding | None:
    one = found.get("compute.redundant-work")
    return one if one is not None and "are copied 4 times" in one.title else None


def expanded(x: Any) -> Any:
    return x[:, :, None].expand(-1, -1, GROUP, -1, -1).reshape(x.size(0), -1, *x.shape[2:])


def decoding(way: str) -> Callable[[], object]:
    """A step of attention to keys and values that some heads share."""
    attention = torch.nn.functional.scaled_dot_product_attention
    k, v = torch.randn(BATCH, HEADS, PLACES, WIDE), torch.randn(BATCH, HEADS, PLACES, WIDE)
    token, prompt = torch.randn(BATCH, HEADS * GROUP, 1, WIDE), torch.randn(BATCH, HEADS * GROUP, PLACES, WIDE)
    own = torch.randn(BATCH, HEADS * GROUP, PLACES, WIDE)
    return {
        "repeat_interleave": lambda: attention(
            token, k.repeat_interleave(GROUP, dim=1), v.repeat_interleave(GROUP, dim=1)
        ),
        "expand": lambda: attention(token, expanded(k), expanded(v)),
        "written out": lambda: (token @ expanded(k).mT).softmax(-1) @ expanded(v),
        "a prompt": lambda: attention(prompt, expanded(k), expanded(v), is_causal=True),
        "keys of its own": lambda: attention(token, own.clone(), own.clone()),
        "rows": lambda: attention(token.reshape(BATCH, HEADS, GROUP, WIDE), k, v),
    }[way]


@pytest.mark.parametrize("way", ["repeat_interleave", "expand", "written out"])
def test_copies_for_one_token_are_told(way: str, tmp_path: Path) -> None:
    finding = told_in(decoding(way), tmp_path, copied, worth=1.2)
    assert "of 3 heads" in finding.title
    assert finding.remedy is not None
    assert "kv_heads, group" in (finding.remedy.patch or "")


@pytest.mark.parametrize("way", ["a prompt", "keys of its own", "rows"])
def test_others_are_none(way: str, tmp_path: Path) -> None:
    assert copied(found_in(decoding(way), tmp_path)) is None
