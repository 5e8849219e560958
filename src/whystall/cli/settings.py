"""Defaults for options from ``[tool.whystall]`` of ./pyproject.toml or from ``--config FILE``.

The project file may say what the job's numbers are, how a report looks and what is recorded. It cannot set commands,
outputs or addresses, end or change a job, or lift a limit: the folder may be untrusted.

A key is an option's long name without the dashes. Keys on top hold for every verb that has the option; a table
named like a verb holds for that verb alone and wins::

    [tool.whystall]
    no-cache = true

    [tool.whystall.analyze]
    kernel-classes = "kernels.toml"
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from whystall.disk import reading
from whystall.errors import InputError, UsageError

if TYPE_CHECKING:
    from argparse import Action, ArgumentParser
    from collections.abc import Callable, Mapping

PROJECT_FILE = "pyproject.toml"
# The project file of the current folder may be untrusted. An option that is not named here is set on the command line,
# or in a file that `--config` names: it could run a command, write, send, end or change a job, or lift a limit.
_NUMBERS_OF_THE_JOB = """
    engine flops-per-step gpu-hour group-size job-devices precision samples-per-step throughput-reference
    tokens-per-step
"""
_OF_REPORTS = "fail-on finding format json markdown no-browser no-open quiet ranks redact tolerance verbose"
_OF_READING = "kernel-classes no-cache no-calibration no-record no-save workers"
_OF_RECORDING = "active memory modules no-shapes on-slow repeat stacks wait warmup"
_OF_PREDICTIONS = """
    allocator attention autocast batch checkpoint conventions depth device device-memory devices dtype effective-batch
    expert-parallel fsdp infer input-shape kernels limit micro-batches optimizer pipeline-parallel predict recompute
    remedies repeats reserved sequence-parallel strategy tensor-parallel train
"""
OF_THE_FOLDER = frozenset(
    f"{_NUMBERS_OF_THE_JOB} {_OF_REPORTS} {_OF_READING} {_OF_RECORDING} {_OF_PREDICTIONS}".split()
)
NEVER_CONFIGURED = frozenset({"help", "config", "force"})  # a file must not overwrite, nor point at another
PATHS = frozenset({"kernel-classes"})  # relative to the file that names them


def defaults_for(
    verb: str, parsers: Callable[[], Mapping[str, ArgumentParser]], *, config: str | None
) -> dict[str, object]:
    """The configured defaults of ``verb``'s options by destination.

    ``parsers`` makes those of all verbs, which costs the import of each: it is called where there are settings.
    Raises ``InputError`` for a file that cannot be read and ``UsageError`` for a key or value that makes no sense.
    """
    path = Path(config or PROJECT_FILE)
    if config is None and not path.is_file():
        return {}
    table = _read(path)
    if not table:
        return {}
    options = {name: _options(parser) for name, parser in parsers().items()}
    _reject_unknown(table, options, path)
    if config is None:
        _reject_for_the_folder(table, path)
    general = {key: value for key, value in table.items() if key in options[verb]}
    own = _table(table.get(verb, {}), verb, path)
    return {
        options[verb][key].dest: _checked(key, value, options[verb][key], path)
        for key, value in (general | own).items()
    }


def _read(path: Path) -> dict[str, object]:
    """The settings in ``path``: the whole file, or ``[tool.whystall]`` of a pyproject.toml."""
    import tomllib

    try:
        with reading.opened(path) as stream:
            content = tomllib.load(stream)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is no valid TOML: {error}") from error
    if path.name != PROJECT_FILE:
        return content
    return _table(_table(content.get("tool", {}), "tool", path).get("whystall", {}), "tool.whystall", path)


def _table(value: object, name: str, path: Path) -> dict[str, object]:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: {name} must be a table, not {value!r}")
    return value


def _options(parser: ArgumentParser) -> dict[str, Action]:
    """The options that may be configured, by key."""
    return {
        name.removeprefix("--"): action
        for action in parser._actions  # noqa: SLF001 - argparse has no public way to list its options
        for name in action.option_strings
        if name.startswith("--") and action.dest not in NEVER_CONFIGURED
    }


def _reject_unknown(table: Mapping[str, object], options: Mapping[str, Mapping[str, Action]], path: Path) -> None:
    known = {key for verb in options.values() for key in verb}
    for key, value in table.items():
        if key in options:
            unknown = _table(value, key, path).keys() - options[key].keys()
            if unknown:
                raise UsageError(f"{path}: {key} has no option {min(unknown)!r}")
        elif key not in known:
            raise UsageError(f"{path}: no verb and no option is called {key!r}")


def _reject_for_the_folder(table: Mapping[str, object], path: Path) -> None:
    own = {key for value in table.values() if isinstance(value, dict) for key in value}
    keys = own | {key for key, value in table.items() if not isinstance(value, dict)}
    if found := keys - OF_THE_FOLDER:
        key = min(found)
        raise UsageError(
            f"{path}: {key!r} is not read from the project file: give --{key}, or name the file with --config {path}"
        )


def _checked(key: str, value: object, action: Action, path: Path) -> object:
    """``value`` in the type that ``action`` gives its option."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise UsageError(f"{path}: {key} must be true or false, not {value!r}")
        return value
    given = value if isinstance(value, list) else [value]
    values = [one for one in given if isinstance(one, str)]
    if len(values) < len(given):
        raise UsageError(f"{path}: {key} must be a string, not {value!r}")
    if key in PATHS:
        values = [str(path.parent / one) for one in values]
    if action.choices is not None and any(one not in action.choices for one in values):
        raise UsageError(f"{path}: {key} must be one of {', '.join(action.choices)}, not {value!r}")
    if isinstance(action.default, list):
        return values
    if isinstance(value, list):
        raise UsageError(f"{path}: {key} takes one value, not {value!r}")
    return values[0]
