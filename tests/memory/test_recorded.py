"""What real allocators did, from the memory events of recorded traces: their blocks, and how much they had reserved."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conftest import TRACES

from whystall.memory.allocator import Allocation, Free, simulate
from whystall.memory.allocator_settings import MIB
from whystall.memory.sizes import round_size
from whystall.trace.load import load_traces

NAMES = ("bert-small-h100", "qwen-0.5b-prefill-h100", "recsys-2rank-v100")


@pytest.mark.real_traces
@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_sequence_fits_into_what_was_reserved(name: str) -> None:
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip("the recorded traces are not beside the repository (../shared/traces)")
    table = load_traces(path, cache=False)[0].memory_events
    rows = table.filter(table["device_type"] == 1).sort("ts_ns", maintain_order=True)
    events: list[Allocation | Free] = []
    held: list[tuple[int, int]] = []
    live: set[int] = set()
    before = rows["total_allocated"][0] - rows["bytes"][0]
    for address, size, allocated in rows.select("address", "bytes", "total_allocated").iter_rows():
        if size > 0:
            assert round_size(size) == size, "the recorded size is a block's, which the rules have made"
            events.append(Allocation(address, size))
            live.add(address)
        elif address in live:
            events.append(Free(address))
            live.remove(address)
        else:
            before += size  # it was allocated before the window
            continue
        held.append((allocated - before, len(live)))

    course = simulate(events)

    # A block that is handed out whole is up to 1 MiB larger than what is asked for: here and there others were.
    unsure = np.array([count for _, count in held]) * MIB
    assert (np.abs(course.allocated_bytes - np.array([bytes_ for bytes_, _ in held])) <= unsure).all()
    # Each device was warm: all that the window asked for came out of what was reserved before.
    assert len(rows["total_reserved"].unique()) == 1
    assert course.peak_reserved_bytes <= rows["total_reserved"][0]
    assert len(events) > 50
