"""Buckets of gradients: when a run makes another size plausible, and real runs of two ranks with one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from whystall.verify.tune.advice import lines_to_change
from whystall.verify.tune.candidates import candidates, left_out
from whystall.verify.tune.measurer import Measurer
from whystall.verify.tune.results import Seen, Settings

MIB = 1 << 20
WRAPPED = {"bucket_cap_mb": 25, "bytes": 200 * MIB, "ranks": 2, "file": "train.py", "line": 9}
SEEN = Seen(shares={"forward": 0.3, "backward": 0.6}, wrapped=[WRAPPED], threads=1)

JOB = """
import sys
import torch
from torch import distributed, nn

torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
wrapped = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
log = open(sys.argv[1] + str(rank), "w", buffering=1)
for step in range(60):
    wrapped(torch.randn(8, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(wrapped._get_ddp_logging_data()["bucket_cap_bytes"], file=log)
"""


def buckets(seen: Seen, settings: Settings | None = None) -> list[object]:
    return [one.value for one in candidates(seen, settings or {}, None) if one.name == "bucket_cap_mb"]


def test_many_buckets_are_made_fewer_first_and_few_ones_more() -> None:
    assert buckets(SEEN) == [100, 6]
    assert buckets(replace(SEEN, wrapped=[WRAPPED | {"bytes": 30 * MIB}])) == [6, 100]
    assert buckets(replace(SEEN, wrapped=[WRAPPED | {"bytes": 20 * MIB}])) == [6]


def test_after_a_winner_it_goes_on_in_its_direction() -> None:
    assert buckets(SEEN, {"bucket_cap_mb": 100}) == [400]


@pytest.mark.parametrize(
    ("changed", "because"),
    [
        ({"wrapped": []}, "no DistributedDataParallel was made"),
        ({"wrapped": [WRAPPED | {"ranks": 1}]}, "there is one rank"),
        ({"wrapped": [WRAPPED | {"bytes": MIB}]}, "all gradients fit the first bucket"),
        ({"shares": {"input": 0.9, "backward": 0.05}}, "backward passes take 5.0% of the steps"),
    ],
)
def test_where_another_size_says_nothing_it_is_left_out(changed: dict[str, object], because: str) -> None:
    seen = replace(SEEN, **changed)
    assert buckets(seen) == []
    assert {one.name: one.because for one in left_out(seen, {}, [])}["bucket_cap_mb"] == because


def test_the_line_to_change() -> None:
    told = lines_to_change({"bucket_cap_mb": 100}, SEEN)
    assert told == ["train.py:9: DistributedDataParallel(…, bucket_cap_mb=100)"]


@pytest.fixture
def measurer(tmp_path: Path) -> Measurer:
    pytest.importorskip("torch", reason="a real job runs")
    (tmp_path / "job.py").write_text(JOB)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    made = Measurer((*launcher, str(tmp_path / "job.py"), str(tmp_path / "log")), tmp_path / "tuning", steps=20)
    made.open(force=False)
    return made


def test_two_ranks_get_their_buckets(measurer: Measurer, tmp_path: Path) -> None:
    given = measurer({})
    assert given.failed_because is None
    assert given.seen is not None
    (wrapped,) = given.seen.wrapped
    weights = 256 * 1024 * 2 + 1024 + 256
    assert (wrapped["bucket_cap_mb"], wrapped["bytes"], wrapped["ranks"]) == (25, 4 * weights, 2)
    assert "DistributedDataParallel" in JOB.splitlines()[wrapped["line"] - 1]

    changed = measurer({"bucket_cap_mb": 6})
    assert changed.failed_because is None
    for rank in "01":
        assert int((tmp_path / f"log{rank}").read_text().split()[-1]) == 6 * MIB
