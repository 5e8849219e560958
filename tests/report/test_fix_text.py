"""The loop of `whystall fix` in words: names of the user's program are data, also in Markdown."""

from __future__ import annotations

from whystall.analysis.paired import Interval
from whystall.remedies.results import Attempt, Fixes
from whystall.report.document import as_text
from whystall.report.fix_text import fix_document, pull_request


def attempt(verdict: str, *, because: str = "losses or results agree") -> Attempt:
    return Attempt(
        edit="workers",
        cause="input.synchronous-loader",
        says="worker processes make the batches",
        program="0",
        verdict=verdict,  # type: ignore[arg-type]
        because=because,
        patch="",
        predicted=(1.2, 1.5, 2.0),
        speedup=Interval(ratio=1.48, low=1.41, high=1.56),
        before_s=[0.3, 0.3, 0.3],
        after_s=[0.2, 0.2, 0.2],
        risk="Random numbers are drawn in workers.",
    )


def fixes(*attempts: Attempt, patch: str = "") -> Fixes:
    speedup = attempts[0].speedup if patch else None
    return Fixes(
        attempts=list(attempts),
        patch=patch,
        command=[],
        speedup=speedup,
        without_edit=["host.python"],
        ended_because="it is done",
    )


def test_what_was_kept_stands_with_its_numbers_and_the_way_to_apply_it() -> None:
    text = as_text(fix_document(fixes(attempt("kept"), patch="--- a/t.py\n+++ b/t.py\n"), ["git apply p"], None), 120)
    assert text.startswith("1.48 times as fast (1.41 to 1.56) with workers.\n")
    for part in (
        "1.50 (1.20 to 2.00)",
        "1.48 (1.41 to 1.56)",
        "Random numbers are drawn",
        "git apply p",
        "host.python",
    ):
        assert part in text


def test_without_a_gain_nothing_was_changed() -> None:
    found = fixes(attempt("rejected", because="it prints other results"))
    assert as_text(fix_document(found, [], None), 120).startswith("Nothing was changed")


def test_a_pull_request_names_changes_risks_and_rejections() -> None:
    found = fixes(attempt("kept"), attempt("rejected", because="a | b\x1b[31m"), patch="p")
    text = pull_request(found)
    assert text.startswith("# 1.48 times as fast")
    assert "| worker processes make the batches | `input.synchronous-loader` | 1.48 (1.41 to 1.56) | 3 |" in text
    assert "- Random numbers are drawn in workers." in text
    assert "Tried and rejected" in text
    assert "\x1b" not in text
