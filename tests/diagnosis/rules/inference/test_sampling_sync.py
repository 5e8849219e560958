"""inference.sampling-sync: scores that go to the host for Python to draw from; no tokens, no job of another kind."""

from __future__ import annotations

from typing import Final

from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import Job, is_worth

SCORES: Final = 64 * 128_256 * 4
STEPS: Final = 16
COPY_NS: Final = 2_000_000
PYTHON_NS: Final = 3_000_000


def engine(size: int, *, copy_ns: int = COPY_NS, python_ns: int = PYTHON_NS, mark: str = "step[DECODE bs=64]") -> Job:
    """Decoding: ten products, scores or tokens to the host, Python, and the next step."""
    job = Job()
    for _ in range(STEPS):
        with job.marked(mark):
            for _ in range(10):
                job.operator("aten::mm", "gemm", 200_000)
        with job.inside("aten::to"):
            name = "Memcpy DtoH (Device -> Pageable)"
            job.launch(name, copy_ns, call="MemcpyAsync", category="gpu_memcpy", bytes=size)
            job.wait()
        job.python(python_ns)
    return job


def test_scores_that_go_to_the_host_are_worth_their_copy_and_the_python_behind_it() -> None:
    """What a step is without them is the same job with a token that is copied in 2 us, and no Python."""
    slow, quick = engine(SCORES), engine(512, copy_ns=2_000, python_ns=0)
    is_worth(found_in(slow.built)["inference.sampling-sync"], slow.at / quick.at)


def test_tokens_that_are_read_are_a_wait_like_any_other() -> None:
    found = found_in(engine(64 * 8, copy_ns=2_000).built)
    assert "inference.sampling-sync" not in found
    assert "host.python" in found


def test_scores_that_nothing_works_on_are_no_sampling() -> None:
    assert "inference.sampling-sync" not in found_in(engine(SCORES, python_ns=10_000).built)


def test_a_job_that_is_no_engine_samples_nothing() -> None:
    assert "inference.sampling-sync" not in found_in(engine(SCORES, mark="evaluate").built)


def test_reading_each_token_is_a_synchronisation() -> None:
    """Four products of 200 us a step, then the token is read, and 400 us of host work follow before the next launch."""
    job = Job()
    for _ in job.steps(20):
        for _ in range(4):
            job.operator("aten::mm", "gemm", 200_000)
        job.operator("aten::argmax", "reduce", 5_000)
        with job.inside("aten::item"):
            job.wait()
        for _ in range(40):
            job.operator("aten::view")
    found = found_in(job.built)
    assert "host.sync" in found
    assert "inference.sampling-sync" not in found
