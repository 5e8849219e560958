"""input.collate: looks that found batches being taken over fire it, by any version's functions;
looks that found waits do not.
"""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import HEALTHY, found_in_runs, line, loader, run

from whystall.analysis.run_results import SampledLine

SHARES: Final = {**HEALTHY, "input": 0.4, "forward": 0.2, "backward": 0.3}


@pytest.mark.parametrize(
    "leaf",
    [
        "torch.multiprocessing.reductions:rebuild_storage_fd",
        "torch.multiprocessing.reductions:rebuild_storage_filename",  # the other way to share memory
        "multiprocessing.reduction:recv_handle",
        "multiprocessing.connection:recv_bytes",
        "torch._utils:_rebuild_tensor_v2",
        "torch.storage:_new_shared_fd_cpu",
    ],
)
def test_taking_batches_over_is_worth_all_but_a_twentieth(leaf: str) -> None:
    rebuilding = line(0.3, part="input", leaf=leaf)
    waiting = line(0.1, part="input", leaf="selectors:select")
    found = found_in_runs(
        run(shares=SHARES, places=[rebuilding, waiting], worker_cpu_share=0.2, workers=2), **loader(2)
    )
    assert set(found) == {"input.collate"}
    gain = found["input.collate"].gain
    assert gain is not None
    assert gain.expected == pytest.approx(1 / (1 - 0.3 * 0.95), rel=0.01)


def test_workers_that_are_too_slow_beside_it_are_a_cause_of_their_own() -> None:
    rebuilding = line(0.3, part="input", leaf="torch.multiprocessing.reductions:rebuild_storage_fd")
    longer = line(0.4, part="input", leaf="selectors:select")
    shares = {**SHARES, "input": 0.7, "forward": 0.1, "backward": 0.1}
    both = found_in_runs(run(shares=shares, places=[rebuilding, longer], worker_cpu_share=0.2, workers=2), **loader(2))
    assert set(both) == {"input.collate", "input.too-few-workers"}


@pytest.mark.parametrize("leaf", ["selectors:select", "threading:wait", "queue:get", "multiprocessing.connection:poll"])
def test_batches_that_are_waited_for_are_not_taken_over(leaf: str) -> None:
    waiting = line(0.39, part="input", leaf=leaf)
    rebuilding = line(0.01, part="input", leaf="torch.multiprocessing.reductions:rebuild_storage_fd")
    found = found_in_runs(
        run(shares=SHARES, places=[rebuilding, waiting], worker_cpu_share=0.2, workers=2), **loader(2)
    )
    assert "input.collate" not in found
    assert "input.too-few-workers" in found


def test_a_loader_without_workers_takes_nothing_over() -> None:
    making = line(0.39, part="input", leaf="torch.utils.data._utils.collate:default_collate")
    assert list(found_in_runs(run(shares=SHARES, places=[making]), **loader(0))) == ["input.synchronous-loader"]


def test_a_healthy_loader_takes_over_in_no_time() -> None:
    rebuilding = line(0.005, part="input", leaf="torch.multiprocessing.reductions:rebuild_storage_fd")
    assert found_in_runs(run(places=[rebuilding], worker_cpu_share=0.2, workers=2), **loader(2)) == {}


ROWS: Final = line(0.2, part="input", leaf="torch.utils.data.dataset:<genexpr>")
STACKING: Final = line(0.2, part="input", leaf="torch.utils.data._utils.collate:collate_tensor_fn", at=7)


def test_rows_of_tensors_that_are_taken_one_by_one_are_worth_most_of_the_wait() -> None:
    found = found_in_runs(run(shares=SHARES, places=[ROWS, STACKING]), **loader(0))
    gain = found["input.collate"].gain
    assert gain is not None
    assert gain.floor <= 1 / (1 - 0.4 * 0.75) <= gain.expected <= 1 / (1 - 0.4 * 0.94) <= gain.ceiling
    assert "batch_size=None" in (found["input.collate"].remedy.patch or "")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("places", "workers"),
    [
        ([line(0.2, part="input", leaf="__main__:__getitem__"), STACKING], 0),  # a dataset of the user's own
        ([ROWS, line(0.3, part="input", leaf="PIL.Image:resize")], 0),
        ([STACKING], 0),  # whose rows these are is not known
        ([ROWS, STACKING], 2),  # how long a worker takes over is not known
    ],
)
def test_rows_that_others_make_are_not(places: list[SampledLine], workers: int) -> None:
    assert "input.collate" not in found_in_runs(run(shares=SHARES, places=places, workers=workers), **loader(workers))
