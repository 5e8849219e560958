"""Jobs of several parallel dimensions, all ranks in memory: who is slow, and what it costs, with known truth."""

from __future__ import annotations

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.hybrid import LAYER_NS, pipelines, rings, slices
from tests.diagnosis.jobs import Job, is_worth

from whystall.diagnosis.finding import Finding


def told(jobs: list[Job]) -> dict[str, Finding]:
    return found_in(*(job.built for job in jobs))


def step_of(jobs: list[Job]) -> float:
    return sum(job.step_ns for job in jobs) / len(jobs)


@pytest.mark.parametrize(("stages", "replicas"), [(4, 1), (4, 2), (2, 4)])
def test_a_bubble_is_of_the_stages_and_not_of_all_ranks(stages: int, replicas: int) -> None:
    found = told(pipelines(stages, replicas, 4))
    assert next(iter(found)) == "pipeline.bubble"
    gain = found["pipeline.bubble"].gain
    fill = (stages - 1) / 4
    assert gain is not None
    assert gain.ceiling == pytest.approx(1 + fill, rel=0.05)
    assert gain.expected == pytest.approx((1 + fill) / (1 + fill / 4), rel=0.05)


def test_a_stage_with_more_to_do_is_named_in_all_its_replicas() -> None:
    """Of 24 micro-batches of 1.6 ms, and three stages to fill and drain; balanced, 27 of 1.15 ms each."""
    found = told(pipelines(4, 2, 24, {(2, 0): 1_600_000, (2, 1): 1_600_000}))
    assert next(iter(found)) == "pipeline.stage-imbalance"
    assert found["pipeline.stage-imbalance"].scope.ranks == [4, 5]
    is_worth(found["pipeline.stage-imbalance"], (24 * 1.6 + 3) / (27 * 1.15))
    bubble = found["pipeline.bubble"].gain
    assert bubble is not None
    assert bubble.ceiling == pytest.approx(1 + 3 / 24, rel=0.05)


@pytest.mark.parametrize(("stages", "replicas"), [(4, 1), (4, 2)])
def test_who_sends_to_whom_is_known_in_a_group_of_all_stages(stages: int, replicas: int) -> None:
    """As told of groups of two, to the last figure."""
    heavy = {(2, replica): 1_600_000 for replica in range(replicas)}
    pairs, whole = (told(pipelines(stages, replicas, 24, heavy, whole_groups=one)) for one in (False, True))
    assert [(cause, one.gain) for cause, one in pairs.items()] == [(cause, one.gain) for cause, one in whole.items()]
    assert "pipeline.stage-imbalance" in whole


@pytest.mark.parametrize("replicas", [2, 3])
def test_one_slow_rank_of_a_stage_is_no_stage_with_more_to_do(replicas: int) -> None:
    found = told(pipelines(4, replicas, 24, {(2, 1): 1_600_000}))
    assert next(iter(found)) == "communication.straggler"
    assert "pipeline.stage-imbalance" not in found
    assert found["communication.straggler"].scope.ranks == [2 * replicas + 1]
    is_worth(found["communication.straggler"], (24 * 1.6 + 3) / 27)


def test_a_pipeline_that_was_given_more_is_no_slow_rank() -> None:
    """All stages of one replica take longer, as with longer sequences."""
    found = told(pipelines(4, 2, 24, {(stage, 1): 1_300_000 for stage in range(4)}))
    assert "communication.straggler" not in found
    assert "pipeline.stage-imbalance" not in found


@pytest.mark.parametrize(("tensor", "replicas"), [(2, 4), (4, 4)])
def test_a_slow_device_is_named_though_its_delay_is_handed_on(tensor: int, replicas: int) -> None:
    """Those that share its layers come late to their own replicas, which wait for them as long."""
    jobs = slices(tensor, replicas, slower=1.4)
    whole = step_of(jobs)
    found = told(jobs)
    assert next(iter(found)) == "communication.straggler"
    assert found["communication.straggler"].scope.ranks == [5]
    is_worth(found["communication.straggler"], whole / (whole - 4 * 0.4 * LAYER_NS))


def test_python_on_one_rank_of_slices_is_named_on_it() -> None:
    jobs = slices(4, 4, python=1_200_000)
    whole = step_of(jobs)
    found = told(jobs)
    assert found["host.python"].scope.ranks == [5]
    is_worth(found["host.python"], whole / (whole - 1_200_000))


def test_slices_that_are_alike_have_no_late_rank() -> None:
    assert list(told(slices(2, 4))) == ["communication.exposed"]


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_device_is_named_beside_products_that_differ_and_without_one_nobody_is(seed: int) -> None:
    """Each product differs by a tenth: in three of four groups of slices others come last, for less time."""
    late = (3 * seed + 1) % 8
    found = told(slices(2, 4, late=late, slower=1.4, noise=0.1, seed=seed))
    assert found["communication.straggler"].scope.ranks == [late]
    assert "communication.straggler" not in told(slices(2, 4, noise=0.1, seed=seed))


@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_keys_that_go_around_make_no_pipeline(ranks: int) -> None:
    found = told(rings(ranks))
    assert not {"pipeline.bubble", "pipeline.stage-imbalance", "communication.straggler"} & set(found)


def test_a_slow_rank_of_a_ring_is_a_straggler() -> None:
    found = told(rings(4, slow=2))
    assert not {"pipeline.bubble", "pipeline.stage-imbalance"} & set(found)
    assert found["communication.straggler"].scope.ranks == [2]
    gain = found["communication.straggler"].gain
    # here a message is sent though nobody receives yet; in the replay both ends meet
    assert gain is not None
    assert gain.expected == pytest.approx(step_of(rings(4, slow=2)) / step_of(rings(4)), rel=0.1)


def test_a_pipeline_whose_last_stage_sends_a_token_back_is_one() -> None:
    assert "pipeline.bubble" in told(rings(4, one_after_the_other=True))
