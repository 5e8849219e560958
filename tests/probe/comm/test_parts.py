"""The parts of a sweep that need no process: sizes, rows, fits, comparison, nccl-tests' layout, text."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystall.errors import InputError, UsageError
from whystall.fleet.logs import read_logs
from whystall.hardware import find
from whystall.probe.comm.against import against
from whystall.probe.comm.fit import fits
from whystall.probe.comm.nccl_tests import nccl_tests_json
from whystall.probe.comm.plan import Plan, checked_ranks, elements, groups_of, size_of, swept, uneven
from whystall.probe.comm.results import (
    Collective,
    CommProbe,
    Measured,
    NotMeasured,
    calibration_of,
    measured,
    read_comm_probe,
)
from whystall.report.comm_text import sweep_document
from whystall.report.document import as_text

SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 22)


def row(kind: Collective, size: int, time_ns: int, ranks: int = 2, scatter: float = 0.01) -> Measured:
    spread = [round(time_ns * (1 + scatter * step)) for step in (-2, -1, 0, 1, 2)]
    return measured(kind, size, [spread] * ranks)


def swept_rows(times: float = 1.0, *, only: int | None = None) -> CommProbe:
    """20 us and 1 ns a byte (1 GB/s) for each kind; ``times`` slower, at one size or at all."""
    rows = [
        row(kind, size, round((20_000 + size) * (times if only in (None, size) else 1)))
        for kind in ("all_reduce", "broadcast")
        for size in SIZES
    ]
    return CommProbe(
        backend="gloo", ranks=2, device="Some CPU", kind="cpu", machine="0" * 12, network="loopback", torch="2.13.0",
        measured_on="2026-02-03", results=rows, fits=fits(rows),
    )  # fmt: skip


def test_a_line_is_found_again() -> None:
    for one in swept_rows().fits:
        assert one.latency_ns == pytest.approx(20_000, rel=1e-3)
        assert one.bytes_per_s == pytest.approx(1e9, rel=1e-3)
        assert one.r2 == pytest.approx(1, abs=1e-6)
        assert [residual.bytes for residual in one.residuals] == list(SIZES)
        assert max(abs(residual.share) for residual in one.residuals) < 1e-3


def test_bus_bandwidth_of_a_fit_has_the_factor_of_its_kind() -> None:
    (one,) = fits([row("all_reduce", size, 1000 + size, ranks=8) for size in SIZES])
    assert one.bytes_per_s is not None
    assert one.bus_bytes_per_s == pytest.approx(1.75 * one.bytes_per_s)


def test_one_size_far_off_shows_in_its_residual_and_in_r2() -> None:
    rows = [row("broadcast", size, (20_000 + size) * (5 if size == 1 << 14 else 1)) for size in SIZES]
    (one,) = fits(rows)
    assert one.r2 is not None
    assert one.r2 < 0.9
    assert max(one.residuals, key=lambda each: abs(each.share)).bytes == 1 << 14


@pytest.mark.parametrize(
    ("times", "because"), [((10, 20), "2 sizes were measured"), ((30, 20, 10), "no longer than small ones")]
)
def test_what_has_no_fit_says_why(times: tuple[int, ...], because: str) -> None:
    (one,) = fits([row("all_reduce", size, time * 1000) for size, time in zip(SIZES, times, strict=False)])
    assert (one.latency_ns, one.r2) == (None, None)
    assert one.unknown_because is not None
    assert because in one.unknown_because


def test_an_iteration_takes_as_long_as_its_slowest_process() -> None:
    one = measured("all_gather", 8_000, [[10, 40, 10], [30, 20, 20]])
    assert (one.time_ns, one.best_ns, one.process_ns) == (30, 20, [10, 20])
    assert one.algorithm_bytes_per_s == pytest.approx(8_000 / 30e-9)
    assert one.bus_bytes_per_s == pytest.approx(8_000 / 30e-9 / 2)


def test_sizes_are_cut_to_whole_elements_for_every_rank() -> None:
    assert [elements(kind, 1024, 3) for kind in ("all_reduce", "reduce_scatter", "send_recv")] == [256, 255, 256]
    assert elements("all_to_all", 4, 8) == 8
    assert [elements(kind, 1024, 3) for kind in ("gather", "scatter", "reduce", "all_to_all_v")] == [255, 255, 256, 256]


@given(st.integers(1, 1 << 20), st.integers(2, 64))
def test_uneven_shares_are_all_of_it_and_the_last_is_the_largest(count: int, ranks: int) -> None:
    shares = uneven(count, ranks)
    assert (sum(shares), len(shares)) == (count, ranks)
    assert sorted(shares) == shares
    assert shares[0] >= 0


def test_later_reports_take_what_gpus_of_one_machine_reached_with_the_largest_messages() -> None:
    gpus = msgspec.structs.replace(swept_rows(), kind="gpu", backend="nccl", device="NVIDIA A10G")
    kept = calibration_of(gpus)
    assert kept is not None
    assert [(one.collective, one.bytes, one.ranks) for one in kept.links] == [
        ("all_reduce", 1 << 22, 2),
        ("broadcast", 1 << 22, 2),
    ]
    # 20 us and 1 ns a byte; both move every byte once over the bus of two ranks
    assert [one.bus_bytes_per_s for one in kept.links] == pytest.approx([(1 << 22) / (20e-6 + (1 << 22) * 1e-9)] * 2)
    for other in ({"kind": "cpu"}, {"network": "job"}, {"split": "MOD 2"}):
        assert calibration_of(msgspec.structs.replace(gpus, **other)) is None


@pytest.mark.parametrize("text", ["", "-1", "4X", "1e3", "4 K B", "9" * 16])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="is no size"):
        size_of(text)


def test_what_cannot_be_swept() -> None:
    with pytest.raises(UsageError, match="cannot be swept"):
        swept(8, 4)
    with pytest.raises(UsageError, match="between 2 and 64"):
        checked_ranks(1, "gloo", 0)
    with pytest.raises(UsageError, match="NCCL wants a GPU for each of 2 ranks, and there are 1"):
        checked_ranks(2, "nccl", 1)
    with pytest.raises(UsageError, match="between two ranks at least, and here is 1"):
        Plan(backend="gloo", ranks=1, sizes=[8], collectives=["broadcast"], seconds=1, timeout_s=1)
    with pytest.raises(UsageError, match="'barrier' is no collective"):
        Plan(backend="gloo", ranks=2, sizes=[8], collectives=["barrier"], seconds=1, timeout_s=1)  # type: ignore[list-item]


def test_the_same_again_is_no_change() -> None:
    held = against(swept_rows(), swept_rows(1.005))
    assert {one.judgement for one in held.rows} == {"same"}
    assert "none of 8 rows differs" in as_text(sweep_document(swept_rows(), None, held), 100)


def test_slower_at_all_sizes_is_slower_and_back_is_faster() -> None:
    assert {one.judgement for one in against(swept_rows(), swept_rows(2)).rows} == {"slower"}
    held = against(swept_rows(2), swept_rows())
    assert {one.judgement for one in held.rows} == {"faster"}
    assert "8 of 8 rows differ" in as_text(sweep_document(swept_rows(), None, held), 100)


def test_one_size_alone_is_chance() -> None:
    assert {one.judgement for one in against(swept_rows(), swept_rows(2, only=1 << 18)).rows} == {"same"}


def test_what_else_differs_is_said_and_other_jobs_are_refused() -> None:
    other = msgspec.structs.replace(swept_rows(), torch="2.15.0")
    assert against(swept_rows(), other).notes == ("torch: 2.13.0 before, 2.15.0 now",)
    with pytest.raises(UsageError, match="earlier sweep was of 2 ranks on gloo, this one is of 4"):
        against(swept_rows(), msgspec.structs.replace(swept_rows(), ranks=4))
    with pytest.raises(UsageError, match="no collective at any of these sizes"):
        against(msgspec.structs.replace(swept_rows(), results=[]), swept_rows())


def test_a_sweep_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    path.write_bytes(msgspec.json.encode(swept_rows()))
    assert read_comm_probe(path) == swept_rows()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"schema": "whystall.comm/1"}', b"[" * 100_000])
def test_what_is_no_sweep_is_told_in_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "before.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is no result of `whystall probe comm --json`"):
        read_comm_probe(path)


def test_nccl_tests_layout_has_its_units_and_no_environment() -> None:
    body = json.loads(nccl_tests_json(swept_rows()))
    assert (body["version"], body["env"], body["args"]) == (3, [], [])
    one = body["results"][0]
    assert (one["experiment_name"], one["size"], one["count"], one["type"]) == ("all_reduce", 1024, 256, "float")
    assert one["in_place"]["time"] == pytest.approx(21.024)
    assert one["in_place"]["alg_bw"] == pytest.approx(1024 / 21.024e-6 / 1e9)
    assert len(one["in_place_per_iter"]["per_process_max_times_us"]) == 2
    assert one["actual_iterations"] == len(one["in_place_per_iter"]["times_us"]) == 5


def test_nccl_tests_layout_is_read_like_that_of_nccl_tests(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(nccl_tests_json(swept_rows()))
    (log,) = read_logs([path], {})
    assert [(row.collective, row.bytes, row.ranks, row.count) for row in log.rows] == [
        (one.collective, one.bytes, 2, 5) for one in swept_rows().results
    ]
    assert log.rows[0].bus_bytes_per_s == pytest.approx(swept_rows().results[0].bus_bytes_per_s)


def test_text_tells_the_share_of_a_link_with_its_reason() -> None:
    rows = [row("all_reduce", 275_000_000, 1_000_000, ranks=8)]
    found = msgspec.structs.replace(swept_rows(), kind="gpu", backend="nccl", ranks=8, results=rows, fits=[])
    text = as_text(sweep_document(found, find("NVIDIA H100 80GB HBM3")), 100)
    assert "68.8 %" in text
    assert "481 GB/s is that of an equivalent ring" in text


def test_what_was_not_measured_is_said() -> None:
    skipped = [NotMeasured(collective="all_to_all", because="gloo does not support it")]
    text = as_text(sweep_document(msgspec.structs.replace(swept_rows(), skipped=skipped), None), 100)
    assert "all_to_all was not measured: gloo does not support it" in text


@pytest.mark.parametrize(
    ("split", "groups"),
    [
        ("DIV 4", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("mod 0x4", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("AND 4", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("OR6", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("", [list(range(8))]),
    ],
)
def test_ranks_part_as_in_nccl_tests(split: str, groups: list[list[int]]) -> None:
    """Those of one group have the same number after ``rank AND value`` and so on."""
    assert groups_of(8, split) == groups


@pytest.mark.parametrize("split", ["DIV 3", "DIV 1", "MOD 0", "XOR 1", "DIV", "DIV -2", "DIV 2; rm", "MOD 8"])
def test_groups_that_have_no_one_bandwidth_are_refused(split: str) -> None:
    with pytest.raises(UsageError, match="--split"):
        groups_of(8, split)


def test_rates_are_those_of_a_group() -> None:
    """Four processes in two groups: an all_reduce of two ranks moves S over each bus, and of four 1.5 S."""
    two, four = (measured("all_reduce", 1_000, [[10]] * 4, ranks) for ranks in (2, None))
    assert (two.ranks, four.ranks) == (2, 4)
    assert two.bus_bytes_per_s == pytest.approx(1_000 / 10e-9)
    assert four.bus_bytes_per_s == pytest.approx(1.5 * 1_000 / 10e-9)
