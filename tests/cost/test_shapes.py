"""What recorded calls return, held against what torch returns."""

from __future__ import annotations

from typing import Any

import pytest

from whystall.cost.shapes import results
from whystall.cost.spec import Argument, TensorSpec

torch = pytest.importorskip("torch")


def given(value: Any) -> Argument:
    """An argument as a recording has it."""
    if isinstance(value, torch.Tensor):
        return TensorSpec(tuple(value.shape), str(value.dtype).removeprefix("torch."), value.stride())
    return [given(one) for one in value] if isinstance(value, (list, tuple)) else value


X, Y = torch.rand(4, 5, 6), torch.rand(6, 3)
TURNED = torch.rand(6, 5, 4).permute(2, 1, 0)
CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("as_strided", (X, [4, 6], [6, 0])),
    ("view", (X, [20, -1])),
    ("_unsafe_view", (X, [5, 24])),
    ("permute", (X, [2, 0, 1])),
    ("transpose", (X, 0, -1)),
    ("t", (Y,)),
    ("mT", (X,)),
    ("expand", (Y, [7, -1, 3])),
    ("unsqueeze", (X, 1)),
    ("unsqueeze", (Y, -1)),
    ("squeeze", (torch.rand(3, 1, 2, 1),)),
    ("squeeze", (torch.rand(3, 1, 2, 1), 1)),
    ("squeeze", (torch.rand(3, 1, 2, 1), [1, 0])),
    ("select", (X, 1, 2)),
    ("slice", (X, -1, 1, 6, 2)),
    ("slice", (X, 0, 2, 1 << 62)),
    ("detach", (TURNED,)),
    ("cat", ([X, X, X], 1)),
    ("stack", ([Y, Y], -1)),
    ("repeat", (Y, [2, 1, 3])),
    ("diag_embed", (Y,)),
    ("diag_embed", (Y, 1)),
    ("sum", (X,)),
    ("sum", (X, [1])),
    ("sum", (X, [0, -1], True)),
    ("mean", (X, [])),
    ("amax", (X, [2], True)),
    ("max", (X, 1)),
    ("argmax", (X, 1)),
    ("argmax", (X, None)),
    ("sort", (X, -1)),
    ("topk", (X, 2, 1)),
    ("eq", (X, X)),
    ("gt", (X, 0.5)),
    ("mm", (torch.rand(4, 6), Y)),
    ("bmm", (X, torch.rand(4, 6, 2))),
    ("addmm", (torch.rand(3), torch.rand(4, 6), Y)),
    ("mul", (TURNED, 2.0)),
    ("add", (X, torch.rand(6))),
    ("add_", (X.clone(), 1.0)),
    ("relu", (TURNED,)),
    ("_softmax", (X, -1, False)),
    ("embedding", (Y, torch.zeros(2, 7, dtype=torch.long))),
    ("index_select", (X, 1, torch.zeros(9, dtype=torch.long))),
    ("gather", (Y, 0, torch.zeros(2, 3, dtype=torch.long))),
    ("native_layer_norm", (X, [6], None, None, 1e-5)),
    ("clone", (X,)),
    ("linalg_cholesky_ex", (torch.eye(4),)),
    ("linalg_inv_ex", (torch.eye(4),)),
]


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=[f"{name}-{at}" for at, (name, _) in enumerate(CALLS)])
def test_results_have_the_shapes_and_dtypes_of_torchs_own(name: str, arguments: tuple[Any, ...]) -> None:
    returned = getattr(torch.ops.aten, name)(*arguments)
    expected = [one for one in (returned if isinstance(returned, (tuple, list)) else [returned]) if one.numel()]
    found = results(f"aten::{name}", [given(one) for one in arguments])

    assert found is not None
    assert [one.shape for one in found[:1]] == [tuple(one.shape) for one in expected[:1]]
    assert [one.dtype for one in found[:1]] == [str(one.dtype).removeprefix("torch.") for one in expected[:1]]
    if found[0].strides is not None:
        kept = [place for place, size in enumerate(expected[0].shape) if size > 1]
        assert [found[0].strides[one] for one in kept] == [expected[0].stride()[one] for one in kept]


@pytest.mark.parametrize("name", ["aten::max_pool2d_with_indices", "aten::nonzero", "my::operator", "aten::t"])
def test_results_that_no_argument_decides_are_not_known(name: str) -> None:
    assert results(name, [None]) is None
