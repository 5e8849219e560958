"""start.random-init: random values fire it where weights are read; a model that is trained from nothing needs them."""

from __future__ import annotations

from tests.diagnosis.rules.start.jobs import S, found, line

from whystall.analysis.whole_job import RankStart

INIT = line("random init", 4, "model = Model(config)", leaf="torch.nn.init:normal_")
READ = line("weights", 0.1, "model.load_state_dict(state)", at=31)


def test_random_values_that_weights_overwrite_are_named_with_their_seconds() -> None:
    finding = found(INIT, READ)["start.random-init"]
    assert finding.evidence[0].value == 4 * S
    assert finding.saves is not None
    assert 0.8 * 4 * S <= finding.saves.expected_ns <= 4 * S <= finding.saves.ceiling_ns < 5 * S
    assert finding.saves.first_step_ns == finding.saves.expected_ns


def test_without_weights_they_are_needed() -> None:
    assert found(INIT) == {}


def test_what_another_rank_waits_for_all_the_same_saves_less() -> None:
    """Rank 1 comes a second sooner, and draws no random values: the first step ends a second sooner at most."""
    finding = found(INIT, READ, others=[RankStart(rank=1, first_step_ns=8 * S, places=[])])["start.random-init"]
    assert finding.saves is not None
    assert S <= finding.saves.ceiling_ns < 1.2 * S


def test_what_all_ranks_do_saves_all_of_it() -> None:
    finding = found(INIT, READ, others=[RankStart(rank=1, first_step_ns=8 * S, places=[INIT, READ])])[
        "start.random-init"
    ]
    assert finding.saves is not None
    assert finding.saves.ceiling_ns >= 4 * S
