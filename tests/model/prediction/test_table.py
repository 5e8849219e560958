"""Options against devices: each cell is what a prediction of that step alone says, and links take what they must."""

from __future__ import annotations

from typing import Any

import pytest

from whystall.errors import UsageError
from whystall.hardware import find
from whystall.model.prediction.predict import option_rows, predict
from whystall.model.prediction.results import OptionRow
from whystall.model.prediction.simulator import Simulator

A100, H100, T4 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "Tesla T4"
ALONE: dict[str, dict[str, Any]] = {
    "": {},
    "--kernels fused": {"kernels": "fused"},
    "--checkpoint full": {"checkpoint": "full"},
    "--autocast bf16": {"autocast": "bf16"},
    "--optimizer sgd-momentum": {"optimizer": "sgd-momentum"},
    "--ranks 8 --strategy zero2": {"ranks": 8, "strategy": "zero2"},
    "--ranks 8 --strategy ddp": {"ranks": 8, "strategy": "ddp"},
}


@pytest.fixture(scope="module")
def table(simulator: Simulator, models: str) -> dict[str, OptionRow]:
    rows = option_rows(f"{models}:deep", [A100, H100, T4], simulator=simulator)
    return {row.options: row for row in rows}


@pytest.mark.parametrize("options", ALONE)
@pytest.mark.parametrize("device", [H100, T4])
def test_a_cell_is_what_a_prediction_of_it_alone_says(
    simulator: Simulator, models: str, table: dict[str, OptionRow], options: str, device: str
) -> None:
    alone = predict(f"{models}:deep", simulator=simulator, device=device, **ALONE[options])
    cell = next(one for one in table[options].cells if one.device == device)

    assert cell.peak_bytes == pytest.approx(alone.peak_bytes, rel=0.001)  # buckets of each tensor are rounded
    assert alone.fit is not None
    assert cell.fits == alone.fit.fits
    if "ranks" not in ALONE[options]:
        known = [one.least_ns for one in alone.work]
        assert cell.least_ns == (None if None in known else sum(filter(None, known)))


def test_a_peak_that_is_not_known_makes_no_time(table: dict[str, OptionRow]) -> None:
    times = {cell.device: cell.least_ns for cell in table["--dtype bf16"].cells}

    assert times[T4] is None  # it has no peak in bf16
    assert times[H100]


def test_ranks_take_at_least_what_they_send_over_the_link(simulator: Simulator, models: str) -> None:
    """A matrix of 512 x 512 in fp32, 4 samples: 8 ranks send 2 * 7/8 of its gradients, stage 3 half as much again."""
    rows = {row.options: row for row in option_rows(f"{models}:square", [H100], simulator=simulator)}
    link = find(H100)
    assert link is not None
    assert link.link_gb_per_s is not None
    all_reduce_ns = 2 * 7 / 8 * 512 * 512 * 4 / link.link_gb_per_s

    assert rows["--ranks 8 --strategy ddp"].cells[0].least_ns == pytest.approx(max(all_reduce_ns, _alone(rows)), abs=1)
    zero3 = rows["--ranks 8 --strategy zero3"].cells[0].least_ns
    assert zero3 == pytest.approx(1.5 * all_reduce_ns, abs=1)


def test_products_that_are_shared_take_at_least_what_is_sent_for_them(simulator: Simulator, models: str) -> None:
    rows = {row.options: row for row in option_rows(f"{models}:deep", [H100], simulator=simulator)}
    alone = predict(f"{models}:deep", simulator=simulator, device=H100, tensor_parallel=2, sequence_parallel=True)
    link = find(H100)
    assert link is not None
    assert link.link_gb_per_s is not None
    sent_ns = round(alone.tensor_parallel_bytes / link.link_gb_per_s)

    found = rows["--tensor-parallel 2 --sequence-parallel"].cells[0].least_ns
    assert sent_ns > 0
    assert found == max(sent_ns, sum(one.least_ns or 0 for one in alone.work))


def _alone(rows: dict[str, OptionRow]) -> int:
    found = rows[""].cells[0].least_ns
    assert found is not None
    return found


def test_a_model_without_blocks_has_nothing_to_checkpoint(simulator: Simulator, models: str) -> None:
    rows = option_rows(f"{models}:square", [H100], simulator=simulator)

    assert not any("--checkpoint" in row.options for row in rows)


def test_a_device_that_the_table_does_not_know_is_said(simulator: Simulator, models: str) -> None:
    with pytest.raises(UsageError, match="knows no 'H9000'"):
        option_rows(f"{models}:square", ["H9000"], simulator=simulator)


def test_a_name_that_several_have_is_answered_with_them(simulator: Simulator, models: str) -> None:
    with pytest.raises(UsageError, match="no 'H100'; of that name it has H100 SXM, H100 PCIe, H100 NVL"):
        option_rows(f"{models}:square", ["H100"], simulator=simulator)


def test_devices_that_refuse_a_kernel_of_attention_are_named(simulator: Simulator, models: str) -> None:
    options: dict[str, Any] = {"simulator": simulator, "dtype": "fp16", "attention": "flash", "optimizer": None}
    with pytest.raises(UsageError, match=rf"^{T4}: flash attention does not take .*, or name other devices"):
        option_rows(f"{models}:flash_6", [H100, T4], **options)
    assert [cell.device for cell in option_rows(f"{models}:flash_6", [H100], **options)[0].cells] == [H100]
