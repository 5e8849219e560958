"""A reader for logs of kernels: a line each with start, end (nanoseconds) and name, under a line that says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from whystall.trace.files import Head, Limits, Progress
from whystall.trace.metadata import Metadata
from whystall.trace.readers.reader import RawTrace


class KernelLog:
    name = "kernel-log"
    version = 1  # raise it when the same file gives other tables: what is cached is read anew then
    describes = "kernel logs (text that starts with '#kernels')"
    suffixes = (".kernels",)  # what is opened in a folder

    def knows(self, head: Head) -> bool:
        return head.content.startswith(b"#kernels\n")

    def read(self, path: Path, *, limits: Limits, progress: Progress | None) -> Sequence[RawTrace]:
        lines = [line.split(maxsplit=2) for line in path.read_text("utf-8").splitlines()[1 : limits.events]]
        starts, ends = [int(line[0]) for line in lines], [int(line[1]) for line in lines]
        events = pl.DataFrame({"ts_ns": starts, "name": [line[2] for line in lines]}).with_columns(
            duration_ns=pl.Series(ends) - pl.Series(starts), kind=pl.lit("kernel"), device=pl.lit(0), stream=pl.lit(7)
        )
        return [
            RawTrace(
                tables={"device_events": events},
                threads=pl.DataFrame({"pid": [], "tid": [], "name": []}),
                events=len(events),
                raw_bytes=path.stat().st_size,
                metadata=Metadata(framework=None),  # the log does not say what ran
            )
        ]


READER = KernelLog()
