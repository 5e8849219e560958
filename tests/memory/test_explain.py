from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.memory.naive_allocator import course
from tests.memory.program import (
    ALL_GATHER,
    FOREACH,
    MIB,
    NO_FRAMES,
    PARAMETERS,
    STATE,
    TORCH,
    Program,
    forward,
    training,
)
from tests.memory.test_allocator import SETTINGS, sequences

from whystall.diagnosis.catalogue import causes
from whystall.memory.allocator import Allocation, Completion, Free, simulate
from whystall.memory.allocator_settings import AllocatorSettings
from whystall.memory.explain import explain
from whystall.memory.lifetimes import allocated_course, lifetimes, reserved_course
from whystall.memory.read import read_snapshot
from whystall.memory.results import Category, DeviceMemory, MemoryReport
from whystall.memory.snapshot import Snapshot

EXPANDABLE = AllocatorSettings(expandable_segments=True)


def read(folder: Path, value: object) -> Snapshot:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(value))
    return read_snapshot(path)


def told(folder: Path, value: object) -> DeviceMemory:
    report = explain(read(folder, value))
    assert isinstance(report, MemoryReport)
    return report.devices[0]


def held(device: DeviceMemory) -> dict[Category, int]:
    return {one.category: one.bytes for one in device.peak.held}


# The truth is written beside the program: 4 MiB of parameters, 4 of gradients, 8 of state, 24 of activations.
@pytest.mark.parametrize("chosen", [AllocatorSettings(), EXPANDABLE])
def test_each_byte_at_the_peak_of_a_training_job_is_named(tmp_path: Path, chosen: AllocatorSettings) -> None:
    device = told(tmp_path, training(settings=chosen).snapshot())

    peak = device.peak
    assert peak.allocated_bytes == (4 + 8 + 24 + 2) * MIB  # at the first gradient: the others are not there yet
    assert held(device) == {
        Category.ACTIVATIONS: 24 * MIB,
        Category.OPTIMIZER_STATE: 8 * MIB,
        Category.PARAMETERS: 4 * MIB,
        Category.GRADIENTS: 2 * MIB,
    }
    assert (peak.phase, peak.step, peak.annotations) == ("backward", 2, ("ProfilerStep#1",))
    assert [(one.phase, one.allocated_bytes) for one in device.phases] == [
        ("set-up", 4 * MIB),
        ("forward", (4 + 8 + 24 + 1) * MIB),
        ("backward", 38 * MIB),
        ("optimizer", 20 * MIB),
    ]
    sites = {(one.category, one.site, one.function): one.bytes for one in peak.holders}
    assert sites[Category.ACTIVATIONS, "model.py:40", "forward"] == 12 * MIB
    assert sites[Category.PARAMETERS, "model.py:12", "__init__"] == 4 * MIB
    assert sites[Category.GRADIENTS, None, None] == 2 * MIB
    assert sum(one.bytes for one in peak.holders) == peak.allocated_bytes
    assert device.baseline_bytes == 0
    assert device.growth is None


def test_the_peak_inside_a_forward_pass_counts_what_is_there_for_a_moment(tmp_path: Path) -> None:
    program = Program()
    kept = program.alloc(8 * MIB, forward(1))
    moment = program.alloc(64 * MIB, forward(2))
    program.free(moment)
    after = program.alloc(MIB, forward(3))
    program.alloc(2 * MIB)
    for key in (kept, after):
        program.free(key, NO_FRAMES)

    device = told(tmp_path, program.snapshot())

    assert device.peak.phase == "forward"
    assert held(device) == {Category.TEMPORARIES: 64 * MIB, Category.ACTIVATIONS: 8 * MIB}


def test_buffers_of_collectives_are_told_by_their_frames(tmp_path: Path) -> None:
    program = training(2)
    program.alloc(100 * MIB, ALL_GATHER)

    assert held(told(tmp_path, program.snapshot()))[Category.COMMUNICATION] == 100 * MIB


def test_what_nothing_tells_is_called_unknown_with_its_line_or_label(tmp_path: Path) -> None:
    program = Program()
    program.alloc(3 * MIB, (("main", "/home/me/serve.py", 5),))
    program.alloc(2 * MIB, (("main", "/home/me/serve.py", 6),), user_metadata="kv \x1b[31mcache")

    device = told(tmp_path, program.snapshot())

    assert [(one.category, one.site, one.label) for one in device.peak.holders] == [
        (Category.UNKNOWN, "serve.py:5", None),
        (Category.UNKNOWN, "serve.py:6", "kv \x1b[31mcache"),
    ]


def test_a_label_that_is_put_on_an_allocation_later_is_its_own(tmp_path: Path) -> None:
    program = Program()
    gone = program.alloc(2 * MIB)
    address = program.events[-1]["addr"]
    program.free(gone)
    program._event("annotate", address, 0, NO_FRAMES, {"user_metadata": "nobody's"})
    program.alloc(2 * MIB)
    program._event("annotate", address, 0, NO_FRAMES, {"user_metadata": "kv cache"})
    program.alloc(3 * MIB)

    device = told(tmp_path, program.snapshot())

    assert {(one.label, one.bytes) for one in device.peak.holders} == {("kv cache", 2 * MIB), (None, 3 * MIB)}


@pytest.mark.parametrize("lost", [1, 5, 17, 40, 61])
@pytest.mark.parametrize("chosen", [AllocatorSettings(), EXPANDABLE])
def test_a_wrapped_record_tells_the_same_course_on_top_of_a_baseline(
    tmp_path: Path, lost: int, chosen: AllocatorSettings
) -> None:
    program = training(4, settings=chosen)
    snapshot = read(tmp_path, program.snapshot(lost))
    record = snapshot.devices[0]

    alive = lifetimes(record, chosen)

    rows = program.rows[lost:]
    # A free whose request was lost holds nothing: only the first event may differ from what the program held.
    assert allocated_course(alive, len(record.events)).tolist() == [allocated for allocated, _, _ in rows]
    reserved = reserved_course(record)
    assert reserved is not None
    assert [reserved.at(row) for row in range(len(rows))] == [level for _, _, level in rows]
    assert explain(snapshot).devices[0].baseline_bytes == program.rows[lost - 1][0]


def test_a_block_that_was_handed_out_whole_counts_as_large_as_it_is(tmp_path: Path) -> None:
    program = Program()
    program.free(program.alloc(30 * MIB))
    program.alloc(29 * MIB + 512)  # the rest, less than 1 MiB, is not split off

    device = told(tmp_path, program.snapshot())

    assert device.end_allocated_bytes == program.rows[-1][0] == 30 * MIB
    assert device.at_end is not None
    assert device.at_end.rounding_bytes == MIB - 512


def test_what_was_there_before_is_told_by_its_lines_where_the_blocks_have_them(tmp_path: Path) -> None:
    program = training(3)
    states = max(row for row, event in enumerate(program.events) if "_init_group" in str(event["frames"])) + 1

    device = told(tmp_path, program.snapshot(lost=states))

    assert device.unmatched_frees == 2  # the gradients of the first step
    assert device.unmatched_free_bytes == 4 * MIB
    assert held(device)[Category.OPTIMIZER_STATE] == 8 * MIB
    assert held(device)[Category.PARAMETERS] == 4 * MIB
    assert Category.BEFORE not in held(device)


def test_without_frames_it_says_so(tmp_path: Path) -> None:
    value = training().snapshot()
    for event in value["device_traces"][0]:
        event.pop("frames")
    for block in (block for segment in value["segments"] for block in segment["blocks"]):
        block["frames"] = []

    device = told(tmp_path, value)

    assert device.peak.allocated_bytes == 38 * MIB
    assert held(device) == {Category.UNKNOWN: 38 * MIB}
    assert any("no call stacks" in note for note in device.notes)


def test_without_events_it_tells_the_moment_of_the_snapshot(tmp_path: Path) -> None:
    program = training()

    device = told(tmp_path, {"segments": program.segments()})

    assert device.peak.event is None
    assert device.peak.allocated_bytes == program.rows[-1][0]
    assert any("no events were recorded" in note for note in device.notes)
    assert device.curve == ()


@pytest.mark.parametrize("leak", [512, 3 * MIB])
def test_growth_is_told_with_its_line(tmp_path: Path, leak: int) -> None:
    device = told(tmp_path, training(8, leak=leak).snapshot())

    assert device.growth is not None
    assert device.growth.bytes_per_step == leak
    assert [(one.site, one.function, one.bytes_per_step) for one in device.growth.sites] == [
        ("train.py:77", "remember", leak)
    ]


def pinned(leak: int) -> dict[str, Any]:
    """A job whose loader pins 3 MiB in each step, and keeps ``leak`` of it."""
    job, host = training(8), Program()
    loader = (("pin_memory", "/home/me/job/data.py", 21), ("main", "/home/me/job/train.py", 30))
    for span in (one for one in job.annotations if one["stage"] == "START"):
        host.time_us = span["time_us"]
        host.free(host.alloc(3 * MIB, loader))
        if leak:
            host.alloc(leak, (("keep", "/home/me/job/data.py", 34), *loader[1:]))
    return job.snapshot() | {"host_segments": host.segments(), "host_traces": [host.events]}


def test_pinned_host_memory_that_grows_is_a_finding_with_its_line(tmp_path: Path) -> None:
    device, host = explain(read(tmp_path, pinned(MIB))).devices
    steady = explain(read(tmp_path, pinned(0))).devices[1]

    assert device.findings == ()
    assert host.device == "pinned host memory"
    assert host.growth is not None
    assert host.growth.known_by == "ProfilerStep# of device 0"
    assert [(one.site, one.function, one.bytes_per_step) for one in host.growth.sites] == [("data.py:34", "keep", MIB)]
    (found,) = host.findings
    assert (found.id, found.saves_bytes) == ("memory.growth", 5 * MIB)
    assert "more pinned host memory allocated" in found.says
    assert found.remedy == "let go of what is kept at data.py:34: tensors in a list"  # no loss is pinned
    assert (steady.growth, steady.findings) == (None, ())


def test_growth_needs_steps_and_every_one_of_them(tmp_path: Path) -> None:
    steady = told(tmp_path, training(8).snapshot())
    few = told(tmp_path, training(4, leak=MIB).snapshot())
    bare = Program()
    for _ in range(30):
        bare.alloc(MIB)
    unmarked = told(tmp_path, bare.snapshot())

    assert (steady.growth, few.growth, unmarked.growth) == (None, None, None)
    assert "no more allocated" in str(steady.no_growth_because)
    assert "too few" in str(few.no_growth_because)
    assert "no steps are marked" in str(unmarked.no_growth_because)


def test_steps_are_evident_from_passes_where_none_are_marked(tmp_path: Path) -> None:
    device = told(tmp_path, training(8, leak=MIB).snapshot() | {"external_annotations": []})

    assert device.growth is not None
    assert device.growth.known_by == "forward passes that follow a backward pass"
    assert device.growth.bytes_per_step == MIB


def test_what_is_reserved_divides_without_a_rest(tmp_path: Path) -> None:
    program = Program()
    kept = program.alloc(3 * MIB)  # in a segment of 20 MiB, of which the rest is free
    waiting = program.alloc(18 * MIB)
    program.free(program.alloc(30 * MIB))  # a segment that is free as a whole
    program.free(waiting, pending=True)
    program.alloc(1000)
    assert kept

    end = told(tmp_path, program.snapshot()).at_end

    assert end is not None
    assert end.reserved_bytes == (20 + 18 + 30 + 2) * MIB
    assert (end.allocated_bytes, end.awaiting_bytes) == (3 * MIB + 1024, 18 * MIB)
    assert (end.fragmented_bytes, end.cached_bytes) == (17 * MIB + 2 * MIB - 1024, 30 * MIB)
    assert end.rounding_bytes == 24
    assert end.largest_free_bytes == 30 * MIB


def test_a_retry_is_told_from_empty_cache(tmp_path: Path) -> None:
    tight = Program(AllocatorSettings(device_bytes=100 * MIB))
    tight.free(tight.alloc(60 * MIB))
    tight.alloc(80 * MIB)
    emptied = Program()
    emptied.free(emptied.alloc(60 * MIB))
    emptied._device({emptied.naive.segments[0].pieces[0].at: 60 * MIB}, (0, 0, 60 * MIB))
    emptied.events.append({"action": "segment_free", "addr": 1 << 40, "size": 60 * MIB, "stream": 0, "frames": []})
    emptied.naive.segments = []

    pressed, at_will = told(tmp_path, tight.snapshot()), told(tmp_path, emptied.snapshot())

    assert (pressed.given_back, pressed.given_back_under_pressure, pressed.given_back_bytes) == (1, 1, 60 * MIB)
    assert (at_will.given_back, at_will.given_back_under_pressure) == (1, 0)


def test_an_allocation_that_found_no_room_is_told_with_its_line(tmp_path: Path) -> None:
    program = training(2)
    program.out_of_memory(900 * MIB, 5 * MIB, forward(55))

    (out,) = told(tmp_path, program.snapshot()).out_of_memory

    assert (out.asked_bytes, out.device_free_bytes, out.site) == (900 * MIB, 5 * MIB, "model.py:55")
    assert (out.allocated_bytes, out.reserved_bytes) == program.rows[-1][::2]


# Of a device of 128 MiB with 5 MiB free and the program's segments reserved, all else is outside.
@pytest.mark.parametrize(
    ("whole", "free", "why"),
    [
        (128 * MIB, 5 * MIB, None),
        (None, 5 * MIB, "--device-memory"),
        (128 * MIB, 0, "does not say what was free"),
        (16 * MIB, 5 * MIB, "than the device is said to have"),
    ],
)
def test_what_lies_outside_torch_is_what_the_device_has_given_to_others(
    tmp_path: Path, whole: int | None, free: int, why: str | None
) -> None:
    program = training(2)
    program.out_of_memory(900 * MIB, free, forward(55))
    reserved = sum(segment["total_size"] for segment in program.segments())

    (out,) = explain(read(tmp_path, program.snapshot()), device_bytes=whole).devices[0].out_of_memory

    if why is None:
        assert (out.outside_bytes, out.outside_unknown_because) == (128 * MIB - 5 * MIB - reserved, None)
    else:
        assert out.outside_bytes is None
        assert why in str(out.outside_unknown_because)


def test_an_address_that_is_handed_out_again_belongs_to_the_later_allocation(tmp_path: Path) -> None:
    def event(action: str, size: int) -> dict[str, Any]:
        return {"action": action, "addr": 4096, "size": size, "stream": 0, "frames": []}

    events = [event("alloc", 1024), event("free_requested", 1024), event("free_completed", 1024), event("alloc", 2048),
              event("alloc", 512)]  # fmt: skip

    snapshot = read(tmp_path, {"segments": [], "device_traces": [events]})
    alive = lifetimes(snapshot.devices[0], AllocatorSettings())

    assert allocated_course(alive, 5).tolist() == [1024, 0, 0, 2048, 512]
    assert alive.lost == 1


def test_events_that_segments_do_not_hold_give_no_reserved(tmp_path: Path) -> None:
    value = training().snapshot()
    value["segments"] = value["segments"][:1]

    device = told(tmp_path, value)

    assert device.peak.reserved_bytes is None
    assert any("more than its segments hold" in note for note in device.notes)


def test_the_curve_is_bounded_and_keeps_the_peak(tmp_path: Path) -> None:
    device = told(tmp_path, training(60).snapshot())

    assert device.events > 1000
    assert len(device.curve) == 400
    assert max(bytes_ for _, bytes_ in device.curve) == device.peak.allocated_bytes


@settings(max_examples=60)
@given(sequences(), SETTINGS)
def test_a_recording_is_followed_to_the_byte(
    tmp_path_factory: Any, events: list[Allocation | Free | Completion], chosen: AllocatorSettings
) -> None:
    """A program recorded under the naive rules: its snapshot and the simulation of its requests tell what it held."""
    program = Program(chosen)
    keys: dict[object, int] = {}
    for event in events:
        if isinstance(event, Allocation):
            if event.size_bytes == 0 or event.pool or event.stream:
                continue
            try:
                keys[event.key] = program.alloc(event.size_bytes)
            except MemoryError:
                break
        elif isinstance(event, Free) and event.key in keys:
            program.free(keys[event.key], pending=event.pending)
        elif isinstance(event, Completion) and event.key in keys:
            program.complete(keys[event.key])
    requests = [event for event in program.asked if not isinstance(event, Allocation) or event.key in program.pieces]
    record = read(tmp_path_factory.mktemp("recorded"), program.snapshot()).devices

    simulated = simulate(requests, chosen)

    rows, _, _ = course(requests, chosen)
    assert simulated.reserved_bytes.tolist() == [reserved for _, _, reserved in rows]
    reserved = reserved_course(record[0]) if record else None
    if reserved is not None:  # the end is known
        assert [reserved.at(row) for row in range(len(program.rows))] == [level for _, _, level in program.rows]


GIB = 1024 * MIB


def growing_sizes(chosen: AllocatorSettings) -> Program:
    """Batches that grow: no segment of an earlier one serves the next."""
    program = Program(chosen)
    for size in range(300, 700, 50):
        program.free(program.alloc(size * MIB, forward(1)))
    return program


def test_fragmentation_is_told_with_what_expandable_segments_save(tmp_path: Path) -> None:
    plain, expandable = growing_sizes(AllocatorSettings()), growing_sizes(EXPANDABLE)

    (found,) = told(tmp_path, plain.snapshot()).findings

    assert found.id == "memory.fragmentation"
    peaks = [max(reserved for _, _, reserved in program.rows) for program in (plain, expandable)]
    assert found.saves_bytes == peaks[0] - peaks[1]
    assert told(tmp_path, expandable.snapshot()).findings == ()


def test_fragmentation_is_not_told_where_the_simulation_does_not_retell_it(tmp_path: Path) -> None:
    value = growing_sizes(AllocatorSettings()).snapshot()
    value["segments"][0]["total_size"] += 900 * MIB  # more was reserved than these requests explain

    assert told(tmp_path, value).findings == ()


def activations(share: float) -> Program:
    program = Program()
    for _ in range(8):
        program.alloc(int(GIB * (1 - share) / 8), PARAMETERS)
    kept = [program.alloc(int(GIB * share / 8) + MIB, forward(40 + at % 2)) for at in range(8)]
    program.alloc(MIB)
    for key in kept:
        program.free(key, NO_FRAMES)
    return program


def test_activations_are_told_where_they_are_most_of_the_peak(tmp_path: Path) -> None:
    (found,) = told(tmp_path, activations(0.6).snapshot()).findings
    few = told(tmp_path, activations(0.3).snapshot()).findings

    assert found.id == "memory.activation-bound"
    assert found.saves_bytes == sum(-(-(int(GIB * 0.6 / 8) + MIB) // 512) * 512 for _ in range(8))
    assert "model.py:40, model.py:41" in found.remedy
    assert found.known_by.startswith("622 MiB of 1,039 MiB at the peak, 311 MiB of them from ")  # 8 x 52: in 2 MiB
    assert few == ()


def test_an_optimizers_state_that_is_most_of_the_peak_is_not_said_to_be_activations(tmp_path: Path) -> None:
    program = Program()
    state = [program.alloc(GIB // 8, STATE) for _ in range(8)]
    kept = [program.alloc(GIB // 16, forward(40 + at % 2)) for at in range(8)]
    program.alloc(MIB)
    for key in kept:
        program.free(key, NO_FRAMES)
    program.free(program.alloc(MIB, FOREACH))
    device = told(tmp_path, program.snapshot())

    assert state
    assert held(device)[Category.OPTIMIZER_STATE] == GIB
    assert device.findings == ()


@pytest.mark.parametrize("change", ["later", "renamed", "segments reversed"])
def test_times_names_and_order_do_not_change_what_activations_cost(tmp_path: Path, change: str) -> None:
    plain = activations(0.6).snapshot()
    value = activations(0.6).snapshot()
    if change == "later":
        for event in value["device_traces"][0]:
            event["time_us"] += 3_600_000_000
    elif change == "renamed":
        value = pickle.loads(pickle.dumps(value).replace(b"/home/me/job/model.py", b"/home/me/job/other.py"))  # noqa: S301 - our own
    else:
        value["segments"].reverse()

    (before,), (after,) = told(tmp_path, plain).findings, told(tmp_path, value).findings

    assert (after.id, after.saves_bytes) == (before.id, before.saves_bytes)
    assert after.known_by == before.known_by.replace("model.py", "other.py" if change == "renamed" else "model.py")


def test_growth_and_retries_are_findings_too(tmp_path: Path) -> None:
    tight = Program(AllocatorSettings(device_bytes=100 * MIB))
    tight.free(tight.alloc(60 * MIB))
    tight.alloc(80 * MIB)

    grows, retries = told(tmp_path, training(8, leak=MIB).snapshot()), told(tmp_path, tight.snapshot())

    assert [(one.id, one.saves_bytes) for one in grows.findings] == [("memory.growth", 5 * MIB)]
    assert [one.id for one in retries.findings] == ["memory.allocator-retry"]
    assert {one.id for one in (*grows.findings, *retries.findings)} <= causes().keys()


def one_after_another(device_bytes: int, *sizes_mib: int) -> Program:
    program = Program(AllocatorSettings(device_bytes=device_bytes))
    for size in sizes_mib:
        program.free(program.alloc(size * MIB))
    return program


def test_a_retry_tells_how_much_less_reserved_would_have_been_enough(tmp_path: Path) -> None:
    (found,) = told(tmp_path, one_after_another(100 * MIB, 60, 80, 90).snapshot()).findings

    assert found.enough_bytes == 90 * MIB
    assert "90 MiB" in found.known_by
    assert (found.saves_bytes, found.saves_unknown_because) == (None, "a retry costs time, not memory")

    def retries(device_bytes: int) -> int:
        device = told(tmp_path, one_after_another(device_bytes, 80, 90).snapshot())
        return device.given_back_under_pressure

    assert (retries(100 * MIB), retries(100 * MIB + 90 * MIB)) == (1, 0)  # by the naive rules: it is enough


def test_a_retry_that_was_not_served_tells_no_bytes(tmp_path: Path) -> None:
    program = Program(AllocatorSettings(device_bytes=100 * MIB))
    program.free(program.alloc(60 * MIB))
    with pytest.raises(MemoryError):
        program.alloc(200 * MIB)
    program.out_of_memory(200 * MIB, 100 * MIB, forward(1))

    (found,) = told(tmp_path, program.snapshot()).findings

    assert (found.id, found.enough_bytes) == ("memory.allocator-retry", None)
    assert "enough" not in found.known_by


def test_a_healthy_job_has_no_findings(tmp_path: Path) -> None:
    assert told(tmp_path, training(8).snapshot()).findings == ()


def test_marks_are_of_torchs_own_files_alone(tmp_path: Path) -> None:
    program = Program()
    program.alloc(MIB, (("_init_group", "/home/me/torch_optim/adamw.py", 3),))
    program.alloc(MIB, (("step", f"{TORCH}/optim/sgd.py", 3), ("main", "/home/me/a.py", 1)))

    device = told(tmp_path, program.snapshot())

    assert held(device) == {Category.UNKNOWN: MIB, Category.OPTIMIZER_STATE: MIB}
