"""compute.redundant-work: layers on rows that were repeated, or are averaged after, in recordings of torch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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

    def upsampled() -> object:
        return narrow(torch.nn.functional.interpolate(picture, scale_factor=4, mode="bilinear"))

    forward: Callable[[], object] = {
        "picked": lambda: layer(nodes[source]),
        "messages": lambda: torch.zeros_like(nodes).index_add_(0, source, layer(nodes[source]) * weight),
        "selected": lambda: layer(nodes.index_select(0, source)),
        "upsampled": upsampled,
        "averaged": lambda: layer(texts).mean(1),
        "upsampled, of three by three": upsampled,
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
@pytest.mark.parametrize("way", ["picked", "messages", "selected", "upsampled", "averaged"])
def test_a_layer_on_rows_that_are_alike_is_told(way: str, *, learns: bool, tmp_path: Path) -> None:
    finding = told_in(layers(way, learns=learns), tmp_path, spread, worth=1.1)
    few, many = {"upsampled": ("4,608", "73,728"), "averaged": ("32", "6,400")}.get(way, ("500", "6,000"))
    assert f"works on {many} rows" in finding.title
    assert finding.title.endswith(few) or few in finding.title
    assert finding.gain is not None
    assert finding.gain.expected > 1.1
    assert finding.remedy is not None
    assert "self.value(h)[source]" in (finding.remedy.patch or "")


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
    ],
)
def test_others_are_none(way: str, tmp_path: Path) -> None:
    assert spread(found_in(layers(way, learns=True), tmp_path)) is None
