"""Of an export that is sound as a database, whatever it says, no event vanishes without being counted."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from random import Random

from tests.fuzz.databases import built, damaged, rewritten
from tests.fuzz.seeds import seeds

from whystall.errors import InputError
from whystall.trace.load import load_traces
from whystall.trace.model import Trace

EVENTS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "globalPid", "CUPTI_ACTIVITY_KIND_MEMCPY": "globalPid",
    "CUPTI_ACTIVITY_KIND_MEMSET": "globalPid", "CUPTI_ACTIVITY_KIND_RUNTIME": "globalTid",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "globalPid", "NVTX_EVENTS": "globalTid",
}  # fmt: skip
NEEDED = {table: {"start", "end", identifier} for table, identifier in EVENTS.items()}
NEEDED["NVTX_EVENTS"] = {"start", "eventType", "globalTid"}
TABLES = ("operators", "annotations", "runtime_calls", "device_events", "synchronizations", "other_events")
CASES = 150


def rows_of(path: Path) -> int:
    """The rows of the tables that can be read, by SQL."""
    connection = sqlite3.connect(path)
    found = 0
    for (table,) in connection.execute("select name from sqlite_master where type = 'table'").fetchall():
        columns = {row[1] for row in connection.execute(f"pragma table_info({table})")}
        if table in EVENTS and columns >= NEEDED[table]:
            where = " where eventType is null or eventType not in (33, 75)" if table == "NVTX_EVENTS" else ""
            found += connection.execute(f"select count(*) from {table}{where}").fetchone()[0]
    connection.close()
    return found


def accounted(traces: list[Trace]) -> int:
    kept = sum(len(getattr(trace, table)) for trace in traces for table in TABLES)
    set_aside = sum(entry.events for trace in traces for entry in trace.source.quarantined)
    sentences = " ".join(warning for trace in traces for warning in trace.source.warnings)
    left_out = re.search(r"used no device and are left out \(([\d,]+) events\)", sentences)
    return kept + set_aside + (int(left_out[1].replace(",", "")) if left_out else 0)


def test_every_row_is_an_event_or_is_counted(tmp_path: Path) -> None:
    originals, path, read = built(), tmp_path / "case.sqlite", 0
    for seed in seeds(CASES):
        random = Random(seed)  # noqa: S311 - reproducible on purpose
        path.write_bytes(rewritten(random.choice(originals), random))
        try:
            traces = load_traces(path, cache=False)
        except InputError:
            continue
        read += 1
        assert accounted(traces) == rows_of(path), seed
        assert sum(trace.source.events for trace in traces) <= rows_of(path), seed
    assert read > CASES // 2


def test_a_seed_always_makes_the_same_bytes() -> None:
    originals = built()
    assert [damaged(seed, originals) for seed in range(10)] == [damaged(seed, built()) for seed in range(10)]
