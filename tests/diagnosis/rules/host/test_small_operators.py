"""host.small-operators: on a CPU a loop of small operators, or inference one by one, fires it; large operators, few
small ones, and the same on a device do not.
"""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import found_in, told_of
from tests.diagnosis.jobs import is_worth, shaped

from whystall.diagnosis.run_facts import RunFacts
from whystall.testing import TraceBuilder, trace

CALL_NS: Final = 9_000
"""What an operator on a few numbers takes: nearly all of it is the call."""
PAUSE_NS: Final = 3_000
CELL: Final = (
    ("aten::addmm", shaped([192], [16, 48], [48, 192])),
    ("aten::sigmoid", shaped([16, 48])),
    ("aten::tanh", shaped([16, 48])),
    ("aten::mul", shaped([16, 48], [16, 48])),
)
LAYER_NS: Final = 2_000_000


def loop(
    times: int = 100,
    *,
    call_ns: int = CALL_NS,
    trains: bool = True,
    prefix: str = "",
    beside_ns: int = 0,
    shapes: bool = True,
    launches: bool = False,
    interrupted_ns: int = 0,
    within: str = "",
) -> TraceBuilder:
    """Eight steps that go through a cell's operators so many times, after one large operator of ``beside_ns``.

    They may all be called by one operator.
    """
    built = trace()
    at = 0
    for number in range(8):
        begin = at
        if beside_ns:
            built.operator("aten::mm", at=at, lasts=beside_ns, **shaped([4096, 512], [512, 512]))
            at += beside_ns + PAUSE_NS
        for turn in range(times):
            lasts = interrupted_ns if interrupted_ns and turn == times // 2 else call_ns
            for name, dims in CELL:
                more = {"Sequence number": turn, "Fwd thread id": 1} if trains else {}
                built.operator(prefix + name, at=at, lasts=lasts, **(dims if shapes else {}), **more)
                if launches:
                    built.launch("cell", at=at + 1_000, call_lasts=4_000, runs_at=at + 6_000, lasts=2_000)
                at += lasts + PAUSE_NS
        if within:
            built.operator(within, at=begin - 1, lasts=at - begin + 1, **shaped([16, 48]))
        built.step(number, at=begin - 2, lasts=at - begin + 2)
        at += 2
    return built


def test_a_loop_of_small_operators_is_worth_the_calls_that_one_operator_saves() -> None:
    """100 x 295 kFLOP of products take 0.37 ms at 80 GFLOP/s, functions of 2 x 768 elements 0.15 ms, of 4.8 ms: the
    rest is calls, of which 0 to 60 % stay.
    """
    finding = found_in(loop())["host.small-operators"]
    assert finding.gain is not None
    step, needed = 400 * (CALL_NS + PAUSE_NS), 100 * (295_000 / 80 + 2 * 16 * 48)
    assert finding.gain.floor <= step / (needed + 0.6 * (step - needed))
    assert finding.gain.ceiling >= step / needed
    is_worth(finding, step / (needed + 0.3 * (step - needed)))


def test_answers_one_by_one_are_small_operators_however_few() -> None:
    assert "host.small-operators" in found_in(loop(3, trains=False))


def test_a_loop_of_another_version_or_namespace_is_the_same() -> None:
    """Custom operators in place of torch's own; what they compute is not known, their calls are."""
    assert "host.small-operators" in found_in(loop(prefix="my"))


@pytest.mark.parametrize(
    "built",
    [
        pytest.param(loop(call_ns=400_000), id="large operators"),
        pytest.param(loop(12), id="layers, not a loop"),
        pytest.param(loop(20, beside_ns=LAYER_NS), id="beside a large operator"),
        pytest.param(loop(shapes=False), id="sizes not known"),
        pytest.param(loop(launches=True), id="on a device, where it is another cause"),
        pytest.param(loop(within="aten::lstm"), id="in one call of torch's"),
    ],
)
def test_what_is_no_loop_of_small_operators(built: TraceBuilder) -> None:
    assert "host.small-operators" not in told_of(built)


def test_a_call_that_was_interrupted_counts_with_those_like_it() -> None:
    """In every step one turn's calls take 80 us each, as where another process has the core."""
    finding = found_in(loop(interrupted_ns=80_000))["host.small-operators"]
    step = 396 * (CALL_NS + PAUSE_NS) + 4 * (80_000 + PAUSE_NS)
    assert finding.attributed_ns_per_step == pytest.approx(step, rel=0.01)


def test_a_loop_over_elements_is_named_beside_larger_work() -> None:
    """300 x 48 us = 14.4 ms of 54.4 ms, of which arithmetic is 1.1 ms and calls 13.3 ms, 30 % of which stay."""
    finding = found_in(loop(300, beside_ns=40_000_000))["host.small-operators"]
    is_worth(finding, 54.4 / (40 + 1.1 + 13.3 * 0.3), within=0.08)


def test_as_many_small_operators_between_layers_are_the_layers() -> None:
    built = trace()
    at = 0
    for number in range(8):
        begin = at
        for _ in range(100):
            built.operator("aten::mm", at=at, lasts=80_000, **shaped([512, 512], [512, 512]))
            at += 80_000 + PAUSE_NS
            for name, dims in CELL:
                built.operator(name, at=at, lasts=CALL_NS, **dims, **{"Sequence number": 1, "Fwd thread id": 1})
                at += CALL_NS + PAUSE_NS
        built.step(number, at=begin, lasts=at - begin)
    assert "host.small-operators" not in told_of(built)


@pytest.mark.parametrize(("within", "found"), [("aten::gru", False), ("", True)])
def test_the_backward_pass_of_one_call_is_no_loop_either(within: str, found: bool) -> None:
    """Forward operators, which one operator calls or none, and as many of the backward pass by themselves."""
    built = trace()
    at = number = 0
    for step in range(8):
        begin = at
        first = number
        for _ in range(100):
            number += 1
            built.operator(
                "aten::addmm", at=at, lasts=CALL_NS, **CELL[0][1], **{"Sequence number": number, "Fwd thread id": 0}
            )
            at += CALL_NS + PAUSE_NS
        if within:
            built.operator(within, at=begin, lasts=at - begin, **{"Sequence number": first, "Fwd thread id": 0})
        for one in range(number, first, -1):
            for name, dims in CELL:
                built.operator(name, at=at, lasts=CALL_NS, **dims, **{"Sequence number": one, "Fwd thread id": 1})
                at += CALL_NS + PAUSE_NS
        built.step(step, at=begin - 1, lasts=at - begin + 1)
        at += 2
    assert ("host.small-operators" in told_of(built)) == found


WOKEN_NS: Final = 100_000
"""What a product of a few numbers takes whose threads are woken first."""


def cells(rows: int, *, times: int = 100, called_ns: int = WOKEN_NS) -> TraceBuilder:
    """Eight steps that go through a cell with a product of so many rows, which takes longer than a small call."""
    built = trace()
    at = 0
    for number in range(8):
        begin = at
        for turn in range(times):
            numbered = {"Sequence number": turn, "Fwd thread id": 1}
            product = shaped([192], [rows, 48], [48, 192])
            built.operator("aten::addmm", at=at, lasts=called_ns, **product, **numbered)
            at += called_ns + PAUSE_NS
            built.operator("aten::tanh", at=at, lasts=CALL_NS, **shaped([rows, 48]), **numbered)
            at += CALL_NS + PAUSE_NS
        built.step(number, at=begin, lasts=at - begin)
    return built


def test_a_product_of_few_rows_is_small_though_threads_are_woken_for_it() -> None:
    """100 x 295 kFLOP take 0.37 ms at 80 GFLOP/s, of 11.5 ms in the cells: the rest is calls, of which 30 % stay."""
    finding = found_in(cells(16))["host.small-operators"]
    step, needed = 100 * (WOKEN_NS + CALL_NS + 2 * PAUSE_NS), 100 * 295_000 / 80
    is_worth(finding, step / (needed + 0.3 * (step - needed)), within=0.08)


def elementwise(rows: int) -> TraceBuilder:
    """Eight steps of a hundred multiplications of so many rows of 384, for which threads are woken."""
    built = trace()
    at = 0
    for number in range(8):
        begin = at
        for turn in range(100):
            numbered = {"Sequence number": turn, "Fwd thread id": 1}
            built.operator("aten::mul", at=at, lasts=WOKEN_NS, **shaped([rows, 384], [rows, 384]), **numbered)
            at += WOKEN_NS + PAUSE_NS
        built.step(number, at=begin, lasts=at - begin)
    return built


def test_elements_that_stay_in_caches_are_small_though_threads_are_woken_for_them() -> None:
    """100 x 3 x 49,152 floats at 50 GB/s are 1.2 ms of 10.5: gradients of single examples, clipped one by one."""
    finding = found_in(elementwise(64))["host.small-operators"]
    step, needed = 100 * (WOKEN_NS + PAUSE_NS), 100 * 3 * 64 * 384 * 4 / 50
    is_worth(finding, step / (needed + 0.3 * (step - needed)), within=0.08)


def test_elements_that_do_not_are_not() -> None:
    assert "host.small-operators" not in told_of(elementwise(512))  # 2.4 MB come from memory, or a cache that is shared


@pytest.mark.parametrize(("threads", "found"), [(1, False), (2, False), (4, True)])
def test_a_product_reaches_the_rates_of_all_its_threads(threads: int, *, found: bool) -> None:
    """128 rows are 2.4 MFLOP, 29 us on one core and 7 on four: of 50 us those of one or two would be a good part."""
    told = found_in(cells(128, called_ns=50_000), facts=RunFacts(threads=threads))
    assert ("host.small-operators" in told) == found


@pytest.mark.parametrize(
    "built",
    [
        pytest.param(cells(256), id="products that reach a rate"),  # 4.7 MFLOP in 100 us
        pytest.param(cells(16, times=8), id="layers, not a loop"),
        pytest.param(cells(16, called_ns=400_000), id="whatever they do, it is no call"),
    ],
)
def test_products_that_are_not(built: TraceBuilder) -> None:
    assert "host.small-operators" not in told_of(built)
