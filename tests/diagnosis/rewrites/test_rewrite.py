"""Rewrites on recordings of their own making, and on such as no program makes."""

from __future__ import annotations

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, shaped

from whystall.diagnosis.rewrites import REWRITES

ANCHORS = sorted(set().union(*(one.anchors for one in REWRITES)))


@pytest.mark.parametrize("name", ANCHORS)
@pytest.mark.parametrize("dims", [[], [[]], [[0, 0], [0, 0]], [[3]], [[3, 4], [5, 6]], [[1 << 40, 1 << 40]] * 2])
def test_calls_that_no_program_makes_are_none(name: str, dims: list[list[int]]) -> None:
    made = Job()
    for _ in made.steps(4):
        for _ in range(3):
            with made.inside(name, **shaped(*dims)):
                made.python(1_000_000)
    assert "compute.redundant-work" not in found_in(made.built)


def test_a_chain_of_many_views_is_followed_to_its_end() -> None:
    """Longer than Python's stack is deep: of three products by way of a large one the outer ones are still seen."""
    made = Job()
    for _ in made.steps(4):
        with made.inside("aten::mm", **shaped([600, 8], [8, 600])):
            made.python(8_000_000)
        for _ in range(1500):
            with made.inside("aten::t", **shaped([600, 600])):
                made.python(1000)
        with made.inside("aten::mm", **shaped([600, 600], [600, 8])):
            made.python(8_000_000)
    assert "three matrices" in found_in(made.built)["compute.redundant-work"].title


@pytest.mark.parametrize("between", ["", "aten::mul", "compiled", "by hand"])
def test_products_with_work_of_unknown_tensors_between_are_no_chain(between: str) -> None:
    """A compiled or hand-written kernel between two products may change what the second one reads."""
    made = Job()
    for _ in made.steps(4):
        made.operator("aten::mm", "gemm", 8_000_000, **shaped([600, 8], [8, 600]))
        if between == "aten::mul":
            made.operator("aten::mul", "scale", 400_000, **shaped([7, 5], []))
        elif between == "compiled":
            made.operator("triton_poi_fused_gelu_3", "triton_poi_fused_gelu_3", 400_000)
        elif between == "by hand":
            made.launch("gelu", 400_000)
        made.operator("aten::mm", "gemm", 8_000_000, **shaped([600, 600], [600, 8]))
        made.wait()
    assert ("compute.redundant-work" in found_in(made.built)) == (between in {"", "aten::mul"})
