"""The flags of the vLLM that a command will start, read from its source: nothing of it is imported.

``vllm serve --help=all`` gives the same list after ten seconds of imports. The Python of the command is asked for the
folder of its vLLM, and whether it has the packages that export spans: without them a server with the flag does not
start.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whystall.disk import reading
from whystall.serving.recording.command import ServerCommand

__all__ = ["Installed", "installed_for"]

_SOURCES: Final = ("engine/arg_utils.py", "entrypoints/launchers/cli_args.py", "entrypoints/openai/cli_args.py")
"""The files that declare the flags of ``vllm serve`` (0.32, and the older place of the last two)."""
_FLAG: Final = re.compile(rb"""["'](--[a-z][a-z0-9-]{1,80})["']""")
_LARGEST: Final = 4 << 20
_TIMEOUT_S: Final = 20.0
_ASKED: Final = """
import importlib.util as u
s = u.find_spec("vllm")
print(s.submodule_search_locations[0] if s and s.submodule_search_locations else "")
try:
    import opentelemetry.exporter.otlp.proto.grpc.trace_exporter, opentelemetry.exporter.otlp.proto.http.trace_exporter
    import opentelemetry.sdk.trace.export
    print("spans")
except Exception:
    print("")
"""
"""The imports are those of vLLM's `tracing/otel.py`."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The flags that a server's version declares, and whether it can export spans."""

    flags: frozenset[str]
    exports_spans: bool


def installed_for(command: ServerCommand) -> Installed | None:
    """The vLLM of a command; ``None`` where its source was not found."""
    python, begin = (command.program, None) if command.is_python else _python_of(command.program)
    folder, exports_spans = _asked(python, begin) if python is not None else (None, False)
    if folder is None:
        return None
    found: set[str] = set()
    for name in _SOURCES:
        try:
            text = reading.content(folder / name, _LARGEST)
        except OSError:
            continue
        found |= {flag.decode("ascii") for flag in _FLAG.findall(text)}
    return Installed(frozenset(found), exports_spans) if found else None


def _python_of(program: str) -> tuple[str | None, Path | None]:
    """The interpreter in the first line of a console script, and the script's folder, in which it looks first."""
    path = shutil.which(program)
    if path is None:
        return None, None
    try:
        with Path(path).open("rb") as file:
            first = file.readline(1024).decode("utf-8", "replace").strip()
    except OSError:
        return None, None
    words = first.removeprefix("#!").split() if first.startswith("#!") else []
    if words[:1] == ["/usr/bin/env"]:
        words = words[1:]
    python = words[0] if words and "python" in Path(words[0]).name else None
    return python, Path(path).absolute().parent


def _asked(python: str, begin: Path | None) -> tuple[Path | None, bool]:
    """The folder of the package ``vllm`` that an interpreter finds, and whether it can export spans."""
    try:
        done = subprocess.run(  # noqa: S603 - the Python of the command that the user asked to run
            [python, "-c", _ASKED],
            cwd=begin,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
            text=True,
        )
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None, False
    lines = done.stdout.splitlines()
    if done.returncode != 0 or len(lines) < 2 or not lines[-2]:
        return None, False
    return Path(lines[-2]), lines[-1] == "spans"
