"""The drop-in: DeepSpeed's signatures, attributes and text, whystall's counts."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="profiling models needs torch")

from torch import nn  # noqa: E402 - after the check that torch is there

import whystall.deepspeed as drop_in  # noqa: E402 - likewise
from whystall.deepspeed import FlopsProfiler, get_model_profile, profile_at_step  # noqa: E402 - likewise

ATTRIBUTES = [
    "__flops__",
    "__macs__",
    "__params__",
    "__expert_params__",
    "__model_expert_params__",
    "__start_time__",
    "__duration__",
]
HEADER = [
    "params per GPU: ",
    "params of model = params per GPU * mp_size: ",
    "fwd MACs per GPU: ",
    "fwd flops per GPU: ",
    "fwd flops of model = fwd flops per GPU * mp_size: ",
    "fwd latency: ",
    "fwd FLOPS per GPU = fwd flops per GPU / fwd latency: ",
]
ENGINE_BEFORE = ["world size: ", "data parallel size: ", "model parallel size: ", "batch size per GPU: "]
ENGINE_AFTER = [
    "bwd latency: ",
    "bwd FLOPS per GPU = 2.5 * fwd flops per GPU / bwd latency: ",
    "fwd+bwd FLOPS per GPU = 3.5 * fwd flops per GPU / (fwd+bwd latency): ",
    "step latency: ",
    "iter latency: ",
    "FLOPS per GPU = 3.5 * fwd flops per GPU / iter latency: ",
    "samples/second: ",
]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 8)))


MACS = 4 * (64 * 128 + 128 * 128 + 128 * 8)
FLOPS = 2 * MACS + 4 * (128 + 128 + 128 + 8)  # three biases and a ReLU
PARAMETERS = 64 * 128 + 128 + 128 * 128 + 128 + 128 * 8 + 8


def test_signatures() -> None:
    names: dict[Any, str] = {
        FlopsProfiler: "model ds_engine recompute_fwd_factor",
        FlopsProfiler.start_profile: "self ignore_list",
        FlopsProfiler.print_model_profile: "self profile_step module_depth top_modules detailed output_file",
        FlopsProfiler.print_model_aggregated_profile: "self module_depth top_modules",
        FlopsProfiler.get_total_flops: "self as_string",
        get_model_profile: (
            "model input_shape args kwargs print_profile detailed module_depth top_modules warm_up as_string "
            "output_file ignore_modules mode"
        ),
        drop_in.number_to_string: "num units precision",
    }
    for function, expected in names.items():
        assert list(inspect.signature(function).parameters) == expected.split()


def test_a_step_of_training(capsys: pytest.CaptureFixture[str]) -> None:
    model = network()
    profiler = FlopsProfiler(model)
    profiler.print_model_profile()
    assert capsys.readouterr().out == ""

    profiler.start_profile()
    model(torch.zeros(4, 64)).sum().backward()
    profiler.stop_profile()
    model(torch.zeros(4, 64))

    assert profiler.get_total_macs() == MACS
    assert profiler.get_total_flops() == FLOPS
    assert profiler.get_total_params() == PARAMETERS
    assert profiler.get_total_macs(as_string=True) == "102.4 KMACs"
    assert profiler.get_total_params(as_string=True) == "25.86 K"
    assert float(profiler.get_total_duration()) > 0
    assert all(hasattr(module, name) for module in model.modules() for name in ATTRIBUTES)
    assert drop_in.get_module_macs(model[2]) == 4 * (128 * 128 + 128 * 8)
    assert model[2].__macs__ == 0
    profiler.print_model_profile(profile_step=7)
    assert "Profile Summary at step 7:" in capsys.readouterr().out
    assert (profiler.flops, profiler.macs, profiler.params) == (FLOPS, MACS, PARAMETERS)

    profiler.end_profile()
    assert not any(name in vars(module) for module in model.modules() for name in ATTRIBUTES)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    profiler.print_model_profile()
    assert capsys.readouterr().out == ""


def test_repeated_profiles_do_not_grow() -> None:
    profiler = FlopsProfiler(network())
    found = []

    for _ in range(3):
        profiler.start_profile()
        profiler.model(torch.zeros(4, 64))
        found.append(profiler.get_total_macs())
        profiler.end_profile()

    assert found == [MACS] * 3


def names_of(text: str) -> list[str]:
    return [line[:70].rstrip() for line in text.splitlines() if line[70:72] == "  " and ": " in line[:71]]


def test_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    found = get_model_profile(network(), (4, 64), top_modules=2)
    text = capsys.readouterr().out

    assert found == ("206.37 K", "102.4 KMACs", "25.86 K")
    assert names_of(text) == [name.rstrip() for name in HEADER]
    lines = text.splitlines()
    titles = [line.strip("- ") for line in lines if line.startswith("----")]
    assert titles == ["DeepSpeed Flops Profiler", "Aggregated Profile per GPU", "Detailed Profile per GPU", ""]
    assert f"{'fwd MACs per GPU: ':<70}  102.4 KMACs" in lines
    assert "Top 2 modules in terms of params, MACs or fwd latency at different model depths:" in lines
    assert "    params      - {'Sequential': '17.54 K', 'Linear': '8.32 K'}" in lines
    assert [line for line in lines if line.startswith("depth")] == ["depth 0:", "depth 1:", "depth 2:"]
    assert any(
        line.startswith("  (0): Linear(8.32 K = 32.17% Params, 32.77 KMACs = 32% MACs, ")
        and line.endswith("FLOPS, in_features=64, out_features=128, bias=True)")
        for line in lines
    )


class Engine:
    """What the profiler asks of a DeepSpeed engine."""

    world_size, dp_world_size, mp_world_size, has_moe_layers = 8, 4, 2, False

    def train_micro_batch_size_per_gpu(self) -> int:
        return 16

    def wall_clock_breakdown(self) -> bool:
        return True

    def timers(self, name: str) -> Engine:
        self._ms = {"fwd": 100.0, "bwd": 200.0, "step": 20.0}[name]
        return self

    def elapsed(self, _reset: bool) -> float:
        return self._ms


def test_with_an_engine(capsys: pytest.CaptureFixture[str]) -> None:
    profiler = FlopsProfiler(network(), ds_engine=Engine(), recompute_fwd_factor=0.5)
    profiler.start_profile()
    profiler.model(torch.zeros(4, 64))

    profiler.print_model_profile(detailed=False)

    text = capsys.readouterr().out
    assert names_of(text) == [name.rstrip() for name in (*ENGINE_BEFORE, *HEADER, *ENGINE_AFTER)]
    assert f"{'params of model = params per GPU * mp_size: ':<70}  51.73 K" in text
    assert f"{'fwd latency: ':<70}  100 ms" in text
    assert f"{'samples/second: ':<70}  200.0" in text  # 16 x 4 data-parallel ranks in 0.32 s
    profiler.end_profile()


def test_integers_and_modes_come_back() -> None:
    model = network().train()
    model[2].eval()

    assert get_model_profile(model, args=[torch.zeros(4, 64)], print_profile=False, as_string=False) == (
        FLOPS,
        MACS,
        PARAMETERS,
    )
    assert model.training
    assert not model[2].training


def test_an_exception_leaves_nothing_behind() -> None:
    model = network()

    with pytest.raises(RuntimeError):
        get_model_profile(model, (4, 63), print_profile=False)

    assert not any(name in vars(module) for module in model.modules() for name in ATTRIBUTES)
    assert get_model_profile(nn.Linear(8, 8), (2, 8), print_profile=False, as_string=False)[1] == 128


def test_an_exception_of_the_model_stays_its_own() -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8, bias=False)

        def forward(self, x: Any) -> Any:
            self.inner(x)
            raise ValueError("the user's own")

    model = Failing()
    profiler = FlopsProfiler(model)
    profiler.start_profile()
    for _ in range(2):
        with pytest.raises(ValueError, match="the user's own"):
            model(torch.zeros(4, 8))
    profiler.stop_profile()

    assert profiler.get_total_macs() == 2 * 4 * 8 * 8
    profiler.end_profile()
    assert not model._forward_hooks


def test_parts_that_are_called_by_themselves_count() -> None:
    class Encoding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = nn.Linear(8, 8, bias=False), nn.Linear(8, 2, bias=False)

        def forward(self, x: Any) -> Any:
            return self.head(x)

        def generate(self, x: Any) -> Any:
            return self(self.encoder(x))

    _, macs, _ = get_model_profile(
        Encoding(), args=[torch.zeros(4, 8)], mode="generate", print_profile=False, as_string=False
    )

    assert macs == 4 * (8 * 8 + 8 * 2)


def test_ignored_modules_count_for_their_parents() -> None:
    model = network()
    profiler = FlopsProfiler(model)
    profiler.start_profile(ignore_list=[nn.Linear])
    model(torch.zeros(4, 64))

    assert profiler.get_total_macs() == MACS
    assert model[0].__macs__ == 0
    assert model[0].__duration__ == 0
    assert model[2].__macs__ == 4 * (128 * 128 + 128 * 8)


def test_output_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    get_model_profile(network(), (4, 64), output_file=str(tmp_path / "new" / "profile.txt"))

    assert "DeepSpeed Flops Profiler" in (tmp_path / "new" / "profile.txt").read_text()
    assert capsys.readouterr().out == ""


def test_token_models_take_an_input_shape() -> None:
    model = nn.Sequential(nn.Embedding(100, 16), nn.Linear(16, 8, bias=False))

    assert get_model_profile(model, (2, 32), print_profile=False, as_string=False)[1] == 2 * 32 * 16 * 8


def test_the_bert_example_of_the_tutorial() -> None:
    transformers = pytest.importorskip("transformers", reason="the example is a model of transformers")
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, attn_implementation="eager"
    )
    model = transformers.BertForSequenceClassification(config)
    tokens = torch.ones((4, 32), dtype=torch.long)
    inputs = {"input_ids": tokens, "attention_mask": tokens, "labels": torch.tensor([1] * 4)}

    flops, macs, params = get_model_profile(
        model, kwargs=inputs, print_profile=True, detailed=True, output_file=None, as_string=False
    )

    layer = 4 * 32 * (4 * 64 * 64 + 2 * 64 * 128) + 2 * 4 * 32 * 32 * 64
    assert macs == 2 * layer + 4 * 64 * 64 + 4 * 64 * 2
    assert int(flops) > 2 * int(macs)
    assert params == sum(one.numel() for one in model.parameters())


def test_generate() -> None:
    class Generating(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8, bias=False)

        def forward(self, x: Any) -> Any:
            return self.layer(x)

        def generate(self, x: Any) -> Any:
            return self(self(self(x)))

    found = get_model_profile(
        Generating(), args=[torch.zeros(2, 8)], print_profile=False, as_string=False, mode="generate"
    )

    assert found[1] == 3 * 2 * 8 * 8


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="args and/or kwargs"):
        get_model_profile(network())
    with pytest.raises(TypeError, match="not int"):
        get_model_profile(7)
    with pytest.raises(ValueError, match="mode"):
        get_model_profile(network(), (4, 64), mode="backward")


def test_the_aggregated_profile_says_when_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    FlopsProfiler(network()).print_model_aggregated_profile()

    assert "call this function after start_profile" in capsys.readouterr().out


def test_a_configuration_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"flops_profiler": {"enabled": True, "profile_step": 2, "detailed": False}}))
    model = network().train()
    profile_at_step(model, path)
    printed = []

    for _ in range(3):
        model(torch.zeros(4, 64))
        printed.append("Profile Summary at step 2:" in capsys.readouterr().out)

    assert printed == [False, True, False]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_disabled_block_does_nothing() -> None:
    model = network()
    profile_at_step(model, {"flops_profiler": {"profile_step": 1}})

    assert not model._forward_pre_hooks


def test_a_misspelt_key_is_an_error() -> None:
    from whystall.errors import UsageError

    with pytest.raises(UsageError, match="step"):
        drop_in.read_config({"flops_profiler": {"enabled": True, "step": 1}})


def test_expert_parameters() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight.group_name = "ep_size_8"
    profiler = FlopsProfiler(model)
    profiler.reset_profile()

    assert (model.__params__, model.__expert_params__, model.__model_expert_params__) == (16, 16, 128)
    assert profiler.get_total_params() == 32
