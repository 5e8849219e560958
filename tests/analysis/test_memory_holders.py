"""Who holds memory at the peak of a trace, on jobs whose allocations are known by construction."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whystall.analysis.memory_results import MemoryPeak
from whystall.analysis.trace_analysis import analyze_trace
from whystall.testing import TraceBuilder, trace
from whystall.testing.builder import BACKWARD_THREAD, MAIN_THREAD

MIB = 1 << 20
LAYERS = 3


class Recorded:
    """A training job, written down operator by operator, whose allocator's events are kept."""

    def __init__(self, *, before: int = 10, at: int = 0, file: str = "model.py", frames: bool = True) -> None:
        self.built: TraceBuilder = trace()
        self.at, self.file, self.frames = at, file, frames
        self.total, self.address = before * MIB, 0
        self.sizes: dict[int, int] = {}

    def alloc(self, size: int, thread: int = MAIN_THREAD) -> int:
        """Allocates so many MiB now."""
        self.address += 4096
        self.sizes[self.address] = size * MIB
        self._event(self.address, size * MIB, thread)
        return self.address

    def free(self, address: int, thread: int = MAIN_THREAD) -> None:
        """Gives an address back now."""
        self._event(address, -self.sizes.pop(address), thread)

    def _event(self, address: int, size: int, thread: int) -> None:
        self.total += size
        self.at += 10
        self.built.memory(
            at=self.at, size=size, allocated=self.total, reserved=512 * MIB, address=address, thread=thread
        )
        self.at += 10

    def operator(self, name: str, *sizes: int, thread: int = MAIN_THREAD, inner: str = "aten::empty") -> list[int]:
        """An operator around another that allocates so many MiB."""
        begin = self.at
        self.at += 100
        made = [self.alloc(size, thread) for size in sizes]
        self.built.operator(inner, at=begin + 50, lasts=self.at - begin, thread=thread)
        self.at = self.at + 100
        self.built.operator(name, at=begin, lasts=self.at - begin, thread=thread)
        self.at += 10
        return made

    def python(self, name: str, begin: int) -> None:
        """A Python frame from an instant until now."""
        if self.frames:
            self.built.python(name, at=begin - 5, lasts=self.at - begin + 10)

    def layer(self, number: int, size: int) -> int:
        """A layer's forward pass: what it keeps, and what it needs for a moment."""
        begin = self.at = self.at + 20
        kept, moment = self.operator("aten::linear", size, 1)
        self.free(moment)
        self.python(f"{self.file}(10): forward", begin)
        self.at += 20
        self.python(f"nn.Module: Block_{number}", begin - 10)
        return kept

    def step(self, number: int, size: int, *, trains: bool = True) -> None:
        """A training step, or a step that keeps nothing for a backward pass."""
        begin = self.at = self.at + 100
        kept = [self.layer(layer, size) for layer in range(LAYERS)]
        self.python("nn.Module: Net_0", begin)
        gradients = []
        for address in reversed(kept):
            if not trains:
                self.free(address)
                continue
            started = self.at
            gradients += self.operator("aten::mm", 2, thread=BACKWARD_THREAD)
            self.free(address, BACKWARD_THREAD)
            self.at += 10
            self.built.operator("autograd::engine::evaluate_function: AddmmBackward0", at=started - 5,
                                lasts=self.at - started, thread=BACKWARD_THREAD)  # fmt: skip
        if trains:
            started = self.at = self.at + 50
            state = self.operator("aten::_foreach_addcdiv_", 1)
            if number:
                self.free(state[0])
            self.built.annotation("Optimizer.step#AdamW.step", at=started - 5, lasts=self.at - started + 10)
            self.at += 50
            for address in gradients:
                self.free(address)
        self.python("train.py(5): main", begin - 50)
        self.at += 100
        self.built.step(number, at=begin - 60, lasts=self.at - begin + 60)


def job(steps: int = 3, size: int = 8, *, trains: bool = True, **more: Any) -> Recorded:
    recorded = Recorded(**more)
    for number in range(steps):
        recorded.step(number, size, trains=trains)
    return recorded


def peak_of(recorded: Recorded) -> MemoryPeak:
    (found,) = analyze_trace(recorded.built.load()).memory
    return found


def kinds(found: MemoryPeak) -> dict[str, int]:
    return {one.kind: one.bytes for one in found.held}


def test_what_forward_passes_keep_is_told_by_module_and_function() -> None:
    found = peak_of(job())

    # Before the record 10 MiB, 1 of the optimizer's state since the first step, 8 kept by each of three layers, and the
    # first gradient of 2, made before the last layer's 8 are given back.
    assert found.peak_allocated_bytes == (10 + 1 + 3 * 8 + 2) * MIB
    assert kinds(found) == {
        "activations": 24 * MIB, "allocated before the record": 10 * MIB, "gradients": 2 * MIB, "optimizer state": MIB
    }  # fmt: skip
    first = found.holders[0]
    assert (first.kind, first.bytes, first.count) == ("activations", 24 * MIB, 3)
    assert (first.module, first.function, first.operator) == ("Net/Block", "model.py(10): forward", "aten::linear")
    assert found.holders_unknown_because is None


def test_gradients_are_what_backward_passes_leave_to_the_optimizer() -> None:
    found = peak_of(job(size=1))

    # Three layers keep 1 MiB each and leave 2 MiB of gradients each: the peak is at the end of the backward pass.
    assert found.peak_allocated_bytes == (10 + 1 + 3 * 2 + 1) * MIB
    assert kinds(found)["gradients"] == 6 * MIB
    (gradient,) = [one for one in found.holders if one.kind == "gradients"]
    assert gradient.operator == "aten::mm"


def test_without_a_backward_pass_nothing_is_an_activation() -> None:
    assert "activations" not in kinds(peak_of(job(trains=False)))


def test_without_frames_the_operator_is_told() -> None:
    found = peak_of(job(frames=False))

    assert kinds(found)["activations"] == 24 * MIB
    assert [(one.module, one.function, one.operator) for one in found.holders if one.kind == "activations"] == [
        (None, None, "aten::linear")
    ]


def test_where_events_are_missing_nobody_is_named() -> None:
    again = trace().operator("aten::mm", at=0, lasts=100)
    for at in range(1, 9):
        again.memory(at=at, size=MIB, allocated=at * MIB, reserved=1 << 30)
    found = analyze_trace(again.load()).memory[0]

    assert (found.held, found.holders) == ([], [])
    assert "events are missing" in (found.holders_unknown_because or "")


def test_what_was_there_before_the_record_is_no_ones() -> None:
    built = trace().operator("aten::mm", at=0, lasts=100)
    built.memory(at=5, size=-MIB, allocated=9 * MIB, reserved=1 << 30)
    found = analyze_trace(built.load()).memory[0]

    assert kinds(found) == {"allocated before the record": 9 * MIB}
    assert found.holders_unknown_because == "nothing of what was held was allocated in the record"


@pytest.mark.parametrize("change", [{"at": 10**9 + 7}, {"file": "other/net.py"}])
def test_times_and_names_change_no_kind(change: dict[str, Any]) -> None:
    plain, other = peak_of(job()), peak_of(job(**change))

    assert other.held == plain.held
    assert [(one.kind, one.module, one.operator, one.bytes) for one in other.holders] == [
        (one.kind, one.module, one.operator, one.bytes) for one in plain.holders
    ]


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_a_files_events_changes_nothing(random: Any) -> None:
    plain, other = job(), job()
    random.shuffle(other.built.events)

    assert peak_of(other) == peak_of(plain)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(0, 40), st.integers(0, 100))
def test_the_parts_add_up_to_the_peak(steps: int, size: int, before: int) -> None:
    found = peak_of(job(steps, size + 1, before=before))

    assert sum(one.bytes for one in found.held) == found.peak_allocated_bytes
    assert sum(one.bytes for one in found.holders) == (found.peak_allocated_bytes or 0) - before * MIB
