"""start.group: process groups that take long to form fire it; what is saved is not known."""

from __future__ import annotations

from tests.diagnosis.rules.start.jobs import S, found, line


def test_groups_are_named_without_a_saving() -> None:
    (finding,) = found(line("group", 4, 'init_process_group("nccl")')).values()
    assert (finding.id, finding.evidence[0].value, finding.saves) == ("start.group", 4 * S, None)


def test_waits_for_other_ranks_later_are_none() -> None:
    assert found(line("ranks", 4, "dist.barrier()")) == {}
