from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import whystall
from whystall.cli.registry import COMMANDS
from whystall.errors import InputError, UsageError, WhystallError

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Cli, FakeApi

RUN = "import sys; from whystall.cli import main; sys.exit(main())"


def test_version_goes_to_stdout(cli: Cli) -> None:
    assert cli("--version") == (0, f"whystall {whystall.__version__}\n", "")


def test_help_lists_every_verb_and_the_exit_codes(cli: Cli) -> None:
    outcome = cli("--help")

    assert outcome.code == 0
    assert all(f"    {command.name} " in outcome.out for command in COMMANDS)
    assert "3 input unreadable" in outcome.out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_verb_explains_itself(command: object, cli: Cli) -> None:
    name = getattr(command, "name", "")

    assert cli(name, "--help").out.startswith(f"usage: whystall {name}")


@pytest.mark.parametrize("arguments", [("fly",), ("analyze",), ("analyze", "x", "--no-such"), ("export", "x")])
def test_arguments_that_make_no_sense_end_with_2_and_usage_on_stderr(arguments: tuple[str, ...], cli: Cli) -> None:
    outcome = cli(*arguments)

    assert outcome.code == 2
    assert outcome.out == ""
    assert "usage: whystall" in outcome.err


def test_without_a_word_it_helps(cli: Cli) -> None:
    assert cli() == cli("--help")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("anaylze", "did you mean analyze?"),
        ("rnu", "did you mean run?"),
        ("train.py", "to watch a script: whystall run train.py"),
        ("trace.json.gz", "to read a recording: whystall analyze trace.json.gz"),
        ("zzz", "`whystall --help` lists all"),
    ],
)
def test_a_word_that_is_no_verb_gets_a_suggestion(word: str, hint: str, cli: Cli) -> None:
    outcome = cli(word)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"no verb is called {word!r}: {hint}" in outcome.err


@pytest.mark.parametrize(
    ("error", "code"),
    [(WhystallError("what failed"), 1), (UsageError("what failed"), 2), (InputError("what failed"), 3)],
)
def test_an_expected_failure_is_one_sentence_and_its_exit_code(
    error: WhystallError, code: int, cli: Cli, api: FakeApi, trace_file: Path
) -> None:
    api.error = error

    assert cli("analyze", trace_file) == (code, "", "whystall: what failed\n")


def test_a_bug_is_reported_without_a_traceback_and_is_no_threshold(cli: Cli, api: FakeApi, trace_file: Path) -> None:
    api.error = ZeroDivisionError("division by zero")

    outcome = cli("analyze", trace_file)

    assert outcome.code == 70
    assert "internal error, ZeroDivisionError: division by zero" in outcome.err
    assert "Traceback" not in outcome.err
    assert "Traceback" in cli("analyze", trace_file, "-v").err


def test_an_interrupt_ends_with_130(cli: Cli, api: FakeApi, trace_file: Path) -> None:
    api.error = KeyboardInterrupt()

    assert cli("analyze", trace_file) == (130, "", "whystall: interrupted\n")


@pytest.mark.parametrize("arguments", [("doctor",), ("--help",), ("--version",), ("demo", "--no-open")])
def test_a_closed_pipe_is_quiet(arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)

    with os.fdopen(writer, "wb") as stdout:
        ended = subprocess.run(
            [sys.executable, "-c", RUN, *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
        )

    # 0 where argparse, which ignores a failing write, has printed unbuffered
    assert ended.returncode in ({0, 141} if arguments[0].startswith("-") else {141})
    assert ended.stderr == ""


def test_a_pipe_that_closes_early_is_quiet() -> None:
    shell = f"set -o pipefail; {sys.executable} -c '{RUN}' demo --no-open -q | head -n 1"

    ended = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)

    assert ended.returncode in {0, 141}
    assert ended.stderr == ""
    assert ended.stdout.count("\n") == 1


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from whystall.cli import main; main(['--help']);"
        "print(sorted({name.partition('.')[0] for name in sys.modules}"
        " & {'torch', 'polars', 'numpy', 'rich', 'msgspec', 'jinja2', 'psutil', 'isal', 'asyncio', "
        "'importlib_metadata'}))"
    )

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ended.stdout.splitlines()[-1] == "[]"


def test_the_module_runs_as_the_command_does() -> None:
    ended = subprocess.run([sys.executable, "-m", "whystall", "--version"], capture_output=True, text=True, check=True)

    assert ended.stdout == f"whystall {whystall.__version__}\n"
