"""compute.copied-buffer: concatenations that add little to what was kept fire it; others do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.diagnosis.cases import found_in
from tests.diagnosis.detectors.recordings import found_in as found_in_recording
from tests.diagnosis.jobs import H100, Job, is_worth, shaped

CAT_NS = 4_000_000
OTHER_NS = 4_000_000
QUEUE = [65_536, 128]


def queue(parts: list[list[int]], *, copies: int = 0, in_steps: int = 8, cuts: int = 1) -> Job:
    """Eight steps of a concatenation, copies of what it makes, and other work.

    So many times a part of a tensor of the result's size is cut off before.
    """
    job = Job()
    whole = [sum(part[0] for part in parts), 128]
    for step in job.steps(8):
        if step < in_steps:
            for _ in range(cuts):
                job.operator("aten::slice", **shaped(whole))
            with job.inside("aten::cat", **{"Input Dims": [parts, []], "Input type": ["TensorList", "Scalar"]}):  # type: ignore[arg-type]
                job.python(CAT_NS)
        for _ in range(copies):
            with job.inside("aten::clone", **{"Input Dims": [[65_600, 128], []], "Input type": ["float", ""]}):  # type: ignore[arg-type]
                job.python(CAT_NS)
        with job.inside("aten::relu", **{"Input Dims": [[64, 128]], "Input type": ["float"]}):  # type: ignore[arg-type]
            job.python(OTHER_NS)
    return job


@pytest.mark.parametrize("copies", [0, 1])
def test_what_is_appended_alone_is_left(copies: int) -> None:
    finding = found_in(queue([QUEUE, [64, 128]], copies=copies).built)["compute.copied-buffer"]
    is_worth(finding, (OTHER_NS + (1 + copies) * CAT_NS) / OTHER_NS)


def test_attention_reads_a_part_of_a_longer_buffer_more_slowly_than_what_was_joined() -> None:
    """By hand 1.07 to 1.20 in three pairs of a generation whose caches took 27 % of a step."""
    job = Job()
    for step in job.steps(8):
        parts = [[32, 8, 512 + step, 64], [32, 8, 1, 64]]
        with job.inside("aten::cat", **{"Input Dims": [parts, []], "Input type": ["TensorList", "Scalar"]}):  # type: ignore[arg-type]
            job.python(CAT_NS)
        with job.inside("aten::relu", **shaped([64, 128])):
            job.python(OTHER_NS)
    finding = found_in(job.built)["compute.copied-buffer"]
    assert finding.gain is not None
    assert finding.gain.floor < 1.05
    assert 1.15 < finding.gain.expected < 1.4
    assert finding.gain.ceiling > 1.9


def test_giving_back_what_was_there_is_part_of_it() -> None:
    """The pause after it, until the next operator."""
    job = Job()
    appended: dict[str, Any] = {"Input Dims": [[QUEUE, [64, 128]], []], "Input type": ["TensorList", "Scalar"]}
    for _ in job.steps(8):
        job.operator("aten::slice", **shaped([QUEUE[0] + 64, 128]))
        with job.inside("aten::cat", **appended):
            job.python(CAT_NS)
        job.python(CAT_NS // 2)
        with job.inside("aten::relu", **{"Input Dims": [[64, 128]], "Input type": ["float"]}):  # type: ignore[arg-type]
            job.python(OTHER_NS)
    is_worth(found_in(job.built)["compute.copied-buffer"], (OTHER_NS + 1.5 * CAT_NS) / OTHER_NS)


@pytest.mark.parametrize(
    "job",
    [
        queue([QUEUE, QUEUE]),  # two halves
        queue([[100, 128], [1, 128]]),  # small
        queue([QUEUE, [64, 128]], in_steps=2),  # now and then
        queue([QUEUE]),
        queue([QUEUE, [64, 128]], cuts=0),  # what was just computed gets a margin, or a token of its class
        queue([QUEUE, [64, 128]], cuts=2),  # turned around: both parts are of the same tensor
    ],
)
def test_others_are_not(job: Job) -> None:
    assert "compute.copied-buffer" not in found_in(job.built)


SMALL_NS = 2_000
"""What writing the new rows takes a device."""
WINDOW = [48, 16, 1535, 64]
TOKEN = [48, 16, 1, 64]


def on_a_device(
    parts: list[list[int]], *, lasts: int = CAT_NS, cuts: int = 1, clones: int = 0, in_steps: int = 8, of: int = 0
) -> Job:
    """Eight steps of a concatenation along one dimension, copies of what it makes, and another kernel."""
    job = Job(H100)
    whole = [sum(part[at] for part in parts) if at == of else size for at, size in enumerate(parts[0])]
    joined: dict[str, Any] = {"Input Dims": [parts, []], "Input type": ["TensorList", "Scalar"]}
    for step in job.steps(8):
        if step < in_steps:
            for _ in range(cuts):
                job.operator("aten::slice", **shaped(whole))
            job.operator("aten::cat", "void at::native::(anonymous namespace)::CatArrayBatchedCopy", lasts, **joined)
            for _ in range(clones):
                with job.inside("aten::clone", **shaped(whole)):
                    job.operator("aten::copy_", "Memcpy DtoD (Device -> Device)", lasts, **shaped(whole, whole))
        job.operator("aten::addmm", "ampere_sgemm_128x128_nn", OTHER_NS, **shaped([64], [64, 64], [64, 64]))
        job.wait()
    return job


@pytest.mark.parametrize(("parts", "of"), [([QUEUE, [64, 128]], 0), ([WINDOW, TOKEN], 2)])
@pytest.mark.parametrize("clones", [0, 1])
def test_on_a_device_the_rows_that_are_new_are_left(parts: list[list[int]], of: int, clones: int) -> None:
    """64 of 65,600 rows are a thousandth of 4 ms, 1 of 1,536 less than that: a small kernel takes 2 us at least."""
    job = on_a_device(parts, clones=clones, of=of)
    left = max(SMALL_NS, CAT_NS * 64 // 65_600 if of == 0 else 0)
    finding = found_in(job.built)["compute.copied-buffer"]
    is_worth(finding, job.step_ns / (job.step_ns - (1 + clones) * (CAT_NS - left)))
    assert [fact.value for fact in finding.evidence] == [(1 + clones) * CAT_NS, 0.001 if of == 0 else 0.0007]


def test_on_a_device_copies_beside_a_concatenation_may_be_needed() -> None:
    """A copy of it is left at worst, and of the concatenation a fifth."""
    job = on_a_device([QUEUE, [64, 128]], clones=1)
    gain = found_in(job.built)["compute.copied-buffer"].gain
    assert gain is not None
    assert gain.floor <= job.step_ns / (job.step_ns - CAT_NS) < gain.expected


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(on_a_device([QUEUE, QUEUE]), id="two-halves"),
        pytest.param(on_a_device([[100, 128], [1, 128]]), id="small"),
        pytest.param(on_a_device([QUEUE, [64, 128]], in_steps=1), id="once"),
        pytest.param(on_a_device([QUEUE, [64, 128]], cuts=0), id="of-what-was-just-computed"),
        pytest.param(on_a_device([QUEUE, [64, 128]], cuts=2), id="turned-around"),
        pytest.param(on_a_device([QUEUE, [64, 128]], lasts=100_000), id="of-little-time"),
    ],
)
def test_others_on_a_device_are_not(job: Job) -> None:
    assert "compute.copied-buffer" not in found_in(job.built)


class Stores:
    """Steps as they are written: each keeps something, or makes something that looks like it."""

    def __init__(self) -> None:
        self.kept = torch.randn(65_536, 64)
        self.field = torch.randn(1024, 512)
        self.token = torch.nn.Parameter(torch.zeros(1, 1, 64))

    def queue(self, new: torch.Tensor) -> None:
        self.kept = torch.cat([self.kept[256:], new])

    def queue_by_narrow(self, new: torch.Tensor) -> None:
        self.kept = torch.cat((self.kept.narrow(0, 256, 65_536 - 256), new))

    def queue_cut_afterwards(self, new: torch.Tensor) -> None:
        self.kept = torch.cat([new, self.kept])[:65_536]

    def window_of_time(self, new: torch.Tensor) -> None:
        self.field = torch.cat([self.field[:, 1:], self.field.new_zeros(1024, 1)], 1)

    def history(self, new: torch.Tensor) -> None:
        self.kept = torch.vstack([self.kept, new])

    def class_token(self, new: torch.Tensor) -> None:
        tokens = torch.cat([self.token.expand(256, -1, -1), new[:, None] * torch.ones(1, 64, 1)], 1)
        tokens.relu()[:, 1:].mean().backward()

    def class_token_without_gradients(self, new: torch.Tensor) -> None:
        with torch.no_grad():
            tokens = torch.cat([self.token.expand(256, -1, -1), new[:, None] * torch.ones(1, 64, 1)], 1).relu()
            tokens[:, 1:].mean(1).add_(tokens[:, 0])

    def periodic_margin(self, _: torch.Tensor) -> None:
        wide = torch.cat([self.field[:, -1:], self.field, self.field[:, :1]], 1)
        self.field = 0.5 * (wide[:, 2:] + wide[:, :-2])

    def roll(self, _: torch.Tensor) -> None:
        self.field = 0.5 * (self.field + torch.roll(self.field, 1, 0))


@pytest.mark.parametrize(
    ("step", "fires"),
    [
        (Stores.queue, True),
        (Stores.queue_by_narrow, True),
        (Stores.queue_cut_afterwards, True),
        (Stores.window_of_time, True),
        (Stores.history, True),
        (Stores.class_token, False),
        (Stores.class_token_without_gradients, False),
        (Stores.periodic_margin, False),
        (Stores.roll, False),
    ],
)
def test_recorded_steps(step: Callable[[Stores, torch.Tensor], None], tmp_path: Path, *, fires: bool) -> None:
    """A class token was told to be a ring buffer, and so was a field on a torus."""
    stores, new = Stores(), torch.randn(256, 64)
    found = found_in_recording(lambda: step(stores, new), tmp_path, steps=4)
    assert ("compute.copied-buffer" in found) is fires


@pytest.mark.parametrize(
    ("way", "told"),
    [("by a batch", True), ("back", False), ("by another number each time", False), ("of a model", False)],
)
def test_a_store_that_is_moved_for_each_batch(way: str, *, told: bool, tmp_path: Path) -> None:
    store, shifts = torch.randn(20_000, 64), iter(range(100, 1_000, 7))
    weight, rows = torch.ones(64, requires_grad=True), torch.ones(64, 64)

    def step() -> None:
        nonlocal store
        if way == "of a model":
            torch.roll(store * weight, 64, 0).mean().backward()
            return
        store = torch.roll(store, next(shifts) if "another" in way else 64, 0)
        if way == "back":
            store = torch.roll(store, -64, 0)
        store[:64] = rows

    assert ("compute.copied-buffer" in found_in_recording(step, tmp_path)) is told
