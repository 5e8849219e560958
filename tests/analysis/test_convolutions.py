"""Convolutions of old traces.

Sizes that were not recorded are found elsewhere, or the operator is named as uncovered.
"""

from __future__ import annotations

import json
from math import prod
from typing import Any

import pytest
from tests.conftest import RealTraces

from whystall.analysis.results import Operator
from whystall.analysis.trace_analysis import TraceAnalysis, analyze_trace
from whystall.analysis.uncovered import NO_ARGUMENTS, NO_FORMULA, NO_OPERATOR, NO_SHAPES
from whystall.cost import recorded_cost
from whystall.testing import TraceBuilder, trace
from whystall.testing.builder import BACKWARD_THREAD

DATA, WEIGHT, RESULT = [2, 8, 10, 10], [16, 4, 3, 3], [2, 16, 5, 5]  # stride 2, padding 1, two groups
FLOPS = 2 * 2 * 16 * 5 * 5 * 4 * 3 * 3  # two for each product, of every result with the filter of its group


def shapes(*dims: list[int], types: str = "float") -> dict[str, Any]:
    return {"Input Dims": list(dims), "Input type": [types] * len(dims)}


def training(*, backward: bool = True, forward_name: str = "aten::cudnn_convolution") -> TraceBuilder:
    """A convolution as PyTorch 1.9 recorded it, without any number beside the shapes."""
    built = trace()
    built.operator("aten::conv2d", at=0, lasts=9_000, **{"Sequence number": 5}, **shapes(DATA, WEIGHT, [], [], []))
    bare: dict[str, Any] = {
        "Input Dims": [DATA, WEIGHT, [], [], [], []],
        "Input type": ["float", "float", *["GenericList"] * 3, "Int"],
    }
    built.operator(forward_name, at=1_000, lasts=7_000, **{"Sequence number": 5}, **bare)
    built.launch("scudnn_fprop", at=2_000, runs_at=50_000, lasts=4_000)
    if backward:
        linked: dict[str, Any] = {"Sequence number": 5, "Fwd thread id": 1}
        thread = BACKWARD_THREAD
        built.operator("CudnnConvolutionBackward", at=20_000, lasts=20_000, thread=thread, **linked)
        built.operator(
            "aten::cudnn_convolution_backward", at=21_000, lasts=18_000, thread=thread, **shapes(DATA, RESULT, WEIGHT)
        )
        for at, kind, other in ((22_000, "input", WEIGHT), (30_000, "weight", DATA)):
            arguments = {"Input Dims": [[], RESULT, other], "Input type": ["GenericList", "float", "float"]}
            built.operator(f"aten::cudnn_convolution_backward_{kind}", at=at, lasts=6_000, thread=thread, **arguments)
            built.launch(f"{kind}_grad", at=at + 1_000, runs_at=at + 50_000, lasts=5_000, thread=thread)
    return built


def analysed(built: TraceBuilder) -> TraceAnalysis:
    return analyze_trace(built.load())


def row(found: TraceAnalysis, name: str) -> Operator:
    return next(one for one in found.operators if one.name == name)


@pytest.mark.parametrize("name", ["", "_backward_input", "_backward_weight"])
def test_each_of_the_three_costs_the_same(name: str) -> None:
    found = row(analysed(training()), f"aten::cudnn_convolution{name}")
    assert found.flops == FLOPS
    assert found.bytes == 4 * (prod(DATA) + prod(WEIGHT) + prod(RESULT))


def test_nothing_is_counted_twice() -> None:
    found = analysed(training())
    assert row(found, "aten::conv2d").flops is None
    assert row(found, "aten::cudnn_convolution_backward").flops is None
    assert found.efficiency[0].covered_share == 1.0
    assert sum(one.flops for one in found.efficiency[0].by_dtype) == 3 * FLOPS


def test_a_forward_alone_does_not_tell_its_result_and_is_listed() -> None:
    found = analysed(training(backward=False))
    assert row(found, "aten::cudnn_convolution").flops is None
    (left,) = found.efficiency[0].uncovered
    assert (left.operator, left.events, left.device_ns, left.because) == (
        "aten::cudnn_convolution", 1, 4_000, NO_ARGUMENTS,
    )  # fmt: skip


def test_a_gradient_that_fits_no_result_is_not_believed() -> None:
    built = training()
    for event in built.events:
        if event["name"] == "aten::cudnn_convolution_backward":
            event["args"]["Input Dims"][1] = [2, 17, 5, 5]  # there are 16 channels
    assert row(analysed(built), "aten::cudnn_convolution").flops is None


@pytest.mark.parametrize("dims", [[], "text", [DATA, -1, WEIGHT], [[1], [2], [3]], [DATA]])
def test_hostile_shapes_do_no_harm(dims: Any) -> None:
    built = training()
    for event in built.events:
        if event["name"] == "aten::cudnn_convolution_backward":
            event["args"]["Input Dims"] = dims
    assert analysed(built).devices


def test_everything_that_is_not_covered_has_a_reason() -> None:
    built = training()
    built.operator("my::secret", at=100_000, lasts=9_000, **shapes([8], [8]))
    built.launch("secret_kernel", at=101_000, runs_at=200_000, lasts=7_000)
    built.operator("aten::mm", at=120_000, lasts=9_000)
    built.launch("gemm", at=121_000, runs_at=210_000, lasts=6_000)
    built.kernel("from_before", at=300_000, lasts=500)
    found = analysed(built).efficiency[0]
    assert [(one.operator, one.device_ns, one.because) for one in found.uncovered] == [
        ("my::secret", 7_000, NO_FORMULA),
        ("aten::mm", 6_000, NO_SHAPES),
        (None, 500, NO_OPERATOR),
    ]


def call(name: str, dims: list[list[int]], concrete: list[str]) -> int | None:
    types = json.dumps(["float" if one else "ScalarList" for one in dims])
    cost = recorded_cost(name, json.dumps(dims), types, json.dumps(concrete))
    return None if cost is None else cost.model_flops


def test_old_operators_with_their_numbers() -> None:
    numbers = ["[1, 1]", "[2, 2]", "[1, 1]", "2", "False", "False", "True"]
    whole = [DATA, RESULT, WEIGHT, [], [], [], [], [], [], [], []]
    for mask, times in (("[True, True]", 2), ("[False, True]", 1), ("[False, False]", 0)):
        found = call("aten::cudnn_convolution_backward", whole, ["", "", "", *numbers, mask])
        assert found == times * FLOPS
    part = [[], RESULT, WEIGHT, [], [], [], [], [], [], []]
    assert call("aten::cudnn_convolution_backward_input", part, [str(DATA), "", "", *numbers]) == FLOPS
    part = [[], RESULT, DATA, [], [], [], [], [], [], []]
    assert call("aten::cudnn_convolution_backward_weight", part, [str(WEIGHT), "", "", *numbers]) == FLOPS


def test_old_transposed_operators() -> None:
    """A transposed convolution from 5 x 5 to 10 x 10: every input position meets the whole weight."""
    small, large, weight = [2, 16, 5, 5], [2, 8, 10, 10], [16, 4, 3, 3]
    numbers = ["[1, 1]", "[2, 2]", "[1, 1]", "2", "False", "False", "True"]
    part = [large, weight, [], [], [], [], [], [], []]
    assert call("aten::cudnn_convolution_transpose_backward_input", part, ["", "", *numbers]) == FLOPS
    part = [[], large, small, [], [], [], [], [], [], []]
    found = call("aten::cudnn_convolution_transpose_backward_weight", part, [str(weight), "", "", *numbers])
    assert found == FLOPS


def resnet_50_macs() -> int:
    """Multiply-accumulates of ResNet-50's convolutions for one image, from its definition (stride in the 3 x 3)."""
    total, side, inputs = 112**2 * 64 * 3 * 7**2, 56, 64
    for place, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            stride = 2 if block == 0 and place > 0 else 1
            inner = side // stride
            total += side**2 * inputs * width + inner**2 * width * width * 9 + inner**2 * width * 4 * width
            if block == 0:
                total += inner**2 * inputs * 4 * width
            side, inputs = inner, 4 * width
    return total


@pytest.mark.real_traces
@pytest.mark.parametrize("name", ["resnet50-workers0-v100.json.gz", "resnet50-workers4-v100.json.gz"])
def test_a_real_resnet_50_of_2021(real_traces: RealTraces, name: str) -> None:
    """Six steps of 32 images. The first convolution's input needs no gradient."""
    report = real_traces.report(name)
    flops = {one.name: one.flops for one in report.operators}
    step = 2 * resnet_50_macs() * 32 * 6
    stem = 2 * 112**2 * 64 * 3 * 7**2 * 32 * 6
    assert flops["aten::cudnn_convolution"] == step
    assert flops["aten::cudnn_convolution_backward_weight"] == step
    assert flops["aten::cudnn_convolution_backward_input"] == step - stem
    assert report.efficiency.devices[0].covered_share > 0.999
