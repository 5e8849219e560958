"""Times by module, and what a profile says of itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from whystall import model_profile
from whystall.model.profile import with_times
from whystall.model.results import Amount
from whystall.model.stopwatch import _less_inner


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 8)))


def test_every_phase_has_a_time() -> None:
    model = network()

    profile = model_profile(model, torch.randn(8, 64), optimizer=torch.optim.AdamW(model.parameters()))

    assert profile.time_repeats == 3
    for phase in (profile.forward, profile.backward, profile.optimizer):
        assert phase.time_ns is not None
        assert phase.time_ns > 0
    assert profile.recompute.time_ns is None


def test_children_take_no_longer_than_their_parent() -> None:
    profile = model_profile(network(), torch.randn(8, 64), repeats=1)

    for module in profile.modules:
        children = [one for one in profile.modules if one.parent == module.path and one.path]
        for phase in ("forward", "backward"):
            total = getattr(module, phase).time_ns or 0
            assert sum(getattr(child, phase).time_ns or 0 for child in children) <= total


def test_recomputation_has_a_time_of_its_own() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Any) -> Any:
            return checkpoint(self.inner, x, use_reentrant=False)

    profile = model_profile(Checkpointed(), torch.randn(8, 64, requires_grad=True), repeats=1)

    assert profile.module("inner.0").recompute.time_ns
    assert profile.recompute.time_ns


def test_times_are_medians_with_their_range() -> None:
    profile = model_profile(nn.Linear(8, 8), torch.randn(8, 8), repeats=0)

    timed = with_times(profile, [{("", "forward"): 10}, {("", "forward"): 14}, {("", "forward"): 11}], None)

    assert (timed.forward.time_ns, timed.forward.time_spread_ns) == (11, 4)
    assert timed.modules[0].forward == timed.forward
    assert profile.untimed_because == "timing was not asked for"


def test_another_profiler_is_not_disturbed() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        profile = model_profile(nn.Linear(8, 8), torch.randn(8, 8))

    assert profile.untimed_because == "another profiler is running"


def test_own_time_excludes_what_is_inside() -> None:
    assert _less_inner([(0, 100), (10, 40), (20, 30), (50, 60), (120, 130)]) == [60, 20, 10, 10, 10]


def test_a_loss_can_be_given() -> None:
    profile = model_profile(nn.Linear(8, 8), torch.randn(4, 8), loss=lambda output: output.square().mean(), repeats=0)

    assert profile.backward.model_flops == 2 * 4 * 8 * 8


def test_inference_has_no_backward() -> None:
    profile = model_profile(nn.Linear(8, 8), torch.randn(4, 8), backward=False, repeats=0)

    assert profile.backward == Amount()


def test_profiles_serialise() -> None:
    profile = model_profile(network(), torch.randn(8, 64), repeats=0)

    parsed = msgspec.json.decode(msgspec.json.encode(profile), type=type(profile))

    assert parsed == profile


def test_an_unknown_path_names_its_neighbours() -> None:
    profile = model_profile(network(), torch.randn(8, 64), repeats=0)

    with pytest.raises(KeyError, match=r"no module '2\.7'; there are '2', '2\.0', '2\.1'"):
        profile.module("2.7")
