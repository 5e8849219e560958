"""Whether memory of the job's can be read: a mapped file that was cut short ends a reader with SIGBUS.

The job may hold such a tensor and never read it. So the kernel is asked first, which answers with an error: it copies
one byte of each page (``process_vm_readv`` on this process).
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from typing import Any, Final

import numpy as np

_PAGE: Final = mmap.PAGESIZE
_AT_ONCE: Final = 1024
"""Pages in one call: the kernel's limit (IOV_MAX)."""


def is_readable(tensor: Any) -> bool:
    """Whether all memory between the first and the last element of a tensor on the host can be read."""
    if not tensor.numel():
        return True
    places = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return are_readable(tensor.data_ptr(), (places + 1) * tensor.element_size())


def are_readable(address: int, size: int) -> bool:
    """Whether ``size`` bytes from an address on can be read; ``False`` where the kernel does not say."""
    read = _kernels_read()
    if read is None or address <= 0 or size <= 0:
        return False
    first, last = address // _PAGE, (address + size - 1) // _PAGE
    for begin in range(first, last + 1, _AT_ONCE):
        pages = np.arange(begin, min(begin + _AT_ONCE, last + 1), dtype=np.uint64) * np.uint64(_PAGE)
        pages = np.maximum(pages, np.uint64(address))
        if not _copies(read, pages):
            return False
    return True


def _copies(read: Any, addresses: np.ndarray) -> bool:
    """Whether the kernel copies one byte from each of some addresses."""
    count = len(addresses)
    into = np.empty(count, np.uint8)
    remote = np.ones((count, 2), np.uint64)
    remote[:, 0] = addresses
    local = np.array([into.ctypes.data, count], np.uint64)
    taken = read(os.getpid(), local.ctypes.data, 1, remote.ctypes.data, count, 0)
    return bool(taken == count)


@functools.cache
def _kernels_read() -> Any:
    """``process_vm_readv``, if this system has it and lets a process ask for its own memory."""
    try:
        read = ctypes.CDLL(None).process_vm_readv
    except (OSError, AttributeError):
        return None
    read.restype = ctypes.c_ssize_t
    read.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
    own = np.zeros(1, np.uint8)
    return read if _copies(read, np.array([own.ctypes.data], np.uint64)) else None
