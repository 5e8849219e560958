"""host.affinity: no rule looks for it; a thread on a far core runs, and lacks no core."""

from __future__ import annotations

from tests.diagnosis.cases import found_in_runs, run


def test_a_thread_far_from_its_device_is_not_said_to_lack_a_core() -> None:
    assert found_in_runs(run(on_cpu_share=0.99), cores=64, threads=1) == {}
