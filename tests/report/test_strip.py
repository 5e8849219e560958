"""All ranks as shades: who is unlike the median, by how much, and which host it stands on."""

from __future__ import annotations

import msgspec
import pytest
from tests.report.conftest import gpu

from whystall.analysis.results import Collective, Device, Ledger
from whystall.analysis.trace_analysis import analyze_trace
from whystall.report.page import BUDGETS, page
from whystall.report.sections.hosts import by_host
from whystall.report.strip import strip
from whystall.testing import trace

WHOLE = 1_000_000


@pytest.fixture(scope="module")
def example() -> Device:
    (device,) = analyze_trace(trace().launch("gemm", at=0, runs_at=10, lasts=100).load()).devices
    return device


def device(example: Device, rank: int, idle: float, number: int = 0) -> Device:
    """One that idles for a share of its time and computes in the rest."""
    empty = dict.fromkeys(msgspec.structs.asdict(example.ledger), 0)
    idle_ns = round(idle * WHOLE)
    ledger = Ledger(**{**empty, "compute": WHOLE - idle_ns, "idle_python": idle_ns})
    return msgspec.structs.replace(example, rank=rank, device=number, ledger=ledger, window_ns=WHOLE, steps=[])


def test_one_rank_that_idles_more_is_shaded_and_no_other(example: Device) -> None:
    view = strip([device(example, rank, 0.35 if rank == 5 else 0.1) for rank in range(8)], [], 64)
    assert view is not None
    shades = {row.part.key: [(cell.title, cell.more, cell.shade, cell.x) for cell in row.cells] for row in view.rows}
    assert shades == {
        "compute": [("rank 5: 65.0 %", False, 4, 62.5)],
        "idle_python": [("rank 5: 35.0 %", True, 4, 62.5)],
    }


@pytest.mark.parametrize(("apart", "shade"), [(0.01, None), (0.03, 1), (0.07, 2), (0.15, 3), (0.6, 4)])
def test_the_shade_grows_with_the_distance(example: Device, apart: float, shade: int | None) -> None:
    view = strip([device(example, rank, 0.1 + (apart if rank == 2 else 0)) for rank in range(8)], [], 64)
    assert view is not None
    assert [cell.shade for row in view.rows for cell in row.cells] == ([] if shade is None else [shade, shade])


def test_of_thousands_a_column_shows_the_one_that_differs_most(example: Device) -> None:
    ranks = [device(example, rank, 0.1 + 0.3 * (rank == 777) + 0.05 * (rank == 776)) for rank in range(1024)]
    view = strip(ranks, [], 128)
    assert view is not None
    (cell,) = view.rows[0].cells
    assert (cell.title, cell.x, cell.width) == ("rank 777: 60.0 %", 776 / 1024 * 100, 8 / 1024 * 100)
    assert "8 devices" in view.caption


def test_hosts_are_parted(example: Device) -> None:
    ranks = [device(example, rank, 0.1, rank % 4) for rank in range(12)]
    view = strip(ranks, [len(own) for own in by_host(ranks)], 64)
    assert view is not None
    assert view.borders == pytest.approx([100 / 3, 200 / 3])


def test_few_devices_have_bars_alone(example: Device) -> None:
    assert strip([device(example, rank, 0.1) for rank in range(3)], [], 64) is None


def test_stages_are_parted_and_lie_beside_each_other(example: Device) -> None:
    """Two pipelines of three stages: ranks 0, 2, 4 and 1, 3, 5; the stage in the middle idles more."""
    devices = [device(example, rank, 0.4 if rank in (2, 3) else 0.1) for rank in range(6)]
    sends = [
        Collective(
            rank=rank, device=rank, collective="send", group="pp", group_size=2, ranks=[rank, rank + 2],
            dtype=None, count=1, bytes=1, total_ns=1, min_ns=1, max_ns=1, overlap_ns=0, exposed_ns=1,
        )
        for rank in range(4)
    ]  # fmt: skip
    report = msgspec.structs.replace(gpu(), devices=devices, communication=sends)
    view = page(report, BUDGETS[0]).strip
    assert view is not None
    assert view.borders == pytest.approx([100 / 3, 200 / 3])
    assert "Lines part the stages of the pipeline." in view.caption
    assert [cell.title.split(":")[0] for cell in view.rows[0].cells] == ["rank 2", "rank 3"]
    assert [cell.x for cell in view.rows[0].cells] == pytest.approx([100 / 3, 50])
    ring = [msgspec.structs.replace(sends[0], ranks=[rank, (rank + 1) % 6]) for rank in range(6)]
    around = page(msgspec.structs.replace(report, communication=ring), BUDGETS[0]).strip
    assert around is not None
    assert "stages" not in around.caption
