"""Every small case is exact: with and without gradients, and in inference mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from tests.model.micro_cases import CASES

from whystall import FlopCounter, cost

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture(autouse=True)
def _custom_operator() -> Iterator[None]:
    cost.register("whystall_cases::mm2", lambda a, b: 2 * a.numel * b.shape[-1])
    yield
    cost.unregister("whystall_cases::mm2")


@pytest.mark.parametrize(
    "mode", [nullcontext, torch.no_grad, torch.inference_mode], ids=["grad", "no_grad", "inference"]
)
@pytest.mark.parametrize("case", CASES)
def test_forward_flops(case: str, mode: Callable[[], AbstractContextManager[Any]]) -> None:
    model, args, expected = CASES[case]()

    with FlopCounter(model) as counter, mode():
        model(*args)

    assert counter.profile.forward.model_flops == expected
    assert counter.profile.uncovered == ()
    assert counter.failure is None


def test_an_operator_without_formula_is_reported() -> None:
    model, args, _ = CASES["custom_op"]()
    cost.unregister("whystall_cases::mm2")

    with FlopCounter(model) as counter:
        model(*args)

    (uncovered,) = counter.profile.uncovered
    cost.register("whystall_cases::mm2", lambda a, _b: a.numel)
    assert (uncovered.name, uncovered.calls, uncovered.modules) == ("whystall_cases::mm2", 1, ("",))


def test_a_formula_that_fails_says_why() -> None:
    def broken(x: Any, *_: Any) -> int:
        raise RuntimeError("no such table")

    cost.register("aten::erfinv", broken)
    try:
        with FlopCounter() as counter:
            torch.erfinv(torch.zeros(4))
        (listed,) = counter.profile.uncovered
    finally:
        cost.unregister("aten::erfinv")

    assert listed.reason == "its formula raised RuntimeError: no such table"
