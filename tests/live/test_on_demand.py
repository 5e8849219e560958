"""A window that torch's profiler records on demand: who asks for it gets it, and nobody else."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from whystall.errors import InputError
from whystall.live.on_demand import settings_of, window

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="dynolog's socket is Linux's")
HEADER = struct.Struct("=Q32s")
JOB = """
import time, torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
print("begins", flush=True)
end = time.monotonic() + 90
while time.monotonic() < end:
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.005)
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """This process as one that asks a socket in a folder of its own."""
    folder = tmp_path / "proc" / str(os.getpid())
    folder.mkdir(parents=True)
    environ = {"SECRET_TOKEN": "hush", "KINETO_USE_DAEMON": "1", "KINETO_IPC_SOCKET_DIR": str(tmp_path)}
    (folder / "environ").write_bytes(b"".join(f"{name}={value}\0".encode() for name, value in environ.items()))
    return tmp_path / "proc"


def message(kind: bytes, content: bytes = b"") -> bytes:
    return HEADER.pack(len(content), kind) + content


EVENTS_ALONE, ASKS = (message(b"req", struct.pack("=iiqi", kind, 1, 0, os.getpid())) for kind in (1, 3))


def asked(folder: Path, *messages: bytes) -> Iterator[bytes]:
    """What the endpoint in the folder answers to each message, from a socket of this process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.bind(str(folder / "client"))
        client.settimeout(10)
        for one in messages:
            deadline = time.monotonic() + 10
            while not (folder / "dynolog").exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            client.sendto(one, str(folder / "dynolog"))
            if one[8:12] in (b"ctxt", b"req\0"):
                yield client.recv(1 << 16)


def taking(folder: Path, *messages: bytes, writes: Callable[[Path], object]) -> tuple[threading.Thread, list[bytes]]:
    """A thread that asks as torch does, and writes the trace where it was told to."""
    got: list[bytes] = []

    def run() -> None:
        got.extend(asked(folder, *messages))
        lines = dict(line.split("=", 1) for line in got[-1][HEADER.size :].decode().splitlines())
        target = Path(lines["ACTIVITIES_LOG_FILE"])
        writes(target.with_name(f"{target.stem}_{os.getpid()}.json"))

    thread = threading.Thread(target=run)
    thread.start()
    return thread, got


def test_who_asks_is_told_what_to_record_and_the_trace_is_waited_for(tmp_path: Path, proc: Path) -> None:
    def slowly(path: Path) -> None:
        path.write_text('{"traceEvents": [')
        time.sleep(0.6)
        path.write_text('{"traceEvents": []}\n')

    thread, got = taking(tmp_path, message(b"ctxt", b"\0" * 16), b"junk", EVENTS_ALONE, ASKS, writes=slowly)
    trace = window(os.getpid(), 0.25, tmp_path / "out", within_s=20, proc=proc)
    thread.join()
    assert json.loads(trace.read_text()) == {"traceEvents": []}
    registered, nothing, config = got
    assert nothing == message(b"req")
    assert (registered[8:12], registered[HEADER.size :]) == (b"ctxt", struct.pack("=i", 1))
    size, kind = HEADER.unpack_from(config)
    assert (size, kind.rstrip(b"\0")) == (len(config) - HEADER.size, b"req")
    assert b"ACTIVITIES_DURATION_MSECS=250\n" in config
    assert not (tmp_path / "dynolog").exists()
    # the next one has another name
    (tmp_path / "client").unlink()
    thread, _ = taking(tmp_path, ASKS, writes=lambda path: path.write_text("{}"))
    again = window(os.getpid(), 0.25, tmp_path / "out", within_s=20, proc=proc)
    thread.join()
    assert again != trace
    assert trace.exists()


def test_another_process_gets_nothing(tmp_path: Path, proc: Path) -> None:
    """It says that it is the one: the kernel says that it is not."""
    script = (
        "import socket, struct, sys, time\n"
        "client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "client.bind(sys.argv[1] + '/other')\n"
        "for _ in range(100):\n"
        "    try:\n"
        "        client.sendto(struct.pack('=Q32s', 20, b'req') + struct.pack('=iiqi', 3, 1, 0, int(sys.argv[2])),\n"
        "                      sys.argv[1] + '/dynolog')\n"
        "        break\n"
        "    except OSError:\n"
        "        time.sleep(0.05)\n"
        "client.settimeout(10)\n"
        "print(len(client.recv(1 << 16)) - 40)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path), str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        with pytest.raises(InputError, match="did not ask for a window"):
            window(os.getpid(), 0.1, tmp_path / "out", within_s=6, proc=proc)
        said, _ = other.communicate(timeout=20)
    assert said.strip() == "0"


def test_a_process_that_asks_nobody_and_a_socket_that_is_taken_are_sentences(tmp_path: Path, proc: Path) -> None:
    environ = proc / str(os.getpid()) / "environ"
    assert "hush" not in str(settings_of(os.getpid(), proc))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as taken:
        taken.bind(str(tmp_path / "dynolog"))
        with pytest.raises(InputError, match="dyno gputrace"):
            window(os.getpid(), 0.1, tmp_path / "out", within_s=1, proc=proc)
    environ.write_bytes(b"SECRET_TOKEN=hush\0")
    with pytest.raises(InputError, match="KINETO_USE_DAEMON=1") as raised:
        settings_of(os.getpid(), proc)
    assert "hush" not in str(raised.value)
    with pytest.raises(InputError, match="cannot be read"):
        settings_of(1 << 30, proc)


def test_a_job_of_torchs_own_records_a_window(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "job.py"
    script.write_text(JOB)
    with (
        tempfile.TemporaryDirectory(prefix="ws", dir="/tmp") as short,  # the address of a socket has 108 characters
        subprocess.Popen(
            [sys.executable, str(script)],
            env={**os.environ, "KINETO_USE_DAEMON": "1", "KINETO_IPC_SOCKET_DIR": short},
            stdout=subprocess.PIPE,
            text=True,
        ) as job,
    ):
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == "begins\n"
            command = [sys.executable, "-m", "whystall", "attach", str(job.pid), "--window", "0.3", "-o", "out"]
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert job.poll() is None
        finally:
            job.kill()
    (trace,) = (tmp_path / "out").glob("window1_*.json")
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert "aten::linear" in names
    assert "CPU" in done.stdout
