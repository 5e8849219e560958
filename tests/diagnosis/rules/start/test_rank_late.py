"""start.rank-late: a rank that is ready long after all others fires it, with the lines that only it has."""

from __future__ import annotations

from tests.diagnosis.rules.start.jobs import S, found, line

from whystall.analysis.whole_job import RankStart

SHARED = line("weights", 3, "state = load_file(path)", at=10, leaf="safetensors.torch:load_file")
ALONE = line("", 3, "index[key] = at", at=20)


def other(first_s: float, waited_s: float = 0.0) -> RankStart:
    return RankStart(rank=1, first_step_ns=round(first_s * S), places=[SHARED], waited_ns=round(waited_s * S))


def test_the_rank_and_its_own_line_are_named() -> None:
    """Rank 0 is ready after 9 s; rank 1 after 6 s, and waits for three."""
    finding = found(SHARED, ALONE, others=[other(9, waited_s=3)])["start.rank-late"]
    assert finding.scope.ranks == [0]
    assert finding.evidence[0].value == 3 * S
    assert [(one.file, one.line) for one in finding.code] == [("train.py", 20)]
    assert finding.saves is not None
    assert 0 < finding.saves.floor_ns < finding.saves.expected_ns <= 3 * S
    assert finding.saves.first_step_ns == finding.saves.expected_ns


def test_ranks_that_are_ready_together_are_none() -> None:
    assert "start.rank-late" not in found(SHARED, ALONE, others=[other(8.8)])


def test_the_last_but_one_counts() -> None:
    """Two ranks do the same work: neither alone delays the others."""
    late = [other(9, waited_s=3), RankStart(rank=2, first_step_ns=9 * S, places=[SHARED, ALONE])]
    assert "start.rank-late" not in found(SHARED, ALONE, others=late)


def test_one_rank_waits_for_nobody() -> None:
    assert "start.rank-late" not in found(SHARED, ALONE)
