"""Steps: from the profiler's marks, optimizer steps, or what repeats; and which step launched an event."""

from __future__ import annotations

import pytest

from whystall.testing import TraceBuilder, trace

Found = list[tuple[str, int, int]]


def steps_of(built: TraceBuilder) -> tuple[Found, str | None]:
    loaded = built.operator("origin", at=0, lasts=1).load()
    origin = loaded.operators["ts_ns"][0]
    rows = loaded.steps.select("name", "ts_ns", "duration_ns").rows()
    return [(name, start - origin, duration) for name, start, duration in rows], loaded.steps_from


def test_profiler_steps() -> None:
    found, source = steps_of(trace().step(8, at=2000, lasts=900).step(7, at=1000, lasts=900))
    assert found == [("ProfilerStep#7", 1000, 900), ("ProfilerStep#8", 2000, 900)]
    assert source == "ProfilerStep annotations"


@pytest.mark.parametrize(("whole", "names"), [(1, ["ProfilerStep#1"]), (0, None), (-1, None), ("x", None)])
def test_a_step_that_ran_when_the_job_ended_is_none(whole: int | str, names: list[str] | None) -> None:
    built = trace(whystall_whole_steps=whole).step(1, at=1000, lasts=900).step(2, at=2000, lasts=90_000)
    found, _ = steps_of(built)
    assert [name for name, _, _ in found] == (names or ["ProfilerStep#1", "ProfilerStep#2"])


@pytest.mark.parametrize(("lasts", "works", "count"), [(60, 1, 3), (60, 400, 4), (900, 1, 4)])
def test_a_mark_that_the_profilers_stop_cut_is_no_step(lasts: int, works: int, count: int) -> None:
    built = trace()
    for number in range(3):
        built.step(number, at=1000 * (number + 1), lasts=900)
        built.operator("aten::mm", at=1000 * (number + 1) + 10, lasts=800)
    built.step(3, at=4000, lasts=lasts).operator("aten::empty", at=4001, lasts=works)
    assert len(steps_of(built)[0]) == count


def test_a_step_that_is_there_twice_counts_once() -> None:
    built = trace().step(1, at=1000, lasts=900).step(2, at=2000, lasts=900).step(1, at=1000, lasts=900)
    built.event("gpu_user_annotation", "ProfilerStep#1", at=1500, lasts=900, thread=7)
    assert [name for name, _, _ in steps_of(built)[0]] == ["ProfilerStep#1", "ProfilerStep#2"]


def test_marks_of_2021_stand_among_the_operators() -> None:
    built = trace()
    for number in (1, 2):
        built.event("Operator", f"ProfilerStep#{number}", at=number * 1000, lasts=900, note=f"step {number}")
        built.event("Operator", "aten::mm", at=number * 1000 + 10, lasts=5, note=f"mm {number}")
    built.event("user_annotation", "mine", at=1500, lasts=5, note="mine")
    loaded = built.load()
    assert loaded.steps["name"].to_list() == ["ProfilerStep#1", "ProfilerStep#2"]
    assert loaded.operators["name"].to_list() == ["aten::mm", "aten::mm"]
    # arguments without a column moved along
    notes = {
        (getattr(loaded, row["table"])["name"][row["row"]], row["value"])
        for row in loaded.extra_arguments.filter(key="note").iter_rows(named=True)
    }
    assert notes == {
        ("ProfilerStep#1", "step 1"), ("ProfilerStep#2", "step 2"),
        ("aten::mm", "mm 1"), ("aten::mm", "mm 2"), ("mine", "mine"),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["ProfilerStep*", "ProfilerStep", "MyProfilerStep#1", "ProfilerStep#1 and more"])
def test_what_only_looks_like_a_step(name: str) -> None:
    assert steps_of(trace().annotation(name, at=0, lasts=10)) == ([], None)


def optimizer(built: TraceBuilder, name: str, *starts: int, lasts: int = 100) -> TraceBuilder:
    for at in starts:
        built.annotation(f"Optimizer.step#{name}.step", at=at, lasts=lasts)
    return built


def test_optimizer_steps_end_steps() -> None:
    found, source = steps_of(optimizer(trace(), "Adam", 1000, 2000, 3500))
    assert found == [("step 1", 1100, 1000), ("step 2", 2100, 1500)]
    assert source is not None
    assert "optimizer" in source


def test_of_several_optimizers_one_counts() -> None:
    built = optimizer(optimizer(trace(), "Adam", 1000, 2000, 3000), "SGD", 1200, 2200, 3200)
    assert steps_of(built)[0] == [("step 1", 1300, 1000), ("step 2", 2300, 1000)]


def test_an_optimizer_that_steps_less_often_counts() -> None:
    built = optimizer(optimizer(trace(), "Discriminator", 1000, 1500, 2000, 2500), "Generator", 1600, 2600)
    assert steps_of(built)[0] == [("step 1", 1700, 1000)]


def backward(built: TraceBuilder, *starts: int) -> TraceBuilder:
    for at in starts:
        built.operator("autograd::engine::evaluate_function: AddmmBackward0", at=at, lasts=50)
    return built


def test_optimizers_that_step_one_after_the_other_end_one_step() -> None:
    starts = [at + place * 200 for at in (10_000, 20_000, 30_000) for place in range(6)]
    built = backward(optimizer(trace(), "Adam", *starts), 9_000, 19_000, 29_000)
    assert steps_of(built)[0] == [("step 1", 11_100, 10_000), ("step 2", 21_100, 10_000)]


def test_a_long_pause_between_steps_leaves_them_steps() -> None:
    """An evaluation takes a hundred times as long as a step."""
    starts = [1_000, 2_000, 3_000, 300_000, 301_000]
    built = backward(optimizer(trace(), "Adam", *starts), *(at - 200 for at in starts))
    assert [lasts for _, _, lasts in steps_of(built)[0]] == [1_000, 1_000, 297_000, 1_000]


def test_optimizers_between_which_a_network_runs_end_steps_of_their_own() -> None:
    starts = [1_000, 4_000, 10_000, 13_000]
    built = backward(optimizer(trace(), "Adam", *starts), *(at - 200 for at in starts))
    assert len(steps_of(built)[0]) == 3


@pytest.mark.parametrize(("calls", "count"), [((5, 3), 3), ((4, 4), 7), ((5, 3, 1), 3)])
def test_networks_that_take_turns_make_one_step(calls: tuple[int, ...], count: int) -> None:
    """A critic, an actor and a temperature learn by one class of optimizer each; their backward passes differ."""
    built = trace()
    for number in range(4 * len(calls)):
        at = 1_000 * number
        for call in range(calls[number % len(calls)]):
            backward(built, at + 100 + 60 * call)
        optimizer(built, "Adam", at + 800)
    found = steps_of(built)[0]
    assert len(found) == count
    assert {lasts for _, _, lasts in found} == {1_000 * (len(calls) if count == 3 else 1)}


def test_an_optimizer_that_stepped_once_does_not() -> None:
    built = optimizer(optimizer(trace(), "Adam", 1000, 2000), "Once", 1600)
    assert steps_of(built)[0] == [("step 1", 1100, 1000)]


def test_optimizer_steps_inside_each_other_make_no_negative_step() -> None:
    built = optimizer(trace(), "Adam", 1000, lasts=1000)
    optimizer(built, "Adam", 1200, lasts=100)
    assert steps_of(built)[0] == [("step 1", 1300, 700)]


def test_a_repeated_annotation() -> None:
    built = trace()
    for i in range(4):
        built.annotation(f"## batch {i} ##", at=1000 * i, lasts=900).annotation("forward", at=1000 * i + 10, lasts=300)
    found, source = steps_of(built)
    assert [(start, duration) for _, start, duration in found] == [(0, 1000), (1000, 1000), (2000, 1000), (3000, 900)]
    assert found[1][0] == "## batch 1 ## (2)"
    assert source is not None
    assert "repeated" in source


@pytest.mark.parametrize("name", ["_compile.compile_inner (dynamo_timed)", "entire_frame_compile (dynamo_timed)"])
def test_compilations_that_repeat_are_no_steps(name: str) -> None:
    built = trace()
    for i in range(4):
        built.annotation(name, at=1000 * i, lasts=900)
    assert steps_of(built)[0] == []


def test_annotations_that_overlap_or_cover_little_are_no_steps() -> None:
    overlapping, little, few = trace(), trace(), trace()
    for i in range(4):
        overlapping.annotation("a", at=1000 * i, lasts=1500)
        little.annotation("a", at=1000 * i, lasts=100)
    few.annotation("a", at=0, lasts=900).annotation("a", at=1000, lasts=900)
    for built in (overlapping, little, few):
        assert steps_of(built) == ([], None)


def test_layers_of_one_pass_are_no_steps() -> None:
    built = trace()
    for i in range(12):
        built.annotation(f"encoder.layer.{i}", at=1000 * i, lasts=950)
    assert steps_of(built) == ([], None)


def test_parts_of_one_call_are_no_steps() -> None:
    built = trace().annotation("infer 0", at=0, lasts=26).annotation("infer 1", at=30, lasts=1_960_000)
    assert steps_of(built.annotation("infer 2", at=1_960_100, lasts=222)) == ([], None)


def test_annotations_beside_most_of_the_work_are_no_steps() -> None:
    built = trace()
    for i in range(4):
        built.annotation("prepare", at=100 * i, lasts=95)
        built.launch("k", at=100 * i + 10, runs_at=100 * i + 20, lasts=10)
    built.launch("k", at=1000, runs_at=1010, lasts=5000)
    assert steps_of(built) == ([], None)


def test_no_annotations() -> None:
    assert steps_of(trace()) == ([], None)


def test_an_event_belongs_to_the_step_that_launched_it() -> None:
    loaded = (
        trace()
        .step(1, at=1000, lasts=1000)
        .step(2, at=2000, lasts=1000)
        .launch("before", at=0, runs_at=10_000, lasts=10)
        .launch("one", at=1900, runs_at=11_000, lasts=10)
        .launch("two", at=2000, runs_at=12_000, lasts=10)
        .launch("after", at=3000, runs_at=13_000, lasts=10)
        .kernel("unlinked", at=14_000, lasts=10)
        .load()
    )
    assert loaded.device_events["step"].to_list() == [None, 0, 1, None, None]


def served(*marks: str, lasts: int = 300) -> TraceBuilder:
    built = trace()
    for number, mark in enumerate(marks):
        built.annotation(mark, at=1000 * (number + 1), lasts=lasts)
        built.operator("aten::mm", at=1000 * (number + 1) + 10, lasts=20)
    return built


def vllm(prefills: int, decodes: int) -> str:
    return f"execute_context_{prefills}({prefills * 77})_generation_{decodes}({decodes})"


def test_an_engines_steps_are_told_by_kind_and_last_until_the_next() -> None:
    found, source = steps_of(served(vllm(2, 0), vllm(1, 3), vllm(0, 4), vllm(0, 4), vllm(0, 4)))
    assert found == [
        ("prefill 1", 1000, 1000),
        ("mixed 2", 2000, 1000),
        ("decode 3", 3000, 1000),
        ("decode 4", 4000, 1000),
        ("decode 5", 5000, 300),
    ]
    assert source == "an inference engine's steps (3 decode, 1 prefill, 1 mixed)"


def test_a_last_mark_that_was_cut_is_no_step() -> None:
    built = served(*[vllm(0, 4)] * 5).annotation(vllm(0, 4), at=6000, lasts=150)
    assert len(steps_of(built)[0]) == 5


def test_steps_without_work_end_the_one_before_and_are_none() -> None:
    found, _ = steps_of(served(vllm(0, 4), vllm(0, 0), vllm(0, 4), vllm(0, 4), vllm(0, 0)))
    assert [start for _, start, _ in found] == [1000, 3000, 4000]


def test_what_an_engine_waited_for_requests_is_part_of_no_step() -> None:
    built = trace()
    for number in range(12):
        built.annotation(vllm(0, 4), at=1000 * (number + 1) + (50_000 if number > 5 else 0), lasts=900)
        built.operator("aten::mm", at=1000 * (number + 1) + (50_000 if number > 5 else 0) + 10, lasts=20)
    lasts = [duration for _, _, duration in steps_of(built)[0]]
    assert lasts == [1000] * 11 + [900]


def test_drafts_and_their_verification_are_one_step() -> None:
    marks = ["step[TARGET_VERIFY bs=4]", "step[DRAFT_EXTEND_V2 bs=4]", "step[DECODE bs=4]", "step[DECODE bs=4]"] * 5
    found, source = steps_of(served(*marks))
    assert [(start, duration) for _, start, duration in found] == [
        (1000 + 4000 * n, 4000 if n < 4 else 300) for n in range(5)
    ]
    assert source == "an inference engine's steps (5 decode)"


def test_marks_that_overlap_by_rounding_are_two_steps() -> None:
    built = trace()
    for number in range(5):
        built.annotation(vllm(0, 4), at=10_000 * (number + 1), lasts=10_001)
        built.operator("aten::mm", at=10_000 * (number + 1) + 10, lasts=20)
    assert len(steps_of(built)[0]) == 5


def test_steps_of_an_engine_hold_most_of_the_work() -> None:
    built = served(*[vllm(0, 4)] * 8)
    built.launch("gemm", at=500, runs_at=600, lasts=90_000)
    for number in range(8):
        built.launch("gemm", at=1000 * (number + 1) + 10, runs_at=100_000 + 1000 * number, lasts=500)
    assert built.load().steps.is_empty()


@pytest.mark.parametrize(
    ("marks", "kinds"),
    [
        (
            ["step[EXTEND bs=1 toks=1025]", "step[DECODE bs=2]", "step[IDLE]", "step[MIXED bs=2 toks=9]", "step[IDLE]"],
            "prefill decode mixed",
        ),
        ([f"[Executor] _forward_step {n}: {n} ctx reqs, 2 gen reqs" for n in range(3)], "decode mixed mixed"),
        (["execute_9_context_1(sq9sk0sqsq81sqsk0)_generation_0(sq0sk0sqsq0sqsk0)"] * 3, "prefill prefill prefill"),
        (
            ["decode[bs=4 tok=4 d=1]", "prefill[bs=1 tok=64 ctx=0]", "decode[bs=5 tok=5 d=1]"],
            "decode prefill decode",
        ),
    ],
)
def test_the_marks_of_engines(marks: list[str], kinds: str) -> None:
    found, _ = steps_of(served(*marks))
    assert [name.split()[0] for name, _, _ in found] == kinds.split()


def test_engine_steps_in_each_other_and_on_other_threads_count_once() -> None:
    built = trace()
    for number in range(1, 6):
        built.annotation(vllm(0, 4), at=100_000 * number, lasts=30_000)
        built.annotation("step[DECODE bs=4]", at=100_000 * number + 5_000, lasts=10_000)
        built.operator("aten::mm", at=100_000 * number + 6_000, lasts=2_000)
        for part in range(2):  # more marks than on the thread that works
            built.annotation(vllm(0, 1), at=100_000 * number + 20_000 * part, lasts=100, thread=99)
    assert [start for _, start, _ in steps_of(built)[0]] == [100_000, 200_000, 300_000, 400_000, 500_000]


def test_marks_that_tell_of_too_few_steps_are_none() -> None:
    assert steps_of(served(*[vllm(0, 4)] * 2)) == ([], None)


def test_the_profilers_own_marks_come_before_an_engines() -> None:
    built = served(*[vllm(0, 4)] * 4).step(1, at=900, lasts=5000)
    assert [name for name, _, _ in steps_of(built)[0]] == ["ProfilerStep#1"]


def modules(*names: str, lasts: int = 900, apart: int = 1_000, inner: bool = True) -> TraceBuilder:
    """Calls of modules one after the other, each with a module inside and an operator."""
    built = trace()
    whole = apart * len(names)
    built.python("serve.py(9): main", at=0, lasts=whole + 10)
    for place, name in enumerate(names):
        at = 10 + place * apart
        built.python(f"nn.Module: {name}", at=at, lasts=lasts)
        if inner:
            built.python("nn.Module: Linear_0", at=at + 10, lasts=lasts - 20)
        built.operator("aten::mm", at=at + 20, lasts=lasts - 40)
    return built


def test_calls_of_a_model_that_repeat_are_steps() -> None:
    found, source = steps_of(modules("UNet_0", "UNet_0", "UNet_0", "UNet_0"))
    assert [name for name, _, _ in found] == [f"UNet_0 ({number})" for number in (1, 2, 3, 4)]
    assert [lasts for _, _, lasts in found] == [1_000, 1_000, 1_000, 900]
    assert source == "repeated calls of a module (no ProfilerStep annotations, no optimizer steps)"


@pytest.mark.parametrize(
    "built",
    [
        pytest.param(modules("UNet_0", "UNet_0"), id="twice"),
        pytest.param(modules("Block_0", "Block_1", "Block_2", "Block_0", "Block_1", "Block_2"), id="layers"),
        pytest.param(modules("UNet_0", "UNet_0", "UNet_0", "UNet_0", lasts=300), id="a third of the loop"),
        pytest.param(modules("UNet_0", "UNet_0", "UNet_0").operator("aten::mm", at=3_100, lasts=9_000), id="elsewhere"),
    ],
)
def test_other_calls_of_modules_are_no_steps(built: TraceBuilder) -> None:
    assert steps_of(built) == ([], None)


@pytest.mark.parametrize(
    ("lasts", "count"),
    [
        ((900, 100, 104, 98, 101), 5),  # it compiles and allocates; the others are alike
        ((100, 104, 900, 98, 101), 0),  # one within is no first call
        ((900, 100, 104), 0),  # two others are too few to tell
    ],
)
def test_a_first_call_may_take_many_times_as_long(lasts: tuple[int, ...], count: int) -> None:
    built, at = trace(), 1000
    for length in lasts:
        built.annotation("forward", at=at, lasts=length).operator("aten::mm", at=at, lasts=length)
        at += length + 10
    assert len(steps_of(built)[0]) == count
