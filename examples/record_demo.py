"""Makes the recording that ``whystall demo`` analyses: three steps of ``train_gpt.py``.

    python examples/record_demo.py src/whystall/demo/recording.json.gz

Runs in a temporary folder on a relative path and takes out what names the machine. It refuses to write a recording
that still holds an absolute path, the host's or the user's name, or any environment variable's value.
"""

from __future__ import annotations

import argparse
import getpass
import gzip
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MACHINE_KEYS = ("host_name", "trace_id", "traceName")
MAX_BYTES = 300_000


def record() -> dict[str, object]:
    """The trace of a run in a temporary folder, without the keys that name the machine."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(HERE / "train_gpt.py", folder)
        command = [sys.executable, "train_gpt.py", "--steps", "6", "--profile", "trace.json.gz"]
        subprocess.run(command, cwd=folder, check=True)  # noqa: S603 - our own script
        with gzip.open(Path(folder) / "trace.json.gz") as stream:
            trace: dict[str, object] = json.load(stream)
    return {key: value for key, value in trace.items() if key not in MACHINE_KEYS}


def leaks(text: str) -> list[str]:
    """What in ``text`` would name this machine or its user."""
    names = {getpass.getuser(), platform.node()}
    values = {value for value in os.environ.values() if len(value) > 5}
    paths = set(re.findall(r"(?:/home|/root|/tmp|/work|/opt|/usr|/Users)/[^\"\s]*", text))
    return sorted(paths | {found for found in names | values if re.search(rf"\b{re.escape(found)}\b", text)})


def main() -> None:
    """Records, checks and writes."""
    parser = argparse.ArgumentParser(description="Record what `whystall demo` analyses.")
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    text = json.dumps(record(), separators=(",", ":"))
    if found := leaks(text):
        sys.exit(f"the recording names this machine: {', '.join(found)}")
    data = gzip.compress(text.encode(), 9, mtime=0)
    if len(data) > MAX_BYTES:
        sys.exit(f"the recording has {len(data)} bytes, more than {MAX_BYTES}")
    arguments.output.write_bytes(data)
    print(f"{arguments.output}: {len(data)} bytes")


if __name__ == "__main__":
    main()
