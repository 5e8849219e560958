"""An archive of the ranks' own traces with a manifest that puts them on one clock, as Perfetto merges them (v58 on).

The format: docs/reference/perfetto-manifest.md of Perfetto. A trace in JSON has no clock of its own, so that its file
is pinned to that of another rank: the time T of one is T + ``offset_ns`` of the other. Nothing is rewritten, and drift
cannot be expressed.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

from whystall.analysis.rank_clocks import RankClock
from whystall.errors import UsageError
from whystall.trace.files import gunzipped, head_of, is_gzip, opened
from whystall.trace.model import Trace

MANIFEST: Final = "perfetto_manifest.json"
_TIME: Final = re.compile(rb'"ts"\s*:\s*"?(\d+(?:\.\d+)?)')
_PIECE: Final = 1 << 20
_YEAR_NS: Final = 366 * 24 * 3600 * 10**9
_NO_DATE: Final = (1980, 1, 1, 0, 0, 0)  # the same recordings give the same bytes


def write_archive(
    files: Mapping[int, Path], traces: Mapping[int, Trace], clocks: Mapping[int, RankClock], stream: IO[bytes]
) -> None:
    """Writes a ZIP of the files by rank, with their manifest. Raises ``UsageError`` where it cannot hold for them."""
    if drifting := [rank for rank in files if clocks.get(rank, RankClock()).drift]:
        raise UsageError(
            f"the clock of rank {drifting[0]} drifts, which a manifest cannot say: write one rewritten file instead "
            "(-o FILE.json.gz)"
        )
    at = {
        rank: _offset_ns(path, traces[rank]) + clocks.get(rank, RankClock()).offset_ns for rank, path in files.items()
    }
    names = {rank: f"rank{rank}.json" for rank in files}
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(MANIFEST, _NO_DATE), json.dumps(_manifest(at, names), indent=1))
        for rank, path in files.items():
            member = zipfile.ZipInfo(names[rank], _NO_DATE)
            member.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(member, "w", force_zip64=True) as out:
                for piece in _pieces(path):
                    out.write(piece)


def _manifest(at: Mapping[int, int], names: Mapping[int, str]) -> dict[str, Any]:
    """All files on the timeline of the earliest one: the UI would drop events before its begin."""
    first = min(at, key=lambda rank: (at[rank], rank))
    entries: list[dict[str, Any]] = []
    for rank, name in names.items():
        entry: dict[str, Any] = {"path": name, "machine": {"name": f"rank {rank}"}}
        if rank != first:
            entry["clocks"] = {"sync_to": {"file": names[first]}, "offset_ns": at[rank] - at[first]}
        entries.append(entry)
    return {"perfetto_manifest": {"version": 1, "files": entries}}


def _offset_ns(path: Path, trace: Trace) -> int:
    """The offset of a file's times for ns since 1970: they may be since a base that it names."""
    found = _TIME.search(head_of(path).content)
    if found is None:
        raise UsageError(f"{path.name} is no trace in JSON with its first events at its begin: write one file instead")
    base = trace.metadata.base_time_ns
    return base if base is not None and abs(float(found[1]) * 1000 - base) > _YEAR_NS else 0


def _pieces(path: Path) -> Iterator[bytes]:
    with opened(path) as (file, _):
        yield from gunzipped(file, []) if is_gzip(file) else iter(lambda: file.read(_PIECE), b"")
