"""The readers that ship with whystall, in one tuple to read top to bottom, and those that other packages bring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from whystall.plugins import brought
from whystall.trace.errors import InputError
from whystall.trace.files import Head
from whystall.trace.readers.kineto.reader import KinetoReader
from whystall.trace.readers.nsys.reader import NsysFolderReader, NsysReader
from whystall.trace.readers.pftrace.reader import PftraceReader
from whystall.trace.readers.reader import READERS_GROUP, Reader
from whystall.trace.readers.rocpd import RocpdReader
from whystall.trace.readers.rocprof import RocprofReader
from whystall.trace.readers.rocprof_csv import RocprofCsvReader
from whystall.trace.readers.xspace.reader import XSpaceReader

READERS: Final[tuple[Reader, ...]] = (
    RocprofReader(),
    XSpaceReader(),
    PftraceReader(),
    KinetoReader(),
    NsysReader(),
    NsysFolderReader(),
    RocpdReader(),
    RocprofCsvReader(),
)
"""Asked in this order; the first that knows a file's content reads it: Kineto's takes any other JSON."""


def installed_readers() -> tuple[tuple[Reader, ...], list[str]]:
    """The readers of other packages and then whystall's own, and a sentence on each that could not be loaded.

    Those of others come first, since whystall's takes any JSON.
    """
    others, failures = brought(READERS_GROUP, Reader, "readers")
    return (*others, *READERS), failures


def reader_of(head: Head, readers: Sequence[Reader], failures: list[str]) -> Reader:
    """The reader that knows the file; one that fails is named in ``failures`` and passed over.

    Raises `InputError` when none knows it.
    """
    for reader in readers:
        try:
            if reader.knows(head):
                return reader
        except Exception as error:  # noqa: BLE001 - may be another package's code
            failures.append(f"the reader {reader.name} failed on {head.path.name}: {type(error).__name__}: {error}")
    known = "; ".join(reader.describes for reader in readers)
    raise InputError(f"{head.path.name} is in no format that whystall reads. It reads {known}")
