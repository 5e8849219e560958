"""Runs plain jobs in forks of one process that has imported torch: the import takes longer than the jobs.

Tests compare their results with those of watched jobs, which start a Python of their own. The script runs as Python
runs it: as `__main__`, with the same arguments, environment, streams, tracebacks and exit status.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import IO, NamedTuple

_LONGEST = 1 << 20


class Ended(NamedTuple):
    """The end of a job, and its output."""

    code: int
    stdout: bytes
    stderr: bytes


class _Torch:
    """The process that has torch loaded, and the socket to it."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("WHYSTALL")}
        paths = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), kept.get("PYTHONPATH")]))
        code = f"from tests.plain_jobs import serve; serve({theirs.fileno()})"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=kept | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONPATH": paths},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        atexit.register(self.end)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.socket.close()


@cache
def _torch() -> _Torch:
    return _Torch()


def run(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], given: bytes = b"", timeout_s: float = 300
) -> Ended:
    """Runs a script with its arguments as `python` would; raises `TimeoutError` where it takes too long."""
    torch = _torch()
    ours: list[IO[bytes]] = []
    theirs: list[int] = []
    for writes in (True, False, False):
        reads_at, writes_at = os.pipe()
        ours.append(os.fdopen(writes_at if writes else reads_at, "wb" if writes else "rb"))
        theirs.append(reads_at if writes else writes_at)
    asked = json.dumps({"words": list(words), "folder": str(folder), "environment": dict(environment)}).encode()
    torch.socket.sendmsg([asked], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", theirs))])
    for one in theirs:
        os.close(one)
    with ThreadPoolExecutor(2) as pool:
        read = [pool.submit(one.read) for one in ours[1:]]
        try:
            with ours[0] as stdin:
                stdin.write(given)
        except BrokenPipeError:
            pass
        torch.socket.settimeout(timeout_s)
        pid = int(torch.socket.recv(64))  # comes at once
        try:
            code = int(torch.socket.recv(64))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            torch.socket.settimeout(None)
            torch.socket.recv(64)
            raise
        stdout, stderr = (one.result() for one in read)
    for stream in ours[1:]:
        stream.close()
    return Ended(code, stdout, stderr)


def serve(number: int) -> None:
    """Loads torch, and copies itself for each request; the copy returns from here once its script has ended."""
    import torch._dynamo
    import torch.utils.data  # noqa: F401 - what a job that learns imports

    signal.signal(signal.SIGINT, signal.default_int_handler)
    here = socket.socket(fileno=number)
    while True:
        asked, given, _, _ = socket.recv_fds(here, _LONGEST, 3)
        if not asked:
            return
        pid = os.fork()
        if pid == 0:
            here.close()
            _become(json.loads(asked), given)
            return
        for one in given:
            os.close(one)
        here.send(str(pid).encode())
        here.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def _become(asked: dict[str, object], streams: Sequence[int]) -> None:
    """Runs the script in this process, as its main module."""
    for at, stream in enumerate(streams):
        os.dup2(stream, at)
        os.close(stream)
    words, folder, environment = asked["words"], asked["folder"], asked["environment"]
    assert isinstance(words, list)
    assert isinstance(folder, str)
    assert isinstance(environment, dict)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = words
    sys.path[:] = [str(Path(words[0]).resolve().parent), *sys.path[2:]]  # without `-c`'s folder and that of the tests
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    vars(sys.modules["__main__"]).pop("serve")
    libc, python = ctypes.CDLL(None), ctypes.pythonapi
    libc.fopen.restype = ctypes.c_void_p
    script = os.fsencode(Path(words[0]).absolute())  # as tracebacks show it
    file = libc.fopen(script, b"rb")
    failed = python.PyRun_SimpleFileExFlags(ctypes.c_void_p(file), script, 1, None)
    if failed and sys.last_type is not KeyboardInterrupt:  # of which Python dies by the signal, once it has tidied up
        sys.exit(1)
