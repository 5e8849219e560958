"""Peaks from a list of allocations, beside a brute force that adds everything up at every event."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from whystall.model.prediction.events import Event, Place, Record
from whystall.model.prediction.peaks import peaks_of

PHASES = ("forward", "backward", "optimizer")
FORWARD, BACKWARD = Place("forward", "", "m"), Place("backward", "", "")


def test_what_lives_into_the_backward_pass_is_an_activation() -> None:
    record = Record(
        (
            Event(1, 100, Place("start", "", "")),
            Event(2, 30, FORWARD),
            Event(3, 50, FORWARD),
            Event(3, -50, FORWARD),
            Event(4, 8, FORWARD),
            Event(2, -30, BACKWARD),
            Event(5, 20, BACKWARD),
        )
    )

    peaks = peaks_of(record, {1: "parameters", 5: "gradients"}, PHASES)

    assert peaks["forward", ""].n_bytes == 180
    assert peaks["forward", ""].holdings == {
        ("parameters", ""): 100, ("activations", "m"): 30, ("temporaries", "m"): 50
    }  # fmt: skip
    assert peaks["backward", ""].holdings[("outputs", "m")] == 8
    assert ("optimizer", "") not in peaks


def test_what_is_made_inside_a_module_of_the_backward_pass_was_computed_again() -> None:
    again = Place("backward", "", "m")
    record = Record((Event(1, 4, FORWARD), Event(2, 6, again), Event(2, -6, BACKWARD), Event(1, -4, BACKWARD)))

    assert peaks_of(record, {}, PHASES)["backward", ""].holdings == {("activations", "m"): 4, ("recomputed", "m"): 6}


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Storages that come, are resized and go in a run of phases and sections."""
    live: dict[int, int] = {}
    events = []
    for phase in draw(st.lists(st.sampled_from(PHASES), min_size=1, max_size=6)):
        for number in draw(st.lists(st.integers(0, 9), max_size=8)):
            place = Place(phase, draw(st.sampled_from(("", "0", "1"))), draw(st.sampled_from(("", "a", "b"))))
            if number in live:
                events.append(Event(number, -live.pop(number), place))
            else:
                live[number] = draw(st.integers(1, 1000))
                events.append(Event(number, live[number], place))
    return Record(tuple(events))


@given(records())
def test_peaks_are_those_of_a_brute_force_and_their_parts_add_up(record: Record) -> None:
    level, best = 0, Counter[tuple[str, str]]()
    for event in record.events:
        level += event.n_bytes
        key = (event.place.phase, event.place.section)
        best[key] = max(best[key], level)

    peaks = peaks_of(record, {}, PHASES)

    assert {key: peak.n_bytes for key, peak in peaks.items()} == best
    assert all(sum(peak.holdings.values()) == peak.n_bytes for peak in peaks.values())
