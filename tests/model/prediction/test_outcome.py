"""What follows from two depths for a third: exact where every part grows by the same with each block."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall.model.prediction.events import Record
from whystall.model.prediction.outcome import Simulated, Work, deeper
from whystall.model.prediction.peaks import SectionPeak
from whystall.model.prediction.sharding import divided


def simulated(depth: int | None, sections: dict[tuple[str, str], dict[tuple[str, str], int]]) -> Simulated:
    return Simulated(
        sections={key: SectionPeak(sum(held.values()), held) for key, held in sections.items()},
        work={"forward": Work(100 + 10 * (depth or 0), 7, 3)},
        parameters=1000 + 64 * (depth or 0),
        trainable=0,
        parameter_bytes=0,
        gradient_bytes=0,
        state_bytes=0,
        largest_unit_bytes=40,
        blocks=None if depth is None else ("layers", depth),
        assumed=(),
        uncovered=(),
        record=Record(()),
    )


def model(depth: int, activations: int, state: int, base: int) -> Simulated:
    """A model whose forward pass keeps more with every block, and whose optimizer holds more."""
    held = {str(block): {("activations", "layers.*"): base + activations * (block + 1)} for block in range(depth)}
    return simulated(
        depth,
        {
            **{("forward", block): one for block, one in held.items()},
            ("forward", "before"): {("inputs", ""): base},
            ("optimizer", ""): {("optimizer state", ""): state * depth, ("temporaries", ""): base},
        },
    )


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.integers(4, 200))
def test_a_deep_model_follows_from_two_shallow_ones(activations: int, state: int, base: int, count: int) -> None:
    found = deeper(model(2, activations, state, base), model(3, activations, state, base), count)
    whole = model(count, activations, state, base)

    assert found.peak_bytes == whole.peak_bytes
    assert found.phase_peaks()["optimizer"].holdings == whole.phase_peaks()["optimizer"].holdings
    assert (found.parameters, found.work["forward"].flops) == (whole.parameters, whole.work["forward"].flops)


def test_the_fullest_phase_may_be_another_in_a_deep_model() -> None:
    low, high = model(2, 10, 9, 100), model(3, 10, 9, 100)

    assert max(high.phase_peaks(), key=lambda name: high.phase_peaks()[name].n_bytes) == "forward"
    assert (
        max((deep := deeper(low, model(3, 10, 30, 100), 40)).phase_peaks().values(), key=lambda one: one.n_bytes)
        == (deep.phase_peaks()["optimizer"])
    )


def test_a_model_without_blocks_has_no_other_depth() -> None:
    with pytest.raises(ValueError, match="no other depth"):
        deeper(simulated(None, {}), simulated(None, {}), 4)


@pytest.mark.parametrize(
    ("strategy", "parameters", "gradients", "state", "gathered"),
    [("ddp", 80, 80, 160, 0), ("zero1", 80, 80, 40, 0), ("zero2", 80, 20, 40, 0), ("zero3", 20, 20, 40, 80)],
)
def test_a_stage_divides_what_the_paper_says(
    strategy: str, parameters: int, gradients: int, state: int, gathered: int
) -> None:
    whole = {("parameters", ""): 80, ("gradients", ""): 80, ("optimizer state", ""): 160, ("activations", "m"): 9}

    found = divided(simulated(None, {("backward", ""): whole}), strategy, 4).sections["backward", ""]

    expected = {("parameters", ""): parameters, ("gradients", ""): gradients, ("optimizer state", ""): state}
    communication = {("communication", ""): gathered} if gathered else {}
    assert found.holdings == {**expected, ("activations", "m"): 9, **communication}
    assert found.n_bytes == sum(found.holdings.values())
