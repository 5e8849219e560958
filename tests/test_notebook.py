"""``%%whystall`` in IPython's own shell."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import whystall
from whystall.memory.results import MemoryReport
from whystall.report.document import Code, Document, Heading, Lines, Points, grid
from whystall.report.document_fragment import as_fragment
from whystall.report.schema import Report

pytest.importorskip("IPython")

CELL = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
trained = True
"""


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    InteractiveShell.clear_instance()
    config = Config()
    config.HistoryManager.enabled = False
    found = InteractiveShell.instance(config=config)
    found.run_line_magic("load_ext", "whystall")
    yield found
    InteractiveShell.clear_instance()


def html(shell: Any, value: object) -> str:
    shown: str = shell.display_formatter.format(value)[0]["text/html"]
    return shown


def text(shell: Any, value: object) -> str:
    shown: str = shell.display_formatter.format(value)[0]["text/plain"]
    return shown


def test_loading_the_extension_imports_neither_torch_nor_polars() -> None:
    program = (
        "import sys, whystall\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.run_line_magic('load_ext', 'whystall')\n"
        "assert 'whystall' in shell.magics_manager.magics['cell']\n"
        "print(sorted({'torch', 'polars', 'msgspec'} & set(sys.modules)))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_a_cell_is_watched_and_its_report_is_the_result(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    report = shell.run_cell_magic("whystall", "-o recorded", CELL)
    assert isinstance(report, Report)
    # The first call of the optimizer ends the first step, which is not counted as one.
    assert report.run[0].steps in (39, 40)
    assert shell.user_ns["trained"] is True
    assert Path("recorded/run.json").is_file()
    assert "recorded in recorded" in capsys.readouterr().err
    assert report.verdict.summary.split(":")[0] in html(shell, report)
    assert text(shell, report).startswith(whystall.render(report, "terminal")[:40])


def test_what_a_cell_raises_is_raised_and_what_whystall_cannot_do_is_a_sentence(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ZeroDivisionError):
        shell.run_cell_magic("whystall", "", "before = 1\n1 / 0")
    assert shell.user_ns["before"] == 1
    capsys.readouterr()
    assert shell.run_cell_magic("whystall", "", "value = 41 + 1") is None
    assert shell.user_ns["value"] == 42
    assert capsys.readouterr().err.startswith("whystall: ")
    with pytest.raises(SyntaxError):
        shell.run_cell_magic("whystall", "", "for")


@pytest.mark.parametrize("line", ["--nonsense", "-o", "extra", "'"])
def test_a_cell_does_not_run_with_options_that_are_none(shell: Any, line: str) -> None:
    from whystall.errors import UsageError

    with pytest.raises(UsageError, match="%%whystall: "):
        shell.run_cell_magic("whystall", line, "ran = True")
    assert "ran" not in shell.user_ns


def test_without_torch_the_cell_runs_as_it_is(
    shell: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert shell.run_cell_magic("whystall", "", "value = 7") is None
    assert shell.user_ns["value"] == 7
    assert "the cell runs without being watched" in capsys.readouterr().err


def test_comparisons_are_shown(shell: Any) -> None:
    found = whystall.compare(whystall.demo_recording(), whystall.demo_recording())
    assert "step takes 10 ms where" in html(shell, found)
    assert "<table>" in html(shell, found)
    assert text(shell, found).startswith(found.summary)


def test_model_profiles_and_memory_reports_are_shown(shell: Any) -> None:
    torch = pytest.importorskip("torch")
    profile = whystall.model_profile(torch.nn.Linear(8, 4), (torch.ones(2, 8),))
    assert html(shell, profile).startswith("<pre")
    assert "Linear" in text(shell, profile)
    report = MemoryReport("snapshot.pickle", (), None, ("nothing <was> recorded",))
    assert "nothing &lt;was&gt; recorded" in html(shell, report)
    assert "nothing <was> recorded" in text(shell, report)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)


def test_a_fragment_holds_only_our_tags_and_all_that_is_said() -> None:
    bad = "<script>alert(1)</script>"
    rows = [(bad, f"row {number}") for number in range(50)]
    parts = (bad, Heading(bad), Lines((bad,)), Points((bad,)), Code(bad, (bad,)), grid(bad, (bad, "second"), rows))
    parser = Tags()
    fragment = as_fragment(Document("compare", bad, (*parts, "what is said")))
    parser.feed(fragment)
    assert parser.tags <= {"div", "p", "strong", "pre", "table", "thead", "tbody", "tr", "th", "td"}
    assert "what is said" in fragment
    assert "row 19" in fragment
    assert "row 20" not in fragment
    assert "30 more" in fragment
