"""compute.indexed-gradients: rows that are picked by an index fire it, others do not.

In recordings of torch's own on a CPU, in traces that are built on a device.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in as found_in_built
from tests.diagnosis.detectors.recordings import found_in, told_in
from tests.diagnosis.jobs import H100, Job, is_worth, shaped

from whystall.diagnosis.rules.compute import indexed_gradients

torch = pytest.importorskip("torch")
CAUSE: Final = "compute.indexed-gradients"


def picked(way: str) -> Callable[[], object]:
    """A step that picks rows of what it learns."""
    torch.manual_seed(0)
    nodes, of_edges = torch.nn.Parameter(torch.randn(2_000, 32)), torch.randint(2_000, (40_000,))
    of_words, few = of_edges.view(200, 200), of_edges[:300]
    mask, constant = torch.rand(2_000) < 0.6, torch.randn(2_000, 32)
    ways: dict[str, Callable[[], Any]] = {
        "edges": lambda: nodes[of_edges],
        "words of sentences": lambda: nodes[of_words],
        "a mask": lambda: nodes[mask],
        "selected": lambda: nodes.index_select(0, of_edges),
        "an embedding": lambda: torch.nn.functional.embedding(of_words, nodes),
        "few": lambda: nodes[few],
        "numbers": lambda: nodes[of_edges, of_edges % 32],
        "of what nobody learns": lambda: constant[of_edges] * nodes.sum(),
    }

    def step() -> None:
        nodes.grad = None
        ways[way]().square().sum().backward()

    return step


@pytest.mark.parametrize(("way", "rows"), [("edges", 40_000), ("words of sentences", 40_000), ("a mask", None)])
def test_rows_that_are_picked_by_an_index_are_worth_what_selecting_them_leaves(
    way: str, rows: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes here: threads that share a core do not get into each other's way."""
    monkeypatch.setattr(indexed_gradients, "_SLOW_NS", 0.0)
    finding = told_in(picked(way), tmp_path, lambda found: found.get(CAUSE))
    assert finding.evidence[0].value == rows or rows is None
    assert finding.evidence[1].value == 32
    assert finding.remedy is not None
    assert "index_select(0, source)" in (finding.remedy.patch or "")


def test_additions_that_are_quick_for_their_number_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexed_gradients, "_SLOW_NS", 1e6)
    assert CAUSE not in found_in(picked("edges"), tmp_path)


@pytest.mark.parametrize("way", ["selected", "an embedding", "few", "numbers", "of what nobody learns"])
def test_others_are_none(way: str, tmp_path: Path) -> None:
    assert CAUSE not in found_in(picked(way), tmp_path)


ADDING: Final = "void (anonymous namespace)::indexing_backward_kernel<float, 4>(long const*, long const*, float const*)"
ADDING_NS: Final = 2_500_000
OTHER_NS: Final = 2_000_000
PICKED: Final = 32_768
MOVED_NS: Final = (PICKED + 2 * 7) * 64 * 4 / 3350
"""What reading the gradients, and reading and writing the seven rows, takes an H100 at 3,350 GB/s: 2.5 us."""


def on_a_device(
    whole: list[int],
    values: list[int],
    *,
    lasts: int = ADDING_NS,
    kernel: str = ADDING,
    device: dict[str, Any] | None = H100,
    backward: bool = True,
) -> Job:
    """Eight steps of an indexing, other work, and what adds the gradients of what was picked."""
    job = Job(device)
    added: dict[str, Any] = {
        "Input Dims": [whole, [], values, [], []],
        "Input type": ["float", "", "float", "Scalar", "Scalar"],
    }
    for number in job.steps(8):
        mark: dict[str, Any] = {"Sequence number": number, "Fwd thread id": 0}
        job.operator("aten::index", "vectorized_gather_kernel", 20_000, **shaped(whole, []), **mark)
        job.operator("aten::mm", "ampere_sgemm_128x128_nn", OTHER_NS, **shaped([64, 64], [64, 64]))
        mark["Fwd thread id"] = int(backward)
        with (
            job.inside("autograd::engine::evaluate_function: IndexBackward0", **mark),
            job.inside("IndexBackward0", **shaped(values), **mark),
            job.inside("aten::_index_put_impl_", **added),
        ):
            job.launch("DeviceRadixSortOnesweepKernel", 8_000)
            job.launch(kernel, lasts)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("whole", "values"),
    [
        ([7, 64], [PICKED, 64]),
        ([7, 64], [64, 512, 64]),
        ([7, 8, 8], [PICKED, 8, 8]),
        ([7], [64 * PICKED]),
        ([8, 7, 8], [8, PICKED, 8]),
        ([8, 8, 7], [8, 8, 64, 512]),
    ],
)
def test_a_device_adds_the_rows_of_one_index_one_after_another(whole: list[int], values: list[int]) -> None:
    """What sorts them stays, and the rows move at three tenths of the bandwidth."""
    job = on_a_device(whole, values)
    finding = found_in_built(job.built)[CAUSE]
    is_worth(finding, job.step_ns / (job.step_ns - ADDING_NS + MOVED_NS / 0.3))
    rows = prod(values) * 7 // prod(whole)
    assert [fact.value for fact in finding.evidence] == [ADDING_NS, 0.001, rows, 7]
    assert finding.remedy is not None
    assert "nn.functional.embedding(ids, table)" in (finding.remedy.patch or "")


@pytest.mark.parametrize(
    "job",
    [
        # 250 us is the least that so many rows take: hardly one is picked twice
        pytest.param(
            on_a_device([10_000, 64], [100 * PICKED, 64], lasts=2_400_000), id="as-fast-as-scattered-rows-are"
        ),
        pytest.param(on_a_device([7, 64], [PICKED]), id="numbers-by-two-indices"),
        pytest.param(on_a_device([7, 64], [PICKED, 64], kernel="index_elementwise_kernel"), id="written-not-added"),
        pytest.param(on_a_device([7, 64], [PICKED, 64], device=None), id="on-what-nobody-knows-the-bandwidth-of"),
        pytest.param(on_a_device([7, 64], [PICKED, 64], backward=False), id="that-the-job-adds-itself"),
    ],
)
def test_others_on_a_device_are_none(job: Job) -> None:
    assert CAUSE not in found_in_built(job.built)
