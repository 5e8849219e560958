"""Several backward passes through what losses share, in recordings of torch's own."""

from __future__ import annotations

from collections.abc import Callable
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


OPTIMIZERS: list[Any] = [
    lambda p: torch.optim.Adam(p, lr=1e-3),
    lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
]


@pytest.mark.parametrize("made", OPTIMIZERS, ids=["Adam", "fused", "momentum"])
def test_a_generators_layers_of_its_critics_sizes_are_lost_with_the_others(made: Any, tmp_path: Path) -> None:
    """One layer of the generator's has a size of its own; it goes back through eight more of the critic's sizes.

    All nine are worth 1.31 on a machine at rest, and the one layer by itself next to nothing.
    """
    generator, critic = torch.nn.Sequential(torch.nn.Linear(64, 256), network(), network()), network()
    of_generator, of_critic = made(generator.parameters()), made(critic.parameters())
    noise, real = torch.randn(1024, 64), torch.randn(1024, 256)  # so many rows that layers outweigh calls

    def step() -> None:
        for _ in range(2):
            fake = generator(noise)
            of_critic.zero_grad()
            (critic(fake).mean() - critic(real).mean()).backward()
            of_critic.step()
        of_generator.zero_grad()
        (-critic(generator(noise)).mean()).backward()
        of_generator.step()

    finding = told_in(step, tmp_path, repeated, worth=1.15)
    assert finding.remedy is not None
    assert "fake.detach()" in (finding.remedy.patch or "")
    assert finding.gain is not None
    assert finding.gain.expected < 2


def test_two_optimizers_that_step_after_one_pass_read_all_of_it(tmp_path: Path) -> None:
    encoder, decoder = torch.nn.Sequential(torch.nn.Linear(64, 256), network()), network()
    optimizers = [torch.optim.Adam(one.parameters(), lr=1e-3) for one in (encoder, decoder)]
    given = torch.randn(256, 64)

    def step() -> None:
        for one in optimizers:
            one.zero_grad()
        decoder(encoder(given)).square().mean().backward()
        for one in optimizers:
            one.step()

    assert repeated(found_in(step, tmp_path)) is None


def scene(wide: int = 24) -> Any:
    """A trunk of convolutions and three heads of its own kind."""
    torch.manual_seed(0)
    layers = []
    for first in (3, wide):
        layers += [torch.nn.Conv2d(first, wide, 3, padding=1, bias=False), torch.nn.BatchNorm2d(wide), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers), [torch.nn.Conv2d(wide, count, 1) for count in (1, 3, 13)]


def each_loss_alone(between: Callable[[list[Any]], object] = lambda _: None, micro: bool = False) -> Callable[[], None]:
    trunk, heads = scene()
    parameters = [p for one in (trunk, *heads) for p in one.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    given = torch.randn(4, 3, 48, 48)

    def step() -> None:
        optimizer.zero_grad()
        shared = trunk(given)
        for number, head in enumerate(heads):
            loss = head(trunk(given) if micro else shared).abs().mean()
            loss.backward(retain_graph=True)
            if number + 1 < len(heads):
                between(parameters)
        optimizer.step()

    return step


def test_convolutions_that_each_loss_goes_back_through_are_worth_all_passes_but_one(tmp_path: Path) -> None:
    finding = told_in(each_loss_alone(), tmp_path, repeated, worth=1.3)
    assert finding.remedy is not None
    assert "sum(losses).backward()" in (finding.remedy.patch or "")
    assert finding.gain is not None
    assert finding.gain.expected < 3


KEPT: list[Any] = []


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda: each_loss_alone(micro=True), id="each loss has a forward pass of its own"),
        pytest.param(
            lambda: each_loss_alone(lambda all_of: KEPT.append([p.grad.clone() for p in all_of if p.grad is not None])),
            id="gradients of each loss are kept",
        ),
        pytest.param(
            lambda: each_loss_alone(lambda all_of: [p.grad.mul_(0.5) for p in all_of if p.grad is not None]),
            id="gradients are weighed between",
        ),
    ],
)
def test_passes_whose_gradients_are_wanted_by_themselves_are_not_summed(
    step: Callable[[], Callable[[], None]], tmp_path: Path
) -> None:
    finding = repeated(found_in(step(), tmp_path))
    assert finding is None or finding.remedy is None or "sum(losses)" not in (finding.remedy.patch or "")


def test_a_penalty_on_gradients_goes_back_through_a_graph_twice(tmp_path: Path) -> None:
    critic = network()
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    kept = torch.randn(256, 256)

    def step() -> None:
        given = kept.clone().requires_grad_()
        optimizer.zero_grad()
        score = critic(given).sum()
        (slope,) = torch.autograd.grad(score, given, create_graph=True)
        (score / 256 + (slope.norm(dim=1) - 1).square().mean()).backward()
        optimizer.step()

    assert repeated(found_in(step, tmp_path)) is None
