"""How FSDP2 is called, by PyTorch's own: bytes that follow from which parameters are whole when, on 4 ranks."""

from __future__ import annotations

from typing import Any

import pytest

from whystall.errors import UsageError
from whystall.model.prediction.predict import predict
from whystall.model.prediction.request import Fsdp
from whystall.model.prediction.results import Prediction
from whystall.model.prediction.simulator import Simulator

BLOCK = 49856  # parameters: a normalisation 128, products with their biases 12,480, 4,160, 16,640 and 16,448
TABLES = 2 * 256 * 64
WHOLE = 9 * BLOCK + TABLES


def sharded(simulator: Simulator, models: str, **settings: Any) -> Prediction:
    return predict(f"{models}:deep", simulator=simulator, ranks=4, strategy="fsdp2", fsdp=Fsdp(**settings))


def gathered(found: Prediction) -> int:
    return max(one.held.get("communication", 0) for one in found.phases)


@pytest.fixture(scope="module")
def plain(simulator: Simulator, models: str) -> Prediction:
    return sharded(simulator, models)


def test_one_unit_gathers_the_whole_model_at_once(simulator: Simulator, models: str, plain: Prediction) -> None:
    assert gathered(plain) < 4 * WHOLE / 2
    assert gathered(sharded(simulator, models, wrap="model")) >= 4 * WHOLE


def test_blocks_that_are_not_resharded_are_whole_together(simulator: Simulator, models: str, plain: Prediction) -> None:
    kept = sharded(simulator, models, reshard=False)

    assert kept.phase("forward").held["communication"] >= 4 * 9 * BLOCK
    assert plain.phase("forward").held["communication"] < 4 * (TABLES + 3 * BLOCK)


def test_hybrid_sharding_holds_the_part_of_its_group(simulator: Simulator, models: str, plain: Prediction) -> None:
    hybrid = sharded(simulator, models, shard=2)

    assert plain.phase("optimizer").held["parameters"] == pytest.approx(4 * WHOLE / 4, rel=0.01)
    assert hybrid.phase("optimizer").held["parameters"] == pytest.approx(4 * WHOLE / 2, rel=0.01)
    assert hybrid.phase("optimizer").held["optimizer state"] == pytest.approx(8 * WHOLE / 2, rel=0.01)


def test_a_policy_of_bf16_gathers_half_and_keeps_the_shards(simulator: Simulator, models: str) -> None:
    wide, half = (sharded(simulator, models, wrap="model", param=param) for param in (None, "bf16"))

    assert half.phase("optimizer").held["parameters"] == wide.phase("optimizer").held["parameters"]
    assert half.phase("forward").held["communication"] < 0.8 * wide.phase("forward").held["communication"]
    assert half.phase("forward").held["activations"] < wide.phase("forward").held["activations"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fsdp": Fsdp(wrap="model")}, "add --strategy fsdp2"),
        ({"ranks": 4, "strategy": "fsdp2", "fsdp": Fsdp(shard=3)}, "4 ranks cannot be divided into groups of 3"),
        ({"ranks": 4, "strategy": "fsdp2", "fsdp": Fsdp(param="int3")}, "no dtype 'int3'"),
    ],
)
def test_settings_that_there_are_not(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        predict("models.py:deep", **options)
