"""Several backward passes through what losses share, in recordings of torch's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.diagnosis.detectors.recordings import found_in, told_in

from whystall.diagnosis.finding import Finding

torch = pytest.importorskip("torch")


def repeated(found: dict[str, Finding]) -> Finding | None:
    """What is said of work that is for nothing."""
    return found.get("compute.redundant-work")


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

    if together:
        assert repeated(found_in(step, tmp_path)) is None
    else:
        finding = told_in(step, tmp_path, repeated)
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

    finding = told_in(step, tmp_path, repeated)
    assert finding.remedy is not None
    assert "fake.detach()" in (finding.remedy.patch or "")
