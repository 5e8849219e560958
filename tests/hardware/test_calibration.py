"""What was measured here is kept, fills gaps alone, and says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from whystall.hardware import find
from whystall.hardware.calibration import (
    Calibration,
    Copy,
    Launch,
    Link,
    Matmul,
    calibrated,
    read_calibrations,
    write_calibration,
)


def product(precision: str, rate: float, size: int = 1024) -> Matmul:
    return Matmul(precision=precision, m=size, n=size, k=size, repeats=5, best_ns=10, median_ns=12, flops_per_s=rate)


def copied(size: int, rate: float) -> Copy:
    return Copy(bytes=size, repeats=5, best_ns=10, median_ns=12, bytes_per_s=rate)


def calibration(device: str = "NVIDIA A10G", **changes: Any) -> Calibration:
    full = Calibration(
        machine="m1", device=device, kind="gpu", measured_on="2026-11-01", torch="2.13.0",
        matmul=[product("bf16", 60e12), product("bf16", 64e12, 4096), product("fp32", 20e12)],
        copy=[copied(1 << 20, 2e12), copied(1 << 30, 480e9)],
    )  # fmt: skip
    return msgspec.structs.replace(full, **changes)


def test_gaps_are_filled_and_what_the_table_knows_stays() -> None:
    row = calibrated("NVIDIA A10G", find("NVIDIA A10G"), [calibration()])
    assert row is not None
    assert row.peak_flops_per_s("bf16") == 64e12  # the best of its products
    assert row.peak_flops_per_s("fp32") == 31.2e12  # the table's, though 20 were measured
    assert row.memory_bytes_per_s == 600e9  # likewise
    assert row.measured == "bf16: measured here on 2026-11-01 by whystall probe"
    assert row.source.endswith(row.measured)


def test_a_device_that_no_row_knows_has_what_was_measured() -> None:
    row = calibrated("Some Accelerator 9000", None, [calibration("Some Accelerator 9000")])
    assert row is not None
    assert (row.name, row.peak_flops_per_s("fp32"), row.peak_flops_per_s("fp8")) == (
        "Some Accelerator 9000",
        20e12,
        None,
    )
    assert row.memory_bytes_per_s == 480e9  # of the largest copy: the small one fits a cache
    assert row.measured is not None
    assert "memory bandwidth" in row.measured


def test_a_link_that_the_table_does_not_know_is_what_was_reached() -> None:
    links = [
        Link(collective=kind, ranks=2, bytes=1 << 30, best_ns=1, bus_bytes_per_s=rate)
        for kind, rate in (("all_reduce", 21e9), ("broadcast", 19e9))
    ]
    row = calibrated("NVIDIA A10G", find("NVIDIA A10G"), [calibration(matmul=[], links=links)])
    assert row is not None
    assert (row.link_gb_per_s, row.measured) == (21.0, "link: measured here on 2026-11-01 by whystall probe")
    known = calibrated("NVIDIA A100-SXM4-80GB", find("NVIDIA A100-SXM4-80GB"), [
        calibration("NVIDIA A100-SXM4-80GB", matmul=[], links=links)
    ])  # fmt: skip
    assert known is not None
    assert known.link_gb_per_s == 300.0


def test_other_devices_and_parts_of_one_are_not_touched() -> None:
    assert calibrated("NVIDIA A10", find("NVIDIA A10"), [calibration()]) == find("NVIDIA A10")
    part = "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert calibrated(part, find(part), [calibration(part)]) is None
    assert calibrated("AMD EPYC", None, [calibration("AMD EPYC", kind="cpu")]) is None


def test_of_several_the_latest_counts() -> None:
    newer = calibration(measured_on="2026-11-20", matmul=[product("bf16", 50e12)])
    for order in ([calibration(), newer], [newer, calibration()]):
        row = calibrated("NVIDIA A10G", find("NVIDIA A10G"), order)
        assert row is not None
        assert row.peak_flops_per_s("bf16") == 50e12


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write_calibration(calibration(), tmp_path)
    write_calibration(calibration("Another"), tmp_path)
    found, problems = read_calibrations(tmp_path)
    assert sorted(one.device for one in found) == ["Another", "NVIDIA A10G"]
    assert problems == []
    assert [path.suffix for path in tmp_path.iterdir()] == [".json", ".json"]


def test_a_later_probe_of_something_else_keeps_the_earlier_one_and_its_date(tmp_path: Path) -> None:
    write_calibration(calibration(copy=[]), tmp_path)
    launch = Launch(calls=10, host_ns=5, device_ns=None)
    later = calibration(measured_on="2026-11-20", matmul=[], launch=launch)
    write_calibration(later, tmp_path)
    ((found,), _) = read_calibrations(tmp_path)
    assert found.matmul == calibration().matmul
    assert (found.copy, found.launch) == (later.copy, launch)
    assert found.measured_on == "2026-11-01"  # the earlier date: nothing in it is older


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"schema": "whystall.calibration/9"}',
        b"\xff\xfe",
        b"[" * 100_000,
        msgspec.json.encode(calibration()).replace(b"2026-11-01", b"yesterday!"),
        msgspec.json.encode(calibration()).replace(b"64000000000000.0", b"-1.0"),
        b" " * (2 << 20),
    ],
    ids=["empty", "cut", "list", "version", "bytes", "deep", "date", "negative", "large"],
)
def test_a_file_that_cannot_be_right_is_ignored_with_a_sentence(tmp_path: Path, content: bytes) -> None:
    write_calibration(calibration("Another"), tmp_path)
    (tmp_path / "broken.json").write_bytes(content)
    found, problems = read_calibrations(tmp_path)
    assert [one.device for one in found] == ["Another"]
    (problem,) = problems
    assert problem.startswith("the calibration broken.json is ignored: ")


def test_no_folder_is_no_problem(tmp_path: Path) -> None:
    assert read_calibrations(tmp_path / "nowhere") == ([], [])


def test_a_damaged_file_is_replaced(tmp_path: Path) -> None:
    path = write_calibration(calibration(), tmp_path)
    path.write_bytes(b"{")
    write_calibration(calibration(), tmp_path)
    assert read_calibrations(tmp_path) == ([calibration()], [])


def test_a_link_is_not_believed(tmp_path: Path) -> None:
    theirs = write_calibration(calibration(), tmp_path / "theirs")
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "mine" / theirs.name).symlink_to(theirs)
    found, problems = read_calibrations(tmp_path / "mine")
    assert found == []
    assert "it is a link, or another user's" in problems[0]
    with pytest.raises(OSError, match="is a link"):
        write_calibration(calibration(), tmp_path / "mine")


def test_a_folder_that_others_may_write_to_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o777)
    with pytest.raises(PermissionError, match="others may write to it"):
        write_calibration(calibration(), tmp_path / "mine")
