"""start.tokenised-each-time: tokens and data that are prepared before the first step fire it."""

from __future__ import annotations

from tests.diagnosis.rules.start.jobs import S, found, line


def test_tokens_and_data_are_one_preparation() -> None:
    (finding,) = found(line("tokens", 3, "ids = encode(text)"), line("data", 1, "table.map(f)", at=31)).values()
    assert (finding.id, finding.evidence[0].value) == ("start.tokenised-each-time", 4 * S)
    assert finding.saves is not None
    assert finding.saves.first_step_ns > 2 * S


def test_tables_have_another_remedy_than_text() -> None:
    text, table = (found(line(work, 4))["start.tokenised-each-time"].remedy for work in ("tokens", "data"))
    assert text is not None
    assert table is not None
    assert (text.text.startswith("Tokenise"), "oken" in (table.patch or "")) == (True, False)


def test_a_short_preparation_is_none() -> None:
    assert found(line("tokens", 0.4)) == {}
