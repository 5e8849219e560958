"""Probing this machine's CPU: amounts are exact, rates are amounts over times."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from whystall.errors import UsageError
from whystall.probe.compute import probe_launch, probe_matmul
from whystall.probe.device import cpu_name, machine_name, open_device
from whystall.probe.memory import probe_copy
from whystall.probe.run import probe


def test_a_products_rate_is_its_flops_over_its_time() -> None:
    found, skipped = probe_matmul(open_device("cpu"), precisions=["fp32"], shapes=[(64, 32, 16)], seconds=1e-6)
    (one,) = found
    assert (one.precision, one.m, one.n, one.k, one.repeats, skipped) == ("fp32", 64, 32, 16, 5, [])
    assert one.flops_per_s == pytest.approx(2 * 64 * 32 * 16 / (one.best_ns / 1e9))
    assert 0 < one.best_ns <= one.median_ns


def test_a_copy_reads_and_writes_every_byte() -> None:
    (one,) = probe_copy(open_device("cpu"), sizes=[1 << 16], seconds=1e-6)
    assert one.bytes == 1 << 16
    assert one.bytes_per_s == pytest.approx(2 * (1 << 16) / (one.best_ns / 1e9))


def test_a_launch_on_a_cpu_has_no_time_on_a_device() -> None:
    launch = probe_launch(open_device("cpu"), calls=50)
    assert launch.calls == 50
    assert launch.host_ns > 0
    assert launch.device_ns is None


def test_what_the_device_cannot_do_is_skipped_with_a_reason_and_refused_when_asked_for() -> None:
    cpu = open_device("cpu")
    found, skipped = probe_matmul(cpu, shapes=[(8, 8, 8)], seconds=1e-6)
    assert {one.precision for one in found} >= {"fp32", "bf16"}
    assert {one.precision: one.because for one in skipped}["fp8"] == "only a GPU multiplies in it"
    with pytest.raises(UsageError, match="fp8 cannot be measured"):
        probe_matmul(cpu, precisions=["fp8"], seconds=1e-6)
    with pytest.raises(UsageError, match="'int3' is no type"):
        probe_matmul(cpu, precisions=["int3"], seconds=1e-6)


def test_a_product_that_would_take_too_long_is_left_out() -> None:
    found, skipped = probe_matmul(
        open_device("cpu"), precisions=["fp32"], shapes=[(8, 8, 8), (10**6, 10**6, 10**6)], seconds=1e-6
    )
    assert [one.m for one in found] == [8]
    assert skipped[0].because == "one product would take too long"


def test_torchs_setting_for_single_precision_is_as_before() -> None:
    device = open_device("cpu")
    before = device.torch.get_float32_matmul_precision()
    probe_matmul(device, precisions=["fp32"], shapes=[(8, 8, 8)], seconds=1e-6)
    assert device.torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        ("nonsense", "is no device"),
        ("meta", "is not known; cpu and cuda are"),
        ("cuda:97", "there is no 'cuda:97' here"),
    ],
)
def test_a_device_that_is_not_there(device: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        open_device(device)


def test_the_whole_is_a_calibration_with_its_date() -> None:
    day = dt.date(2026, 2, 3)
    found = probe(["compute"], device="cpu", precisions=["fp32"], seconds=1e-4, today=day).calibration
    assert (found.measured_on, found.kind, found.device) == ("2026-02-03", "cpu", cpu_name())
    assert found.copy == []
    assert found.launch is not None
    assert found.machine == machine_name()


def test_a_processors_name_comes_from_the_system(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: Some CPU 9000 @ 2GHz\n")
    assert cpu_name(path) == "Some CPU 9000 @ 2GHz"
    assert cpu_name(tmp_path / "nowhere")


@pytest.mark.parametrize("wanted", ["cuda", "cuda:1", None])
def test_a_gpu_that_is_named_without_its_number_is_the_current_one(
    wanted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from torch.cuda._utils import _get_device_index

    chosen: list[int] = []
    for name, said in {
        "is_available": True,
        "device_count": 4,
        "current_device": 2,
        "get_device_name": "a GPU",
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, said=said: said)
    # torch's own way to a number, which refuses a device without one.
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.append(_get_device_index(device)))
    opened = open_device(wanted)
    assert (opened.kind, opened.name) == ("gpu", "a GPU")
    assert chosen == [1 if wanted == "cuda:1" else 2]
