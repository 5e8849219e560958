"""Recordings at addresses of fsspec (``s3://``, ``gs://``, ``http://`` …): listed here, fetched by their reader.

A file is fetched in pieces to a temporary one that is deleted as soon as it was read: this machine never holds more of
a thousand files than are in work. Only addresses that the user gave are contacted.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec

from whystall.errors import InputError
from whystall.trace.discovery import RANKS_JSON, looks_like_trace
from whystall.trace.readers.reader import Reader

_ADDRESS: Final = re.compile(r"^(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_MAGIC: Final = re.compile(r"[*?\[]")
_WRITTEN: Final = re.compile(r"[\w.+-]+://[^\s'\"]+")
_LONGEST: Final = 200
_HTTP_NOT_FOUND: Final = 404
_PIECE_BYTES: Final = 8 << 20
_KEPT_FREE_BYTES: Final = 256 << 20
_PREFIX: Final = "whystall-"
# Fields of fsspec's file systems that change with the content of an address.
_MARKS: Final = (
    "ETag",
    "etag",
    "md5Hash",
    "content_md5",
    "LastModified",
    "updated",
    "last_modified",
    "mtime",
    "mtimens",
)


class RemoteFile(msgspec.Struct, frozen=True):
    """A file at an address, its size where the server states it, and a mark that changes with its content."""

    address: str
    bytes: int | None
    mark: str


def is_address(source: object) -> bool:
    """Whether a source is an address and no path.

    >>> is_address("s3://bucket/run/*.json.gz"), is_address("traces/rank0.json"), is_address("C:/traces")
    (True, False, False)
    """
    return isinstance(source, str) and _ADDRESS.match(source) is not None


def shown(address: str) -> str:
    """An address as it may be shown: without a password or a signature in it.

    >>> shown("https://user:word@host/a/b.json?X-Amz-Signature=1")
    'https://host/a/b.json'
    """
    scheme, _, rest = address.partition("://")
    rest = rest.partition("?")[0] if scheme.lower().startswith("http") else rest
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def name_of(address: str) -> str:
    """The base name of a file at an address, or of a path."""
    if not is_address(address):
        return PurePosixPath(address).name
    return PurePosixPath(shown(address)).name or "trace"


def find_remote(address: str, readers: Sequence[Reader]) -> list[RemoteFile]:
    """The trace files behind an address: a file, a folder (with its list of ranks) or a pattern, in order of name.

    Raises `InputError` when there are none, when the address cannot be read, and when the package for it is missing.
    """
    with _sentences(address):
        system, path = _system(address)
        http = address.lower().startswith("http")
        if _MAGIC.search(path) and not http:
            found = [one for one in system.glob(path) if not system.isdir(one)]
        elif (http and path.endswith("/")) or (not http and system.isdir(path)):
            there = f"{path.rstrip('/')}/{RANKS_JSON}"
            found = [one for one in system.find(path) if one == there or _looks_like_trace(one, readers)]
        else:
            found = [path]
        if not found:
            raise InputError(f"{shown(address)}: no traces there")
        return [_described(system, one) for one in sorted(found)]


def _looks_like_trace(path: str, readers: Sequence[Reader]) -> bool:
    return looks_like_trace(Path(PurePosixPath(path).name), readers)


def _described(system: Any, path: str) -> RemoteFile:
    said = system.info(path)
    size = said.get("size")
    mark = " ".join(f"{key}={said[key]}" for key in _MARKS if said.get(key) is not None)
    return RemoteFile(str(system.unstrip_protocol(path)), int(size) if size is not None else None, mark)


@contextlib.contextmanager
def fetched(address: str, folder: Path | None = None) -> Iterator[Path]:
    """A temporary copy of a file at an address, under its name, gone at the end.

    ``folder`` is where to put it, if there is such a folder. Raises `InputError` where it cannot be had.
    """
    inside = folder if folder is not None and folder.is_dir() else None
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=inside, ignore_cleanup_errors=True) as made:
        path = Path(made) / name_of(address)
        with _sentences(address):
            system, there = _system(address)
            with system.open(there, "rb", block_size=_PIECE_BYTES) as source, path.open("wb") as target:
                while piece := source.read(_PIECE_BYTES):
                    if shutil.disk_usage(made).free < len(piece) + _KEPT_FREE_BYTES:
                        raise InputError(f"{shown(address)}: no room for it in {Path(made).parent}")
                    target.write(piece)
        yield path


def beginning(address: str, most: int) -> bytes:
    """The first ``most`` bytes of a file at an address. Raises `InputError` where it cannot be had."""
    content = bytearray()
    with _sentences(address):
        system, there = _system(address)
        with system.open(there, "rb", block_size=_PIECE_BYTES) as source:
            while len(content) < most and (piece := source.read(most - len(content))):
                content += piece
    return bytes(content)


def _system(address: str) -> tuple[Any, str]:
    # Optional, and slow to import.
    from fsspec.core import url_to_fs  # noqa: PLC0415

    system, path = url_to_fs(address)
    return system, path


@contextlib.contextmanager
def _sentences(address: str) -> Iterator[None]:
    """Turns any failure between here and a server into one sentence."""
    where = shown(address)
    try:
        yield
    except InputError:
        raise
    except ImportError:
        raise InputError(f"{where}: addresses need further packages: pip install 'whystall[cloud]'") from None
    except FileNotFoundError as error:
        cause = error.__cause__
        if cause is None or isinstance(cause, FileNotFoundError) or getattr(cause, "status", None) == _HTTP_NOT_FOUND:
            raise InputError(f"{where}: no such file") from None
        raise InputError(f"{where}: cannot be read ({_said(cause, where)})") from None
    except PermissionError:
        raise InputError(f"{where}: permission denied") from None
    except Exception as error:  # noqa: BLE001 - each file system has errors of its own
        raise InputError(f"{where}: cannot be read ({_said(error, where)})") from None


def _said(error: BaseException, where: str) -> str:
    """An error's message, without the secrets that an address in it may hold."""
    said = _WRITTEN.sub(where, next(iter(str(error).splitlines()), ""))[:_LONGEST]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
