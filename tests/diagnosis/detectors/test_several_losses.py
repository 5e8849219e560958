"""Several backward passes through what losses share, in recordings of torch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import whystall
from whystall.diagnosis.finding import Finding

torch = pytest.importorskip("torch")


def found_in(step: Callable[[], object], tmp_path: Path) -> list[Finding]:
    """What is said of work that is for nothing in five steps."""
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as recorded:
        for number in range(5):
            with torch.profiler.record_function(f"ProfilerStep#{number}"):
                step()
    recorded.export_chrome_trace(str(tmp_path / "trace.json"))
    found = whystall.analyze(tmp_path / "trace.json", cache=False).findings
    return [one for one in found if one.id == "compute.redundant-work"]


def network(wide: int = 256) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(wide, wide) for _ in range(4)))


@pytest.mark.parametrize("together", [False, True])
def test_losses_of_one_trunk_go_back_through_it_once(together: bool, tmp_path: Path) -> None:
    trunk, heads = network(), [torch.nn.Linear(256, 1) for _ in range(3)]
    optimizer = torch.optim.SGD([p for one in (trunk, *heads) for p in one.parameters()], lr=1e-3)
    given = torch.randn(256, 256)

    def step() -> None:
        optimizer.zero_grad()
        shared = trunk(given)
        losses = [head(shared).square().mean() for head in heads]
        if together:
            sum(losses).backward()
        else:
            for loss in losses:
                loss.backward(retain_graph=True)
        optimizer.step()

    found = found_in(step, tmp_path)
    if together:
        assert not found
    else:
        [finding] = found
        assert finding.remedy is not None
        assert "sum(losses).backward()" in (finding.remedy.patch or "")


def test_a_generator_that_its_critics_loss_goes_back_through_is_to_be_detached(tmp_path: Path) -> None:
    """Both losses go through the generator, and its critic's gradients of it are dropped before its own."""
    generator, critic = network(), network()
    of_generator, of_critic = (torch.optim.SGD(one.parameters(), lr=1e-3) for one in (generator, critic))
    given, real = torch.randn(256, 256), torch.randn(256, 256)

    def step() -> None:
        fake = generator(given)
        of_critic.zero_grad()
        (critic(fake).mean() - critic(real).mean()).backward(retain_graph=True)
        of_critic.step()
        of_generator.zero_grad()
        (-critic(fake).mean()).backward()
        of_generator.step()

    [finding] = found_in(step, tmp_path)
    assert finding.remedy is not None
    assert "fake.detach()" in (finding.remedy.patch or "")
