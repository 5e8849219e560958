"""The order of what to compute again, with steps made up of known bytes and FLOPs in place of simulated ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from whystall.model.prediction.events import Record
from whystall.model.prediction.outcome import Kept, Simulated, Work
from whystall.model.prediction.peaks import SectionPeak
from whystall.model.prediction.recompute import recompute_rows
from whystall.model.prediction.recompute_names import Again, added, general, parsed
from whystall.model.prediction.request import Request

PEAK, FLOPS = 1000, 10_000
REQUEST = Request(target="file.py:model")
Modules = Mapping[str, tuple[int, int]]  # bytes that are saved, and FLOPs more


def step(peak: int, flops: int, modules: Modules | None = None, phase: str = "backward") -> Simulated:
    return Simulated(
        sections={(phase, ""): SectionPeak(peak, {("activations", ""): peak})},
        work={"forward": Work(flops)},
        parameters=0,
        trainable=0,
        parameter_bytes=0,
        gradient_bytes=0,
        state_bytes=0,
        largest_unit_bytes=0,
        blocks=None,
        assumed=(),
        uncovered=(),
        record=Record(()),
        modules={
            name: Kept(kind="Part", calls=2, n_bytes=saved, flops=more, operators={"mm": saved})
            for name, (saved, more) in (modules or {}).items()
        },
    )


def adding_up(modules: Modules) -> Callable[[Request], Simulated]:
    """Steps in which each module saves and costs what it does alone."""

    def run(request: Request) -> Simulated:
        names = request.recompute
        return step(PEAK - sum(modules[name][0] for name in names), FLOPS + sum(modules[name][1] for name in names))

    return run


def rows(modules: Modules, room: int = 0, request: Request = REQUEST) -> list[str]:
    found, _ = recompute_rows(request, step(PEAK, FLOPS, modules), adding_up(modules), lambda peak: peak <= room)
    return [one.module for one in found]


def test_most_bytes_for_a_flop_come_first_until_it_fits() -> None:
    modules = {"dear": (300, 3000), "cheap": (100, 10), "middle": (200, 400)}

    assert rows(modules) == ["cheap", "middle", "dear"]
    assert rows(modules, room=900) == ["cheap"]
    assert rows(modules, room=899) == ["cheap", "middle"]


def test_of_those_without_flops_the_largest_comes_first() -> None:
    assert rows({"small": (50, 0), "large": (80, 0), "other": (90, 1)}) == ["large", "small", "other"]


def test_what_saves_less_than_a_hundredth_is_no_row() -> None:
    assert rows({"one": (9, 1), "two": (10, 1)}) == ["two"]
    found, why_not = recompute_rows(REQUEST, step(PEAK, FLOPS, {"one": (9, 1)}), adding_up({}), lambda _: False)
    assert (found, why_not) == ((), "no module that is computed again makes the peak a hundredth smaller")


def test_the_whole_takes_the_place_of_its_part() -> None:
    def run(request: Request) -> Simulated:
        peak, more = (100, 10) if request.recompute == ("block.part",) else (300, 100)
        assert request.recompute in {("block.part",), ("block",)}
        return step(PEAK - peak, FLOPS + more)

    modules = {"block.part": (100, 10), "block": (300, 100)}
    found, _ = recompute_rows(REQUEST, step(PEAK, FLOPS, modules), run, lambda _: False)

    assert [(one.module, one.saved_bytes, one.more_flops) for one in found] == [
        ("block.part", 100, 10), ("block", 200, 90)
    ]  # fmt: skip
    assert found[-1].options == "--recompute block"
    assert (found[-1].total_saved_bytes, found[-1].total_more_flops, found[-1].peak_bytes) == (300, 100, 700)


def test_what_fails_alone_is_no_row() -> None:
    modules = {"good": (100, 10), "bad": (200, 10)}
    known = adding_up(modules)

    def run(request: Request) -> Simulated | None:
        return None if "bad" in request.recompute else known(request)

    found, _ = recompute_rows(REQUEST, step(PEAK, FLOPS, modules), run, lambda _: False)

    assert [one.module for one in found] == ["good"]


def test_an_optimizer_that_holds_most_is_no_case() -> None:
    modules = {"one": (500, 1)}
    found, why_not = recompute_rows(
        REQUEST, step(PEAK, FLOPS, modules, "optimizer"), adding_up(modules), lambda _: False
    )

    assert found == ()
    assert "optimizer's phase" in (why_not or "")


def test_blocks_that_are_computed_again_already_are_no_case() -> None:
    _, why_not = recompute_rows(
        changed(REQUEST, checkpoint="full"), step(PEAK, FLOPS, {}), adding_up({}), lambda _: False
    )

    assert why_not == "every block is computed again already"


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(10, 150), st.integers(1, 500)), min_size=1),
    st.integers(0, PEAK - 1),
    st.randoms(),
)
def test_rows_are_those_of_a_brute_force_whatever_the_order(
    modules: dict[str, tuple[int, int]], room: int, random: Random
) -> None:
    expected, peak = [], PEAK
    for name in sorted(modules, key=lambda one: (-modules[one][0] / modules[one][1], -modules[one][0], one)):
        expected.append(name)
        peak -= modules[name][0]
        if peak <= room:
            break
    names = list(modules)
    random.shuffle(names)

    assert rows(modules, room) == expected == rows({name: modules[name] for name in names}, room)


def test_names() -> None:
    assert parsed("blocks.*") == Again("blocks.*")
    assert parsed("blocks.*:cheap") == Again("blocks.*", cheap=True)
    assert [parsed(name) for name in ("", ":cheap", "blocks:dear", "blocks:")] == [None] * 4
    assert general("", {""}) == ""
    assert general("0.up", {""}) == "*.up"
    assert general("blocks.0.0", {"blocks"}) == "blocks.*.0"


def test_what_more_can_be_computed_again() -> None:
    block, cheap_block, part, cheap_part, other = (
        Again("b"), Again("b", cheap=True), Again("b.p"), Again("b.p", cheap=True), Again("bb")
    )  # fmt: skip

    assert added((part,), block) == (block,)
    assert added((block,), part) is None
    assert added((block,), other) == (block, other)
    assert added((cheap_block,), block) == (block,)
    assert added((block,), cheap_block) is None
    assert added((part,), cheap_block) is None
    assert added((cheap_part,), cheap_block) == (cheap_block,)
    assert added((cheap_part,), part) == (part,)
