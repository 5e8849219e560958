"""On which cores threads stay: when another affinity is plausible, and a real run with one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from whystall.verify.tune.advice import final_command
from whystall.verify.tune.candidates import candidates, left_out
from whystall.verify.tune.measurer import Measurer
from whystall.verify.tune.results import Seen, Settings

SEEN = Seen(shares={}, threads=4, cores=4, affinity={"bound": False, "ranks": 1, "near": None})
NEAR = {"bound": False, "ranks": 1, "near": "0-31"}

JOB = """
import os, sys
import torch

torch.set_num_threads(2)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
log = open(sys.argv[1], "w", buffering=1)
for step in range(60):
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
    print(len(os.sched_getaffinity(0)), file=log)
"""


def affinities(seen: Seen, settings: Settings | None = None) -> list[object]:
    return [one.value for one in candidates(seen, settings or {}, None) if one.name == "affinity"]


def test_threads_on_a_processor_stay_on_cores_and_a_devices_process_near_it() -> None:
    assert affinities(SEEN) == ["cores"]
    assert affinities(replace(SEEN, devices=1, affinity=NEAR)) == ["0-31"]
    assert affinities(SEEN, {"affinity": "cores"}) == []


@pytest.mark.parametrize(
    ("changed", "because"),
    [
        ({"affinity": None}, "nothing is known of how the process is bound"),
        ({"affinity": {"bound": True, "ranks": 1}}, "a variable binds threads already"),
        ({"affinity": {"ranks": 2}}, "there are several ranks: one command would bind all of them to the same cores"),
        ({"devices": 1}, "all cores are as near to the device"),
        ({"threads": 1}, "it computes on one thread"),
        ({"threads": 8}, "there are more threads than cores"),
        (
            {"loaders": [{"num_workers": 2}]},
            "a loader's workers would all stay on the core of the thread that starts them",
        ),
    ],
)
def test_where_binding_would_harm_or_say_nothing_it_is_left_out(changed: dict[str, object], because: str) -> None:
    seen = replace(SEEN, **changed)
    assert affinities(seen) == []
    assert {one.name: one.because for one in left_out(seen, {}, [])}["affinity"] == because


def test_the_command_to_keep_it() -> None:
    assert final_command(["python", "t.py"], {"affinity": "cores"}) == (
        "OMP_PROC_BIND=close OMP_PLACES=cores python t.py"
    )
    assert final_command(["python", "t.py"], {"affinity": "0-31"}) == "taskset -c 0-31 python t.py"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
def test_a_real_run_stays_on_its_cores_and_the_job_has_as_many_as_before(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="a real job runs")
    (tmp_path / "job.py").write_text(JOB)
    measurer = Measurer(
        (sys.executable, str(tmp_path / "job.py"), str(tmp_path / "log")), tmp_path / "tuning", steps=20
    )
    measurer.open(force=False)
    first = str(min(os.sched_getaffinity(0)))
    cores = len(os.sched_getaffinity(0))
    runs: list[tuple[Settings, int]] = [({}, cores), ({"affinity": "cores"}, 1), ({"affinity": first}, 1)]
    for settings, allowed in runs:
        found = measurer(settings)
        assert found.failed_because is None
        assert found.seen is not None
        assert found.seen.cores == cores
        assert int((tmp_path / "log").read_text().split()[-1]) == allowed
