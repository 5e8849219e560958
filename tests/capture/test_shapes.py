"""What is asked of the tensors that a module is called with: plain sizes of plain tensors, and nothing of others."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402 - after torch was found

from whystall.capture.listener import shapes_of  # noqa: E402


def test_tensors_and_parameters_have_shapes_and_other_values_none() -> None:
    given = (torch.zeros(2, 3), torch.nn.Parameter(torch.zeros(4)), 5, None, "text")
    assert shapes_of(given) == ((2, 3), (4,))


def test_of_nested_tensors_nothing_is_asked() -> None:
    assert shapes_of((torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged),)) == ()


def test_a_size_that_is_symbolic_stays_so() -> None:
    """A graph that is traced for any batch must not be one for this batch alone because somebody looked."""

    def doubled(x: Any) -> Any:
        shapes_of((x,))
        return x.view(x.shape[0], -1) * 2

    graph = make_fx(doubled, tracing_mode="symbolic")(torch.zeros(5, 4))
    assert "sym_size" in graph.code
