"""compute.written-out-product: a large tensor made by broadcasting and summed fires it; other sums do not."""

from __future__ import annotations

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import A100, Job, is_worth, shaped

MADE_NS = 8_000_000
OTHER_NS = 10_000_000
LEFT, RIGHT, MADE = [32, 800, 1], [32, 1, 256], [32, 800, 256]
PRODUCT_NS = int(2 * 32 * 800 * 256 / 80)  # 80 GFLOP/s


def job(*calls: tuple[str, list[list[int]]]) -> Job:
    """Eight steps of some calls, and of other work."""
    made = Job()
    for _ in made.steps(8):
        for name, sizes in (*calls, ("aten::relu", [[64, 128]])):
            recorded = {"Input Dims": [*sizes, []], "Input type": ["float"] * len(sizes) + ["Scalar"]}
            with made.inside(name, **recorded):  # type: ignore[arg-type]
                made.python(OTHER_NS if name == "aten::relu" else MADE_NS)
    return made


def test_a_product_takes_the_place_of_what_is_written_out() -> None:
    made = job(("aten::mul", [LEFT, RIGHT]), ("aten::sum", [MADE]))
    finding = found_in(made.built)["compute.written-out-product"]
    is_worth(finding, (2 * MADE_NS + OTHER_NS) / (PRODUCT_NS + OTHER_NS))


def test_squares_of_differences_are_distances() -> None:
    made = job(("aten::sub", [LEFT, RIGHT]), ("aten::pow", [MADE]), ("aten::sum", [MADE]))
    finding = found_in(made.built)["compute.written-out-product"]
    is_worth(finding, (3 * MADE_NS + OTHER_NS) / (PRODUCT_NS + OTHER_NS))


A100_FLOPS_PER_S = 19.5e12
LARGE_LEFT, LARGE_RIGHT, LARGE = [64, 2048, 1], [64, 1, 512], [64, 2048, 512]
PASS_NS = int(64 * 2048 * 512 * 4 / 1.6e12 * 1e9)


@pytest.mark.parametrize(
    "kinds",
    [(("aten::mul", 1), ("aten::sum", 1)), (("aten::sub", 1), ("aten::pow", 2), ("aten::sum", 1))],
)
def test_on_a_device_a_product_takes_the_place_of_passes_over_memory(kinds: tuple[tuple[str, int], ...]) -> None:
    made, passes = Job(A100), sum(count for _, count in kinds)
    for _ in made.steps(8):
        for name, count in kinds:
            sizes = [LARGE_LEFT, LARGE_RIGHT] if name in ("aten::mul", "aten::sub") else [LARGE]
            made.operator(name, "elementwise_kernel", count * PASS_NS, **shaped(*sizes))
        made.operator("aten::relu", "relu_kernel", PASS_NS, **shaped([64, 128]))
        made.wait()
    finding = found_in(made.built)["compute.written-out-product"]
    needed = 2 * 64 * 2048 * 512 / (0.3 * A100_FLOPS_PER_S) * 1e9
    healthy = made.step_ns - passes * PASS_NS + needed
    is_worth(finding, made.step_ns / healthy, within=0.1)


@pytest.mark.parametrize(
    "made",
    [
        job(("aten::mul", [MADE, [256]]), ("aten::sum", [MADE])),  # a scale of each column
        job(("aten::mul", [LEFT, RIGHT]), ("aten::exp", [MADE])),  # something else comes of it
        job(("aten::sub", [LEFT, RIGHT]), ("aten::sum", [MADE])),
        job(("aten::mul", [[8, 1], [1, 8]]), ("aten::sum", [[8, 8]])),  # small
        job(
            ("aten::mul", [LEFT, RIGHT]), ("aten::sum", [MADE]), ("aten::bmm", [MADE, [32, 256, 64]])
        ),  # a layer reads it
    ],
)
def test_others_are_not(made: Job) -> None:
    assert "compute.written-out-product" not in found_in(made.built)


def test_giving_the_large_tensor_back_goes_with_it() -> None:
    """The function that made it returns after one more operator: a pause of 5 ms that only this tensor explains."""
    made = Job()
    for _ in made.steps(8):
        for name, sizes in (("aten::mul", [LEFT, RIGHT]), ("aten::sum", [MADE]), ("aten::argmin", [[800, 256]])):
            with made.inside(name, **{"Input Dims": sizes, "Input type": ["float"] * len(sizes)}):  # type: ignore[arg-type]
                made.python(1_000_000 if name == "aten::argmin" else MADE_NS)
        made.python(5_000_000)
        with made.inside("aten::relu", **{"Input Dims": [[64, 128]], "Input type": ["float"]}):  # type: ignore[arg-type]
            made.python(OTHER_NS)
    finding = found_in(made.built)["compute.written-out-product"]
    is_worth(finding, (2 * MADE_NS + 1_000_000 + 5_000_000 + OTHER_NS) / (PRODUCT_NS + 1_000_000 + OTHER_NS))


def repeated(*sources: list[int], summed: str = "aten::sum") -> Job:
    """Eight steps in which tensors are repeated to one size, multiplied with one another, and summed."""
    made = Job()
    for _ in made.steps(8):
        for source in sources:
            times = [whole // size for whole, size in zip(MADE, source, strict=True)]
            given = {"Input Dims": [source, []], "Input type": ["float", "ScalarList"]}
            with made.inside("aten::repeat", **given, **{"Concrete Inputs": ["", str(times)]}):  # type: ignore[arg-type]
                made.python(MADE_NS)
        for name, sizes in (("aten::mul", [MADE, MADE]), (summed, [MADE])):
            with made.inside(name, **{"Input Dims": sizes, "Input type": ["float"] * len(sizes)}):  # type: ignore[arg-type]
                made.python(MADE_NS)
        with made.inside("aten::relu", **{"Input Dims": [[64, 128]], "Input type": ["float"]}):  # type: ignore[arg-type]
            made.python(OTHER_NS)
    return made


def test_what_is_repeated_instead_of_broadcast_is_a_product_too() -> None:
    """By hand 12 to 15 times as fast, three pairs of an attention whose queries and keys were repeated."""
    finding = found_in(repeated(LEFT, RIGHT).built)["compute.written-out-product"]
    is_worth(finding, (4 * MADE_NS + OTHER_NS) / (PRODUCT_NS + OTHER_NS))


@pytest.mark.parametrize("made", [repeated(LEFT), repeated(LEFT, RIGHT, summed="aten::exp")])
def test_one_that_is_repeated_or_no_sum_is_no_product(made: Job) -> None:
    assert "compute.written-out-product" not in found_in(made.built)
