"""ZeRO's settings through a copy of the JSON that a command names: the user's file stays as it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from whystall.verify.tune.advice import final_command
from whystall.verify.tune.candidates import candidates, left_out
from whystall.verify.tune.deepspeed import config_of
from whystall.verify.tune.measurer import Measurer
from whystall.verify.tune.results import Seen, Settings, Tuning

GIVEN: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
    "bf16": {"enabled": True},
}
SEEN = Seen(shares={}, affinity={"ranks": 2}, zero={"stage": 3, "offload": True})

JOB = """
import json, sys
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
config = json.load(open(sys.argv[sys.argv.index("--deepspeed_config") + 1]))
log = open(sys.argv[1], "w", buffering=1)
for step in range(60):
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
    print(json.dumps(config["zero_optimization"]), file=log)
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(GIVEN))
    return path


def tried(seen: Seen, settings: Settings | None = None) -> list[tuple[str, object]]:
    found = candidates(seen, settings or {}, None)
    return [(one.name, one.value) for one in found if one.name in ("zero_stage", "offload")]


def test_what_shares_less_is_tried_and_no_offloading_first() -> None:
    assert tried(SEEN) == [("offload", "none"), ("zero_stage", 2), ("zero_stage", 1), ("zero_stage", 0)]
    assert tried(SEEN, {"offload": "none", "zero_stage": 2}) == [("zero_stage", 1), ("zero_stage", 0)]


@pytest.mark.parametrize(
    ("changed", "name", "because"),
    [
        ({"zero": None}, "zero_stage", "the command names no configuration of DeepSpeed's"),
        ({"affinity": {"ranks": 1}}, "zero_stage", "there is one rank"),
        ({"zero": {"stage": 0, "offload": False}}, "zero_stage", "no stage shares less than 0"),
        ({"zero": {"stage": 1, "offload": False}}, "offload", "nothing is offloaded"),
    ],
)
def test_what_nothing_speaks_for_is_left_out(changed: dict[str, object], name: str, because: str) -> None:
    seen = replace(SEEN, **changed)
    assert name not in dict(tried(seen))
    assert {one.name: one.because for one in left_out(seen, {}, [])}[name] == because


@pytest.mark.parametrize("words", [("--deepspeed_config", "{}"), ("--deepspeed={}",), ("{}",)])
def test_the_configuration_of_a_command_is_found(config: Path, words: tuple[str, ...]) -> None:
    found = config_of(["ds", "train.py", *(word.format(config) for word in words)])
    assert found is not None
    assert (found.stage, found.offloads, found.document) == (3, True, GIVEN)


@pytest.mark.parametrize("text", ['{"learning_rate": 1}', "[1]", "{", "[" * 100_000])
def test_other_files_are_none(config: Path, text: str) -> None:
    config.write_text(text)
    assert config_of(["ds", "--deepspeed_config", str(config)]) is None


@pytest.mark.parametrize(
    ("settings", "zero"),
    [
        ({"offload": "none"}, {"stage": 3}),
        ({"zero_stage": 2}, {"stage": 2, "offload_optimizer": {"device": "cpu"}}),  # of parameters there is no such
        ({"zero_stage": 0}, {"stage": 0}),
    ],
)
def test_a_copy_differs_in_what_is_set_alone(config: Path, settings: Settings, zero: dict[str, Any]) -> None:
    found = config_of([str(config)])
    assert found is not None
    assert json.loads(found.copy(settings)) == GIVEN | {"zero_optimization": zero}


def test_runs_get_a_copy_and_the_one_that_won_is_kept(config: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="a real job runs")
    (tmp_path / "job.py").write_text(JOB)
    command = (sys.executable, str(tmp_path / "job.py"), str(tmp_path / "log"), "--deepspeed_config", str(config))
    measurer = Measurer(command, tmp_path / "tuning", steps=20)
    measurer.open(force=False)
    settings: Settings = {"offload": "none", "zero_stage": 2}

    found = measurer(settings)

    assert found.failed_because is None
    assert found.seen is not None
    assert found.seen.zero == {"stage": 3, "offload": True}
    assert json.loads((tmp_path / "log").read_text().splitlines()[-1]) == {"stage": 2}
    assert config.read_text() == json.dumps(GIVEN)

    outcome = Tuning(
        trials=[], left_out=[], settings=settings, confirmed=None, noise=1.0, runs=1, step_s=1.0,
        ended_because="", seen=None,
    )  # fmt: skip
    measurer.end(outcome)
    kept = tmp_path / "tuning" / "tune-deepspeed.json"
    assert json.loads(kept.read_text())["zero_optimization"] == {"stage": 2}
    assert final_command(measurer.to_keep(settings), settings).endswith(f"--deepspeed_config {kept}")
    assert config.read_text() == json.dumps(GIVEN)
