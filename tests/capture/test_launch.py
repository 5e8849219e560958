"""What ``whystall run`` starts for the words that it was given."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from whystall.capture.launch import launch_of, run_command
from whystall.errors import UsageError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return tmp_path


@pytest.mark.parametrize("python", ["python", "python3", "python3.11"])
def test_python_in_front_of_a_script_is_not_put_there_twice(python: str) -> None:
    found = launch_of([python, "train.py", "--lr", "1"])
    assert found.command == (python, "train.py", "--lr", "1")
    assert (found.kind, found.what, found.name, found.arguments) == ("script", "train.py", "train", 2)


def test_python_in_front_of_a_module_and_of_options() -> None:
    module = launch_of(["python", "-m", "package.train", "x"])
    assert module.command == ("python", "-m", "package.train", "x")
    assert (module.kind, module.what, module.arguments) == ("module", "package.train", 1)
    plain = launch_of(["python", "-u", "train.py"])
    assert (plain.kind, plain.command) == ("command", ("python", "-u", "train.py"))


@pytest.mark.parametrize(
    ("words", "what", "arguments"),
    [
        (["torchrun", "--nproc-per-node", "2", "train.py", "--lr", "1"], "torchrun --nproc-per-node 2 train.py", 2),
        (
            ["/bin/torchrun", "--standalone", "--nproc_per_node=gpu", "train.py"],
            "torchrun --standalone --nproc_per_node=gpu train.py",
            0,
        ),
        (["torchrun", "--rdzv-endpoint", "host:29400", "train.py", "--lr", "1"], "torchrun", 0),
        (["mpirun", "train.py", "x"], "mpirun", 0),
    ],
)
def test_a_launcher_is_told_with_its_script_and_what_is_no_secret(words: list[str], what: str, arguments: int) -> None:
    found = launch_of(words, is_command=True)
    assert found.command == tuple(words)
    assert (found.kind, found.what, found.arguments) == ("command", what, arguments)


@pytest.mark.parametrize("python", ["python", sys.executable])
def test_a_script_of_pythons_after_dashes_is_one(python: str) -> None:
    """The report then knows the command to verify with."""
    found = launch_of([python, "train.py", "--lr", "1"], is_command=True)
    assert found.command == (python, "train.py", "--lr", "1")
    assert (found.kind, found.what, found.name, found.arguments) == ("script", "train.py", "train", 2)
    assert launch_of([python, "-m", "package.train"], is_command=True).kind == "module"
    for words in ([python], [python, "-u", "train.py"], [python, "absent.py"], [python, "-m"], ["sh", "train.py"]):
        assert launch_of(words, is_command=True).kind == "command"


def test_a_script_goes_to_this_python_and_one_that_is_called_python_is_a_script(home: Path) -> None:
    assert launch_of(["train.py"]).command == (sys.executable, "train.py")
    (home / "python").touch()
    assert launch_of(["python"]).kind == "script"


def test_an_interpreter_by_its_path_is_one_and_another_program_goes_after_dashes(home: Path) -> None:
    (home / "train.py").write_text("pass")
    found = launch_of([sys.executable, "-m", "torch.distributed.run", "train.py"])
    assert (found.command[0], found.kind, found.what) == (sys.executable, "module", "torch.distributed.run")
    assert launch_of([sys.executable, "train.py"]).kind == "script"
    (home / "app.pyz").write_bytes(b"PK\x03\x04\0\0")  # an archive that Python runs
    assert launch_of(["app.pyz"]).kind == "script"
    with pytest.raises(UsageError, match="goes after --"):
        launch_of([shutil.which("env") or "", "python", "train.py"])


def test_a_command_that_is_found_by_its_name_needs_no_dashes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["torchrun", "--nproc-per-node", "2", "train.py", "--lr", "1"]
    monkeypatch.setenv("PATH", str(home / "bin"))
    with pytest.raises(UsageError, match="torchrun: no such script"):
        launch_of(words)
    (home / "bin").mkdir()
    (home / "bin" / "torchrun").write_text("#!/bin/sh")
    (home / "bin" / "torchrun").chmod(0o755)
    found = launch_of(words)
    assert (found.command, found.kind, found.what) == (tuple(words), "command", "torchrun --nproc-per-node 2 train.py")
    (home / "torchrun.py").write_text("pass")
    with pytest.raises(UsageError, match="torchrun: no such script"):
        launch_of(words)  # that one may be meant
    (home / "torchrun").write_text("pass")
    assert launch_of(words).kind == "script"  # as Python itself would take it


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match=r"absent\.py: no such script"):
        launch_of(["python", "absent.py"])


def test_a_script_goes_by_what_one_types_below_the_working_folder_and_else_by_its_name(home: Path) -> None:
    (home / "examples").mkdir()
    (home / "examples" / "train.py").touch()
    assert launch_of(["examples/train.py"]).what == "examples/train.py"
    assert launch_of(["./examples/../train.py"]).what == "train.py"
    assert launch_of([str(home / "examples" / "train.py")]).what == "train.py"


def test_a_signal_that_comes_while_the_command_starts_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    plain = subprocess.Popen

    def signalled(command: Sequence[str], **others: Any) -> subprocess.Popen[bytes]:
        process = plain(command, **others)
        if command[0] == sys.executable:
            started.append(process)
            os.kill(os.getpid(), signal.SIGTERM)
        return process

    monkeypatch.setattr(subprocess, "Popen", signalled)
    before = signal.getsignal(signal.SIGTERM)
    code = run_command([sys.executable, "-c", "import time; time.sleep(60)"], os.environ)
    assert code == -signal.SIGTERM
    assert len(started) == 1
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("ignored", [True, False])
def test_a_command_inherits_the_signals_that_are_ignored(tmp_path: Path, *, ignored: bool) -> None:
    code = "import signal, sys; open(sys.argv[1], 'w').write(str(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN))"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        assert run_command([sys.executable, "-c", code, str(tmp_path / "told")], os.environ) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (tmp_path / "told").read_text() == str(ignored)
