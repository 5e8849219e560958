from __future__ import annotations

import html
import os
import re
from pathlib import Path

from whystall.report.markdown import MAX_BYTES, code, escape, render_markdown
from whystall.report.schema import Report

GOLDEN = Path(__file__).parent / "golden"


def test_the_document_is_as_recorded(named_sample: tuple[str, Report]) -> None:
    name, report = named_sample
    golden = GOLDEN / f"{name}.md"
    text = render_markdown(report)
    if os.environ.get("WHYSTALL_UPDATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_the_largest_report_is_below_the_limit_of_a_comment(huge_report: Report) -> None:
    assert len(render_markdown(huge_report).encode()) <= MAX_BYTES


def test_table_rows_have_as_many_cells_as_their_headings(sample: Report) -> None:
    for block in re.findall(r"(?:^\|.*\n)+", render_markdown(sample), flags=re.MULTILINE):
        assert len({row.count("|") for row in block.splitlines()}) == 1


def test_only_our_own_tags_are_there(samples: dict[str, Report]) -> None:
    tags = set(re.findall(r"</?[a-z!][^>]*>", render_markdown(samples["hostile"])))
    assert tags <= {"<details>", "</details>", "<summary>", "</summary>", "<code>", "</code>"}


def test_mermaid_labels_stay_within_their_quotes(samples: dict[str, Report]) -> None:
    text = render_markdown(samples["hostile"])
    blocks = re.findall(r"```mermaid\n(.*?)\n```", text, flags=re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        for line in block.splitlines()[1:]:
            assert re.fullmatch(r'    "[^"%{};#`<>]+" : \d+\.\d', line)
    assert text.count("```") == 4


def test_pies_add_up(samples: dict[str, Report]) -> None:
    for block in re.findall(r"```mermaid\n(.*?)\n```", render_markdown(samples["gpu"]), flags=re.DOTALL):
        shares = [int(share.replace(".", "")) for share in re.findall(r" : (\d+\.\d)", block)]
        assert sum(shares) == 1000


def test_no_modules_no_module_pie(samples: dict[str, Report]) -> None:
    assert "mermaid" not in render_markdown(samples["empty"])


def test_nobody_is_mentioned_and_nothing_linked() -> None:
    shown = escape("@team fixes #1 at http://x.example or www.x.example")
    assert not re.search(r"@|http:|www\.", shown)
    assert not re.search(r"@\w|#\d", html.unescape(shown))
    assert "`" not in code("a`b").replace("\\`", "")
