"""compute.redundant-work: what an optimizer factors anew in each of its steps, in recordings of torch's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.diagnosis.detectors.recordings import found_in, told_in

from whystall.diagnosis.finding import Finding

torch = pytest.importorskip("torch")


class Preconditioned(torch.optim.Optimizer):  # type: ignore[name-defined]
    """Whitens the gradients of matrices by the inverse root of what they were; renews it every so many steps."""

    def __init__(self, params: Any, every: int) -> None:
        super().__init__(list(params), {"lr": 1e-3})
        self.every, self.count = every, 0

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        del closure
        for one in self.param_groups[0]["params"]:
            state = self.state[one]
            seen = state.setdefault("seen", torch.eye(one.shape[0]))
            seen.lerp_(one.grad @ one.grad.T, 0.1)
            if self.count % self.every == 0:
                values, vectors = torch.linalg.eigh(seen)
                state["root"] = vectors * values.clamp(1e-6).rsqrt() @ vectors.T
            one.add_(state["root"] @ one.grad, alpha=-1e-3)
        self.count += 1


@pytest.mark.parametrize(("every", "told"), [(1, True), (3, False)])
def test_roots_in_every_step_are_told_and_others_are_not(*, every: int, told: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = [torch.randn(128, 128, requires_grad=True) for _ in range(3)]
    given = torch.randn(256, 128)
    optimizer = Preconditioned(weights, every)

    def step() -> None:
        optimizer.zero_grad()
        hidden = given
        for weight in weights:
            hidden = torch.tanh(hidden @ weight)
        hidden.square().mean().backward()
        optimizer.step()

    def anew(found: dict[str, Finding]) -> Finding | None:
        one = found.get("compute.redundant-work")
        return one if one is not None and "factors 3 matrices anew" in one.title and one.gain is not None else None

    if told:
        gain = told_in(step, tmp_path, anew, worth=1.2).gain
        assert gain is not None
        assert gain.expected > 1.2
    else:
        assert anew(found_in(step, tmp_path)) is None


def test_factors_outside_of_the_optimizer_are_the_models(tmp_path: Path) -> None:
    weight, given = torch.randn(128, 128, requires_grad=True), torch.randn(256, 128)
    optimizer = torch.optim.SGD([weight], lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        cov = (given @ weight).T @ (given @ weight) + torch.eye(128)
        torch.linalg.cholesky(cov).diagonal().log().sum().backward()
        optimizer.step()

    found = found_in(step, tmp_path).get("compute.redundant-work")
    assert found is None or "anew" not in found.title
