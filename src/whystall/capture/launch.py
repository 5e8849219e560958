"""Launches a command with the capture put in, and hands on its output, signals and exit code unchanged."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, Literal

from whystall.capture.canary import Canary
from whystall.capture.config import VARIABLE, CaptureConfig, encode
from whystall.errors import UsageError
from whystall.run_folder.description import is_launched
from whystall.run_folder.held import publish_held

INJECTED: Final = Path(__file__).parent / "inject"
# Python options under which PYTHONPATH or sitecustomize are not looked at.
_BLIND_OPTIONS: Final = {
    "I": "-I ignores PYTHONPATH",
    "E": "-E ignores PYTHONPATH",
    "S": "-S does not import sitecustomize",
}


@dataclass(frozen=True, slots=True)
class Launch:
    """A command to watch, the name of its run, and its kind.

    With the kind goes a script's path below the working folder (elsewhere its base name), a command's base name or a
    module's name.
    """

    command: tuple[str, ...]
    name: str
    kind: Literal["script", "module", "command"]
    what: str

    @property
    def arguments(self) -> int:
        """How many arguments a script or a module was given."""
        if self.kind == "command":
            return len(self.command) - len(self.what.split()) if is_launched(self.what) else 0
        return len(self.command) - (3 if self.kind == "module" else 2)


_PROGRAMS: Final = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"MZ")


def launch_of(words: Sequence[str], *, is_module: bool = False, is_command: bool = False) -> Launch:
    """The launch that ``run`` gets: a script, ``-m`` a module, or any command.

    A command goes after ``--``; one that is found by its name, and is no file here, also without.
    """
    if not words:
        raise UsageError("nothing to run: give a script, -m MODULE, or -- and a command")
    if is_module:
        return Launch((sys.executable, "-m", *words), words[0], "module", words[0])
    script = Path(words[0])
    if is_command:
        if _is_python(script.name) and _is_given_code(words[1:]):
            return _of_python(words)
        return Launch(tuple(words), script.name, "command", _launched(words) or script.name)
    if _is_python(script.name) and (_is_binary(script) if script.is_file() else script.name == words[0]):
        return _of_python(words)
    if script.is_file() and _is_binary(script):
        raise UsageError(f"{script}: a program and no script; a command other than Python goes after --")
    if not script.exists():
        meant = Path(f"{words[0]}.py").exists()  # the machine has a command for `test` of test.py as well
        if script.name == words[0] and not meant and shutil.which(words[0]):
            return launch_of(words, is_command=True)
        raise UsageError(f"{script}: no such script (a command other than Python goes after --)")
    return Launch((sys.executable, *words), script.stem, "script", _below_here(script))


def _launched(words: Sequence[str]) -> str | None:
    """A launcher with its script, for display; ``None`` where only the command's name is known."""
    at = next((number for number, word in enumerate(words) if word.endswith(".py")), 0)
    told = " ".join((Path(words[0]).name, *words[1:at], _below_here(Path(words[at]))))
    return told if at and is_launched(told) else None


def _is_given_code(words: Sequence[str]) -> bool:
    """Whether the words after ``python`` are an existing script, or a module."""
    return len(words) > 1 if words[:1] == ["-m"] else bool(words) and Path(words[0]).is_file()


def _below_here(script: Path) -> str:
    """The path of a script as one types it here, where it lies below the working folder; else its name alone."""
    below = Path(os.path.relpath(script))
    return script.name if script.is_absolute() or ".." in below.parts else below.as_posix()


def _is_python(word: str) -> bool:
    """Whether a word is the name of an interpreter, as one types it in front of a script."""
    return re.fullmatch(r"python\d*(\.\d+)?", word) is not None


def _is_binary(path: Path) -> bool:
    """Whether a file is a program of the machine's (ELF, Mach-O, PE), and no code for Python."""
    try:
        with path.open("rb") as file:
            return file.read(4).startswith(_PROGRAMS)
    except OSError:
        return False


def _of_python(words: Sequence[str]) -> Launch:
    """The launch of ``python SCRIPT`` or ``python -m MODULE``; with options of its own ``python`` is a command."""
    rest = words[1:]
    if not rest or (rest[0].startswith("-") and rest[0] != "-m"):
        return Launch(tuple(words), Path(words[0]).name, "command", Path(words[0]).name)
    found = launch_of(rest[1:], is_module=True) if rest[0] == "-m" else launch_of(rest)
    return Launch((words[0], *rest), found.name, found.kind, found.what)


def watched_environment(config: CaptureConfig, environment: dict[str, str]) -> dict[str, str]:
    """The environment of the command: the capture in front of PYTHONPATH, and its settings."""
    paths = [str(INJECTED), *filter(None, [environment.get("PYTHONPATH")])]
    return {
        "KINETO_LOG_LEVEL": "99",  # else Kineto writes to the job's standard error whenever a window opens
        **environment,
        "PYTHONPATH": os.pathsep.join(paths),
        VARIABLE: encode(config),
    }


_NAMES: Final = ("HUP", "INT", "QUIT", "USR1", "ALRM", "TERM", "STKFLT", "XCPU", "VTALRM", "PROF", "POLL", "PWR")

Meanwhile = Callable[[Callable[[], None]], contextlib.AbstractContextManager[object]]
"""Work while a command runs; its argument is a function that ends the command."""


def run_watched(
    launch: Launch,
    config: CaptureConfig,
    on_request: Callable[[], None],
    meanwhile: Meanwhile = contextlib.nullcontext,
) -> int:
    """Runs the command to its end; its exit code, or ``-signal`` where a signal ended it.

    Signals that come here go on to the command, except SIGUSR2, which calls ``on_request``.
    """
    environment = watched_environment(config, dict(os.environ))
    code = run_command(launch.command, environment, meanwhile, on_request=on_request)
    with contextlib.suppress(OSError):
        publish_held(Path(config.folder))
    return code


def run_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    meanwhile: Meanwhile = contextlib.nullcontext,
    *,
    on_request: Callable[[], None] | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> int:
    """Runs a command to its end; its exit code, or ``-signal`` where a signal ended it.

    Signals that come here go on to it; SIGUSR2 calls ``on_request`` instead, where that is given. ``stdout`` and
    ``stderr`` are files for its output. Raises `UsageError` where it cannot be started.
    """
    with _handing_on(on_request) as hand_to:
        try:
            process = subprocess.Popen(command, env=environment, stdout=stdout, stderr=stderr)  # noqa: S603 - it is what the user asked to run
        except FileNotFoundError:
            raise UsageError(f"{command[0]}: no such command") from None
        except PermissionError:
            raise UsageError(f"{command[0]}: permission denied") from None
        hand_to(process)
        with meanwhile(process.terminate):
            return process.wait()


# Signals that end a process by default. Without a handler the launcher would end, and the job would go on alone.
_HANDED_ON: Final = (
    *(getattr(signal, f"SIG{name}") for name in _NAMES if hasattr(signal, f"SIG{name}")),
    *(range(signal.SIGRTMIN, signal.SIGRTMAX + 1) if hasattr(signal, "SIGRTMIN") else ()),
)


@contextlib.contextmanager
def _handing_on(
    on_request: Callable[[], None] | None,
) -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Hands signals on to a process. Signals that come before it has started are kept for it.

    A process inherits which signals are ignored: these are left alone until it has started.
    """
    canary = Canary()
    started: list[subprocess.Popen[bytes]] = []
    waiting: list[int] = []

    def hand_on(number: int, _frame: FrameType | None) -> None:
        if not started:
            waiting.append(number)
            return
        # Ctrl-C in a terminal, and a signal to a process group, reaches the job by itself; a second one ends it harder
        of_all = canary.has_heard(number) or (number == signal.SIGINT and not canary.is_alive and _at_a_terminal())
        if of_all and _in_our_group(started[0].pid):
            return
        with contextlib.suppress(ProcessLookupError):
            started[0].send_signal(number)

    def hand_to(process: subprocess.Popen[bytes]) -> None:
        started.append(process)
        before.update({number: signal.signal(number, handlers[number]) for number in handlers if number not in before})
        while waiting:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(waiting.pop(0))

    handlers: dict[int, Callable[[int, FrameType | None], None]] = dict.fromkeys(_HANDED_ON, hand_on)
    handlers[signal.SIGUSR2] = hand_on if on_request is None else lambda *_: on_request()
    heard = [number for number in handlers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handlers[number]) for number in heard}
    try:
        yield hand_to
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        canary.close()


def _in_our_group(pid: int) -> bool:
    """Whether a process is in the launcher's process group still; one that left hears no signal to that group."""
    try:
        return os.getpgid(pid) == os.getpgrp()
    except ProcessLookupError:
        return True


def _at_a_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def why_blind(command: Sequence[str]) -> str | None:
    """Why nothing could be captured of a Python started so, or ``None`` when nothing stands against it."""
    if not Path(command[0]).name.startswith("python"):
        return None
    for word in command[1:]:
        if not word.startswith("-") or word in ("-m", "-c"):
            break
        for letter, reason in _BLIND_OPTIONS.items():
            if not word.startswith("--") and letter in word:
                return f"Python was started with {word}, and {reason}: the capture could not get in"
    if command[0] != sys.executable and not _has_whystall(command[0]):
        return (
            f"nothing was recorded: whystall is not installed in {command[0]}, which is another Python than its own; "
            "install it there, or run the job with a Python that has it"
        )
    return None


def _has_whystall(python: str) -> bool:
    """Whether an interpreter finds whystall by itself; true where it cannot be run."""
    code = "import importlib.util, sys; sys.exit(3 * (importlib.util.find_spec('whystall') is None))"
    kept = {name: value for name, value in os.environ.items() if name != VARIABLE}
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, env=kept, timeout=60, check=False)  # noqa: S603 - the user's own Python
    except (OSError, subprocess.TimeoutExpired):
        return True
    return done.returncode != 3
