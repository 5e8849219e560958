"""compute.redundant-work: layers on rows that were repeated, or are averaged after, in recordings of torch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.diagnosis.detectors.recordings import found_in, told_in

from whystall.diagnosis.finding import Finding

torch = pytest.importorskip("torch")
NODES, EDGES, WIDE = 500, 6_000, 128


def spread(found: dict[str, Finding]) -> Finding | None:
    """What is said of layers on too many rows."""
    one = found.get("compute.redundant-work")
    return one if one is not None and "a layer works on" in one.title else None


def layers(way: str, *, learns: bool) -> Callable[[], object]:
    """A step of a layer, and of what is before or after it."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(WIDE, WIDE)
    narrow = torch.nn.Conv2d(64, 4, 3 if way == "upsampled, of three by three" else 1, padding="same")
    nodes, picture, texts = torch.randn(NODES, WIDE), torch.randn(2, 64, 48, 48), torch.randn(32, 200, WIDE)
    source, edges = torch.randint(NODES, (EDGES,)), torch.randn(EDGES, WIDE, requires_grad=learns)
    thin, alike, wide = torch.nn.Linear(WIDE, 32), torch.nn.Conv2d(64, 64, 1), torch.randn(2, 64, 192, 192)

    weight = torch.rand(EDGES, 1)
    double, words, target = (
        torch.nn.Linear(2 * WIDE, 3 * WIDE),
        torch.randn(4, 40, WIDE),
        torch.randint(NODES, (EDGES,)),
    )
    other, shuffled = torch.randn(EDGES, WIDE), torch.randperm(EDGES)

    def each_with_each() -> Any:
        left, right = words[:, :, None].expand(-1, -1, 40, -1), words[:, None].expand(-1, 40, -1, -1)
        return torch.cat([left, right], -1)

    def upsampled() -> object:
        return narrow(torch.nn.functional.interpolate(picture, scale_factor=4, mode="bilinear"))

    forward: Callable[[], object] = {
        "picked": lambda: layer(nodes[source]),
        "messages": lambda: torch.zeros_like(nodes).index_add_(0, source, layer(nodes[source]) * weight),
        "selected": lambda: layer(nodes.index_select(0, source)),
        "upsampled": upsampled,
        "averaged": lambda: layer(texts).mean(1),
        "each with each": lambda: double(each_with_each()),
        "both ends of an edge": lambda: double(torch.cat([nodes[source], nodes[target]], 1)),
        "upsampled, of three by three": upsampled,
        "side by side, in another order": lambda: double(torch.cat([other[shuffled], edges], 1)).tanh(),
        "side by side, one below the other": lambda: layer(torch.cat([nodes[source], nodes[target]], 0)).tanh(),
        "side by side, and read besides": lambda: double(pairs := each_with_each()).tanh().sum() + pairs.square().sum(),
        "averaged over features": lambda: layer(texts).mean(-1),
        "averaged before": lambda: layer(texts.mean(1)),
        "after an activation": lambda: torch.relu(layer(texts)).mean(1),
        "picked after": lambda: layer(nodes)[source],
        "with something of the edge": lambda: layer(nodes[source] * 1.5),
        "of other rows, for a sum": lambda: nodes[source] + layer(edges),
        "of other rows, for a product": lambda: nodes[source] * layer(edges).relu(),
        "of other rows, of other columns": lambda: torch.cat([nodes[source], thin(edges)], 1),
        "of another picture, for a sum": lambda: (
            alike(wide) + torch.nn.functional.interpolate(picture, scale_factor=4, mode="bilinear")
        ),
        "of a picture behind, for a sum": lambda: torch.nn.functional.interpolate(picture, scale_factor=4).add(
            alike(wide)
        ),
        "of what is averaged besides": lambda: layer(texts).unsqueeze(0) * texts.mean(1)[:, None],
        "few": lambda: layer(nodes[source[: NODES + 100]]),
    }[way]

    def step() -> None:
        with torch.set_grad_enabled(learns):
            out = forward()
        if learns:
            out.square().sum().backward()  # type: ignore[attr-defined]

    return step


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize(
    "way", ["picked", "messages", "selected", "upsampled", "averaged", "each with each", "both ends of an edge"]
)
def test_a_layer_on_rows_that_are_alike_is_told(way: str, *, learns: bool, tmp_path: Path) -> None:
    pairs = way in {"each with each", "both ends of an edge"}
    worth = 1.02 if pairs else 1.1  # beside what is done with so many results
    finding = told_in(layers(way, learns=learns), tmp_path, spread, worth=worth)
    sizes = {"upsampled": ("4,608", "73,728"), "averaged": ("32", "6,400"), "each with each": ("160", "6,400")}
    few, many = sizes.get(way, ("500", "6,000"))
    assert f"works on {many} rows" in finding.title
    assert finding.title.endswith(few) or few in finding.title
    assert finding.gain is not None
    assert finding.gain.expected > worth
    assert finding.remedy is not None
    patch = "F.linear(h, a, layer.bias)[source]" if pairs else "self.value(h)[source]"
    assert patch in (finding.remedy.patch or "")


@pytest.mark.parametrize(
    "way",
    [
        "picked after",
        "with something of the edge",
        "few",
        "of other rows, for a sum",
        "of other rows, for a product",
        "of other rows, of other columns",
        "of another picture, for a sum",
        "of a picture behind, for a sum",
        "of what is averaged besides",
        "upsampled, of three by three",
        "averaged before",
        "averaged over features",
        "after an activation",
        "side by side, in another order",
        "side by side, one below the other",
        "side by side, and read besides",
    ],
)
def test_others_are_none(way: str, tmp_path: Path) -> None:
    assert spread(found_in(layers(way, learns=True), tmp_path)) is None
