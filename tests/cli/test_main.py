from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import whystall
import whystall.cli
from whystall.cli._top import help_text
from whystall.cli.registry import VERBS, Verb
from whystall.errors import InputError, UsageError, WhystallError

if TYPE_CHECKING:
    from .conftest import Cli, FakeApi

RUN = "import sys; from whystall.cli import main; sys.exit(main())"


def test_version_goes_to_stdout(cli: Cli) -> None:
    assert cli("--version") == (0, f"whystall {whystall.__version__}\n", "")


def test_help_lists_every_verb_and_the_exit_codes(cli: Cli) -> None:
    outcome = cli("--help")

    assert outcome.code == 0
    assert all(f"    {verb.name} " in outcome.out for verb in VERBS)
    assert "3 input unreadable" in outcome.out


@pytest.mark.parametrize("width", [40, 80, 300])
def test_help_keeps_every_word_and_the_width(width: int) -> None:
    lines = help_text(width).partition("  VERB\n")[2].partition("\noptions:")[0].splitlines()

    assert " ".join(" ".join(lines).split()) == " ".join(f"{verb.name} {verb.help}" for verb in VERBS)
    assert max(map(len, lines)) <= width


def test_help_takes_the_width_of_the_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    narrow = cli("--help").out
    monkeypatch.setenv("COLUMNS", "200")

    assert (narrow, cli("-h").out) == (help_text(58), help_text(198))


def test_the_table_has_every_verb_that_there_is() -> None:
    """A verb is a module whose class has a name, a help and ``add_arguments``."""
    verbs = {}
    for path in Path(whystall.cli.__file__).parent.glob("[!_]*.py"):
        module = import_module(f"whystall.cli.{path.stem}")
        for name, kind in vars(module).items():
            if isinstance(kind, type) and kind.__module__ == module.__name__ and hasattr(kind, "add_arguments"):
                verbs[path.stem] = name

    del verbs["command"]  # the protocol that they follow
    assert verbs == {verb.name: verb.made_by for verb in VERBS}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_verb_is_what_the_table_says(verb: Verb) -> None:
    command = verb.load()

    assert (command.name, command.help) == (verb.name, verb.help)


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_the_help_loads_no_verb_and_no_parser(word: str) -> None:
    program = f"import sys; from whystall.cli import main; main([{word!r}]); print(*sys.modules, file=sys.stderr)"
    # Without site: an editable install brings modules of its own.
    clean = f"import sys; sys.path.insert(0, {str(Path(whystall.__file__).parents[1])!r}); {program}"

    ended = subprocess.run([sys.executable, "-S", "-c", clean], capture_output=True, text=True, check=True)

    loaded = {name for name in ended.stderr.split() if name.startswith("whystall")}
    tops = {"whystall", "whystall._version", "whystall.cli"}
    assert loaded == tops | {"whystall.cli._main", "whystall.cli._top", "whystall.cli.registry"}
    assert {"argparse", "typing", "re", "contextlib"}.isdisjoint(ended.stderr.split())


def test_a_verb_loads_no_other_verb() -> None:
    program = "import sys; from whystall.cli import main; main(['explain', '--help']); print(*sys.modules)"

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    loaded = {verb.name for verb in VERBS if verb.module in ended.stdout.splitlines()[-1].split()}
    assert loaded == {"explain"}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_explains_itself(verb: Verb, cli: Cli) -> None:
    assert cli(verb.name, "--help").out.startswith(f"usage: whystall {verb.name}")


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
