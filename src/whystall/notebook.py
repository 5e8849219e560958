"""``%%whystall``: a notebook's cell watched while it runs, and results that a notebook shows.

``%load_ext whystall`` brings both. IPython is the notebook's own: nothing of it is imported before it asks.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NoReturn

from whystall.errors import InputError, UsageError
from whystall.run_folder.layout import RUNS

if TYPE_CHECKING:
    from whystall.report.schema import Report

FOLDER: Final = f"{RUNS}/notebook"
_WIDTH: Final = 100

Shown = Callable[[Any], str]


def load(shell: Any) -> None:
    """Registers the magic and how results are shown with a shell of IPython's."""
    cell_magic = _magic(shell)
    shell.register_magic_function(cell_magic, "cell", "whystall")
    for place, html, text in _SHOWN:
        module, _, name = place.rpartition(".")
        formatters = shell.display_formatter.formatters
        if html is not None:
            formatters["text/html"].for_type_by_name(module, name, html)
        formatters["text/plain"].for_type_by_name(module, name, _printed(text))


def _magic(shell: Any) -> Callable[[str, str], Report | None]:
    def whystall(line: str, cell: str) -> Report | None:
        """Watch this cell while it runs, and show where its steps' time goes.

        %%whystall [-o FOLDER] [--stacks] [--modules] [--memory]

        The report is the cell's result (`_`). Recordings go to FOLDER (whystall-runs/notebook), where the
        next one replaces them. More signals cost more time in the recorded steps: Python functions (--stacks), time
        per module (--modules), allocations (--memory).
        """
        return _watched(shell, _options(line), cell)

    return whystall


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%whystall: {message}")


def _options(line: str) -> argparse.Namespace:
    """The options behind the magic. Raises ``UsageError`` for unknown ones."""
    parser = _Parser(prog="%%whystall", add_help=False, allow_abbrev=False)
    parser.add_argument("-o", "--output", default=FOLDER)
    for signal in ("stacks", "modules", "memory"):
        parser.add_argument(f"--{signal}", action="store_true")
    try:
        return parser.parse_args(shlex.split(line))
    except ValueError as error:
        raise UsageError(f"%%whystall: {error}") from None


def _watched(shell: Any, options: argparse.Namespace, cell: str) -> Report | None:
    """The report on a cell; what the cell raises goes on to the shell, a failure of ours is a sentence."""
    from whystall.capture.profile import profile  # noqa: PLC0415 - a shell may load the extension and never use it

    source = shell.transform_cell(cell)
    name = shell.compile.cache(source, shell.execution_count, raw_code=cell)
    code = shell.compile(shell.transform_ast(shell.compile.ast_parse(source, filename=name)), name, "exec")
    watched = profile(output=options.output, stacks=options.stacks, modules=options.modules, memory=options.memory)
    with ExitStack() as stack:
        try:
            stack.enter_context(watched)
            is_watched = True
        except (ImportError, UsageError) as error:
            _say(f"the cell runs without being watched: {error}")
            is_watched = False
        exec(code, shell.user_ns)  # noqa: S102 - the cell is the user's own, and runs as the shell would run it
    return _reported(watched.output) if is_watched else None


def _reported(folder: Any) -> Report | None:
    from whystall._api import analyze  # noqa: PLC0415 - as above

    try:
        report = analyze(folder)
    except InputError as error:
        _say(str(error))
        return None
    _say(f"recorded in {folder}")
    return report


def _say(sentence: str) -> None:
    sys.stderr.write(f"whystall: {sentence}\n")


def _printed(text: Shown) -> Callable[[Any, Any, bool], None]:
    return lambda value, printer, _cycle: printer.text(text(value).rstrip("\n"))


def _report_text(report: Any) -> str:
    from whystall._api import render  # noqa: PLC0415 - as above

    return render(report, "terminal", width=_WIDTH)


def _comparison_html(comparison: Any) -> str:
    from whystall.report.comparison_page import comparison_document  # noqa: PLC0415 - as above
    from whystall.report.document_fragment import as_fragment  # noqa: PLC0415 - as above

    return as_fragment(comparison_document(comparison))


def _comparison_text(comparison: Any) -> str:
    from whystall.report.comparison import render_comparison  # noqa: PLC0415 - as above

    return render_comparison(comparison, "terminal")


def _model_html(profile: Any) -> str:
    from whystall.report.document_fragment import as_text_fragment  # noqa: PLC0415 - as above

    return as_text_fragment(_model_text(profile))


def _model_text(profile: Any) -> str:
    from whystall.report.model_tree import render_tree  # noqa: PLC0415 - as above

    return render_tree(profile, width=_WIDTH)


def _memory_html(report: Any) -> str:
    from whystall.report.document_fragment import as_fragment  # noqa: PLC0415 - as above
    from whystall.report.memory_text import memory_document  # noqa: PLC0415 - as above

    return as_fragment(memory_document([report], _WIDTH))


def _memory_text(report: Any) -> str:
    from whystall.report.document import as_text  # noqa: PLC0415 - as above
    from whystall.report.memory_text import memory_document  # noqa: PLC0415 - as above

    return as_text(memory_document([report], _WIDTH), _WIDTH)


# The display of results, by the name of the type, so that nothing is imported for it. A report has its HTML itself.
_SHOWN: Final[tuple[tuple[str, Shown | None, Shown], ...]] = (
    ("whystall.report.schema.Report", None, _report_text),
    ("whystall.diagnosis.comparison.Comparison", _comparison_html, _comparison_text),
    ("whystall.model.results.ModelProfile", _model_html, _model_text),
    ("whystall.memory.results.MemoryReport", _memory_html, _memory_text),
)
