"""The process in which steps run: what a user's file does to it reaches the user as a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from whystall.errors import InputError, UsageError
from whystall.model.prediction.predict import allocations, predict
from whystall.model.prediction.request import Request
from whystall.model.prediction.simulator import Simulator


def test_an_interpreter_that_ends_is_a_result(simulator: Simulator, models: str) -> None:
    with pytest.raises(InputError, match=r"models\.py:aborting ended its interpreter by SIGABRT"):
        simulator.run(Request(target=f"{models}:aborting"))

    assert simulator.run(Request(target=f"{models}:square")).parameters == 512 * 512


def test_a_failing_factory_is_named_with_its_error(simulator: Simulator, models: str) -> None:
    with pytest.raises(InputError, match=r"models\.py:failing failed: KeyError: 'weights'"):
        simulator.run(Request(target=f"{models}:failing"))

    assert "def failing" not in simulator.trace
    assert "KeyError" in simulator.trace


def test_a_factory_that_prints_disturbs_nothing(simulator: Simulator, models: str) -> None:
    assert simulator.run(Request(target=f"{models}:chatty")).parameters == 512 * 512


def test_a_factory_that_is_not_there(simulator: Simulator, models: str) -> None:
    with pytest.raises(InputError, match="has no 'nowhere'"):
        simulator.run(Request(target=f"{models}:nowhere"))


def test_shapes_that_depend_on_activations_are_said_to(simulator: Simulator, models: str) -> None:
    with pytest.raises(InputError, match=r"it asks for values of activations \(aten\.nonzero"):
        simulator.run(Request(target=f"{models}:unknowable"))


def test_a_model_that_counts_on_all_its_blocks_is_run_whole(simulator: Simulator, models: str) -> None:
    found = predict(f"{models}:counting", simulator=simulator)

    assert found.basis.depths == ()
    assert found.parameters == 8 * (16 * 16 + 16)


def test_allocations_add_up_to_the_peak(simulator: Simulator, models: str) -> None:
    record = allocations(f"{models}:deep", simulator=simulator)

    assert max(level for _, level in record.levels()) == predict(f"{models}:deep", simulator=simulator).peak_bytes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ranks": 4}, "add --strategy"),
        ({"strategy": "ddp"}, "add --ranks"),
        ({"ranks": 0}, "at least 1"),
        ({"optimizer": "adamx"}, "no optimizer 'adamx'"),
        ({"device": "NVIDIA H9000"}, "knows no 'NVIDIA H9000'"),
        ({"colour": "red"}, "colour"),
        ({"dtype": "float3"}, "no dtype 'float3'"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_runs(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        predict("models.py:square", **options)


def test_a_function_is_named_by_its_file(simulator: Simulator, models: str) -> None:
    from runpy import run_path

    square = run_path(models)["square"]

    assert predict(square, simulator=simulator).parameters == 512 * 512
    with pytest.raises(UsageError, match="another process can import"):
        predict(lambda: None)
