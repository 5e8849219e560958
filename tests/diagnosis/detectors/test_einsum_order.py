"""compute.redundant-work: einsums of several tensors, contracted from left to right, in recordings of torch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.diagnosis.detectors.recordings import found_in, told_in

from whystall.diagnosis.finding import Finding

torch = pytest.importorskip("torch")
BATCH, TEXT, SOUND, RANK = 96, 160, 120, 24


def contracted(found: dict[str, Finding]) -> Finding | None:
    """What is said of such sums."""
    one = found.get("compute.redundant-work")
    return one if one is not None and "an einsum of" in one.title else None


def fusion(equation: str, *, learns: bool) -> Callable[[], object]:
    """A step of a sum over tensors whose sizes are those of its letters."""
    torch.manual_seed(0)
    sizes = {"b": BATCH, "i": TEXT, "j": SOUND, "r": RANK, "n": BATCH}
    operands = [
        torch.randn([sizes[letter] for letter in names], requires_grad=learns)
        for names in equation.partition("->")[0].split(",")
    ]

    def step() -> None:
        out = torch.einsum(equation, *operands)
        if learns:
            out.square().sum().backward()

    return step


@pytest.fixture(autouse=True)
def from_left_to_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch does where `opt_einsum` is not installed."""
    monkeypatch.setattr(torch.backends.opt_einsum, "enabled", False)


@pytest.mark.parametrize("learns", [False, True])
def test_an_outer_product_that_another_order_needs_not_is_told(*, learns: bool, tmp_path: Path) -> None:
    finding = told_in(fusion("bi,bj,ir,jr->br", learns=learns), tmp_path, contracted, worth=2)
    assert "an einsum of 4 tensors" in finding.title
    assert finding.gain is not None
    # 96 x 160 x 120 x (1 + 24) and more multiplications, of which 96 x 24 x (160 + 120) are left
    assert finding.gain.expected > 2
    assert finding.remedy is not None
    assert "opt-einsum" in (finding.remedy.patch or "")


@pytest.mark.parametrize(
    "equation",
    [
        pytest.param("bi,ir->br", id="two"),
        pytest.param("bi,ir,rj->bj", id="in the best order"),
        pytest.param("bi,ni,ir->nr", id="two dimensions of one size"),
    ],
)
def test_others_are_none(equation: str, tmp_path: Path) -> None:
    assert contracted(found_in(fusion(equation, learns=True), tmp_path)) is None
