"""compute.padding: batches that were seen to be padded, and the operators whose shapes hold them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.diagnosis.cases import case_of, run, told_of
from tests.diagnosis.jobs import H100, Job, is_worth, shaped

from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.finding import Finding
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.run_facts import RunFacts
from whystall.run_folder.observations import MadeAt, Observations, PaddedBatches

ROWS, PLACES = 64, 512
KERNEL_NS = 4_000_000


def batches(*, needed: float, real: float, loaded: bool = True) -> PaddedBatches:
    """Ten batches of one size of which such shares are needed, and real; all rows of a batch are equally long."""
    all_of = 10 * ROWS * PLACES
    squared = all_of * PLACES
    return PaddedBatches(
        batches=10,
        positions=(all_of, squared),
        needed=(round(all_of * needed), round(squared * needed**2)),
        real=(round(all_of * real), round(squared * real**2)),
        sizes=[(ROWS, PLACES)],
        loaded=loaded,
    )


def job(*, on_device: bool, named: str = "aten::mm", sizes: list[list[int]] | None = None) -> Job:
    """Eight steps: half of the work is on batches (or on tensors of ``sizes``), half on the model's own tensors."""
    made = Job(H100 if on_device else None)
    batch = shaped(*(sizes or [[ROWS * PLACES, 1024], [1024, 1024]]))
    weights = shaped([1024, 1024], [1024, 1024])
    for _ in made.steps(8):
        for name, tensors in ((named, batch), ("aten::mm", weights)):
            if on_device:
                made.operator(name, "gemm", KERNEL_NS, **tensors)
            else:
                with made.inside(name, **tensors):
                    made.python(KERNEL_NS)
        if on_device:
            made.wait()
    return made


def padded(made: Job, seen: PaddedBatches | None) -> Finding | None:
    """What is told of padding in a watched run."""
    case = case_of(made.built, facts=RunFacts(observed={0: Observations(padding=seen)}), runs=[run()])
    found = diagnose(case, RULES)
    assert found.failures == []
    return next((one for one in found.findings if one.id == "compute.padding" and one.severity != "info"), None)


def test_what_makes_the_batches_is_named_before_what_computes_on_them() -> None:
    seen = replace(batches(needed=0.4, real=0.4), made_at=MadeAt("data.py", 59, "collate", "def collate(rows):"))
    finding = padded(job(on_device=False), seen)
    assert finding is not None
    assert (finding.code[0].file, finding.code[0].line) == ("data.py", 59)


@pytest.mark.parametrize("on_device", [True, False])
def test_padding_to_a_fixed_length_is_worth_its_places(on_device: bool) -> None:
    finding = padded(job(on_device=on_device), batches(needed=0.4, real=0.4))
    assert finding is not None
    assert finding.remedy is not None
    is_worth(finding, 2 / 1.4)
    assert "longest" in finding.remedy.text


def test_padding_to_the_longest_row_asks_for_buckets() -> None:
    finding = padded(job(on_device=True), batches(needed=1.0, real=0.5))
    assert finding is not None
    assert finding.remedy is not None
    is_worth(finding, 2 / 1.5)
    assert "similar length" in finding.remedy.text


@pytest.mark.parametrize(
    ("named", "sizes"),
    [
        ("aten::bmm", [[ROWS * 16, PLACES, PLACES], [ROWS * 16, PLACES, 64]]),
        ("aten::_softmax", [[ROWS, 16, PLACES, PLACES]]),
        ("aten::_scaled_dot_product_flash_attention", [[ROWS, 16, PLACES, 64]] * 3),
    ],
)
def test_attention_grows_with_the_square_of_the_length(named: str, sizes: list[list[int]]) -> None:
    finding = padded(job(on_device=True, named=named, sizes=sizes), batches(needed=0.5, real=0.5))
    assert finding is not None
    is_worth(finding, 2 / 1.25)


@pytest.mark.parametrize(
    "sizes",
    [
        [[PLACES, ROWS, 1024]],  # the length comes first
        [[ROWS, 16, PLACES, 64]],
        [[3, PLACES, ROWS, 1024]],
        [[1024, ROWS * PLACES], [ROWS * PLACES, 1024]],  # the gradient of a weight
    ],
)
def test_batches_are_known_in_any_order(sizes: list[list[int]]) -> None:
    finding = padded(job(on_device=False, sizes=sizes), batches(needed=0.4, real=0.4))
    assert finding is not None
    is_worth(finding, 2 / 1.4)


@pytest.mark.parametrize("sizes", [[[1024, 4096], [4096, 1024]], [[1024, PLACES]], [[ROWS, 1024]]])
def test_tensors_of_other_sizes_keep_their_time(sizes: list[list[int]]) -> None:
    assert padded(job(on_device=True, sizes=sizes), batches(needed=0.4, real=0.4)) is None


def test_little_padding_and_none_are_no_finding() -> None:
    assert padded(job(on_device=True), batches(needed=0.9, real=0.9)) is None
    assert padded(job(on_device=True), batches(needed=1.0, real=0.7)) is None  # as batches drawn at random have
    assert padded(job(on_device=True), None) is None


def test_what_a_request_holds_cannot_be_put_together_by_length() -> None:
    assert padded(job(on_device=True), batches(needed=1.0, real=0.4, loaded=False)) is None
    assert padded(job(on_device=True), batches(needed=0.4, real=0.4, loaded=False)) is not None


def test_a_trace_alone_does_not_show_it() -> None:
    """Shapes are those of the padded batch, whatever is in it."""
    assert "compute.padding" not in told_of(
        job(on_device=True).built, facts=RunFacts(observed={0: Observations(padding=batches(needed=0.4, real=0.4))})
    )
