"""Which files are meant: a path, a folder or a glob pattern to the trace files and run folders that it names."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from whystall.run_folder.layout import DESCRIPTION_SUFFIX, EXPERIMENTS_JSON, REPORT_JSON, RUN_JSON, VALUES_SUFFIX
from whystall.trace.errors import InputError
from whystall.trace.readers.reader import Reader
from whystall.trace.readers.registry import READERS
from whystall.trace.together import each_once

PathLike = str | Path

RANKS_JSON: Final = "ranks.json"
"""The list of ranks that may lie in a folder of recordings (`whystall.trace.manifest`)."""
# Files that lie beside traces: whystall writes all but the first.
_NOT_TRACES: Final = (RANKS_JSON, REPORT_JSON, RUN_JSON, EXPERIMENTS_JSON)
# Files that jax.profiler.start_trace writes for each host.
_PROFILE: Final = ".xplane.pb"
_PICTURE: Final = ".trace.json.gz"
_PERFETTO_PICTURE: Final = "perfetto_trace.json.gz"


def find_traces(source: PathLike, readers: Sequence[Reader] = READERS) -> list[Path]:
    """The trace files that a path, folder or glob pattern names, in order of name.

    Raises `InputError` when it names none.
    """
    path = Path(source)
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = None
    except (OSError, ValueError) as error:  # a name too long, a loop of links, a null character
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{str(source)[:200]!r}: cannot be read ({reason})") from None
    if mode is not None and stat.S_ISDIR(mode):
        return _in_folder(path, readers)
    found = [path] if mode is not None or not glob.has_magic(str(source)) else _matching(source)
    return each_once(found, readers)


def _in_folder(folder: Path, readers: Sequence[Reader]) -> list[Path]:
    try:
        with os.scandir(folder):
            pass
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror})") from None
    found = sorted(entry for entry in folder.rglob("*") if entry.is_file() and looks_like_trace(entry, readers))
    if not found:
        endings = ", ".join(dict.fromkeys(f"*{suffix}" for reader in readers for suffix in reader.suffixes))
        raise InputError(f"{folder}: no traces in this folder (looked for {endings})")
    return _without_copies(each_once(found, readers))


def _without_copies(found: list[Path]) -> list[Path]:
    """The files without the less exact copies for viewers that XLA's profiler writes beside its own files."""
    profiles = [path for path in found if path.name.endswith(_PROFILE)]
    copies = {path.with_name(path.name.removesuffix(_PROFILE) + _PICTURE) for path in profiles}
    copies |= {path.with_name(_PERFETTO_PICTURE) for path in profiles}
    return [path for path in found if path not in copies]


def _matching(pattern: PathLike) -> list[Path]:
    matches = glob.iglob(str(pattern), recursive=True)  # noqa: PTH207 - pathlib has no absolute globs
    traces = [path for path in sorted(map(Path, matches)) if path.is_file() and path.name != RANKS_JSON]
    if not traces:
        raise InputError(f"{pattern}: no file matches")
    return traces


def find_manifests(source: PathLike) -> list[Path]:
    """The lists of ranks that a path, folder or glob pattern names; of a folder the list directly in it."""
    path = Path(source)
    if _is(Path.is_dir, path):
        found = [path / RANKS_JSON]
    elif fnmatch(RANKS_JSON, path.name):
        matches = glob.iglob(str(source), recursive=True)  # noqa: PTH207 - pathlib has no absolute globs
        found = [path, *sorted(map(Path, matches))]
    else:
        found = []
    return [one for one in dict.fromkeys(found) if one.name == RANKS_JSON and _is(Path.is_file, one)]


def looks_like_trace(path: Path, readers: Sequence[Reader] = READERS) -> bool:
    """Whether a file in a folder is opened as a trace: by its name, and nothing that whystall writes beside traces."""
    ours = path.name in _NOT_TRACES or path.name.endswith((DESCRIPTION_SUFFIX, VALUES_SUFFIX))
    other = ours or path.name.startswith(".")
    return not other and any(path.name.endswith(reader.suffixes) for reader in readers)


def folders_among(sources: Iterable[object]) -> list[Path]:
    """The folders among the inputs, which may be those of watched runs."""
    paths = [Path(source) for source in sources if isinstance(source, str | Path)]
    return [path for path in paths if _is(Path.is_dir, path)]


def _is(kind: Callable[[Path], bool], path: Path) -> bool:
    try:
        return kind(path)
    except OSError:
        return False
