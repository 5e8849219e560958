"""Seven whole models, forward and backward, with eager and with fused attention: exact."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from tests.model.models import MODELS, first, flops_mixtral, mixtral
from torch._subclasses.fake_tensor import FakeTensorMode

from whystall import FlopCounter
from whystall.model.results import ModelProfile

pytestmark = pytest.mark.usefixtures("way")

pytest.importorskip("transformers", reason="the models come from transformers")

TOTALS = {  # forward, forward and backward: ../shared/reference/flops.md, equal to the formulas beside the models
    "bert": (348_758_474_752, 1_046_275_424_256),
    "llama": (42_010_148_864, 126_030_446_592),
    "gpt2": (64_456_359_936, 193_369_079_808),
    "mixtral": (3_133_145_088, 9_399_435_264),
    "vit": (70_255_312_896, 210_303_516_672),
    "t5": (21_827_158_016, 65_481_474_048),
    "resnet": (7_256_293_376, 21_296_824_320),
}
FAKE = {"bert", "gpt2", "llama", "t5"}  # counted without computing; the others ask for data


def count(build: Any, *options: Any, fake: bool = False) -> ModelProfile:
    without_data: AbstractContextManager[Any] = FakeTensorMode() if fake else nullcontext()
    with without_data:
        model, inputs = build(*options)
        model.eval()
        with FlopCounter(model) as counter:
            output = first(model(**inputs))
            torch.autograd.backward([output], [torch.ones_like(output)])
    assert counter.failure is None
    return counter.profile


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
def test_whole_models_are_exact(name: str, attention: str) -> None:
    build, analytic = MODELS[name]
    linear, core, backward = analytic()

    profile = count(build, attention, fake=name in FAKE)

    assert (profile.forward.model_flops, profile.backward.model_flops) == (linear + core, backward)
    assert (profile.forward.model_flops, profile.model_flops) == TOTALS[name]
    assert profile.input_gradient_flops + profile.weight_gradient_flops == backward
    assert profile.uncovered == ()
    for module in profile.modules:
        children = [one for one in profile.modules if one.parent == module.path and one.path]
        for phase in ("forward", "backward"):
            own = getattr(module, phase).model_flops
            assert sum(getattr(child, phase).model_flops for child in children) <= own


@pytest.mark.parametrize(("name", "expected"), [("bert", 1_049_496_649_728), ("llama", 127_104_188_416)])
def test_fused_attention_executes_more_than_the_model_asks(name: str, expected: int) -> None:
    assert count(MODELS[name][0], "sdpa", fake=name in FAKE).executed_flops == expected


@pytest.mark.parametrize(
    ("name", "attention", "expected"),
    [
        ("bert", "eager", 349_502_520_320),
        ("bert", "sdpa", 349_351_918_592),
        ("llama", "eager", 42_117_391_360),
        ("llama", "sdpa", 42_058_736_640),
    ],
)
def test_every_operation_of_the_forward_pass(name: str, attention: str, expected: int) -> None:
    assert count(MODELS[name][0], attention, fake=name in FAKE).forward.all_flops == expected


@pytest.mark.parametrize("experts", ["grouped_mm", "eager", "batched_mm"])
def test_experts_count_the_same_however_they_are_run(experts: str) -> None:
    linear, core, backward = flops_mixtral()

    profile = count(mixtral, "eager", experts, fake=experts == "batched_mm")

    assert profile.forward.model_flops == linear + core == 3_133_145_088
    assert profile.backward.model_flops == backward


def test_causal_attention_is_half_of_dense() -> None:
    linear, core, _ = MODELS["llama"][1]()

    profile = count(MODELS["llama"][0], "sdpa")

    assert profile.forward.model_flops_causal == linear + core // 2
