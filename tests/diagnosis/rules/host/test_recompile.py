"""host.recompile: a compiler at work in steady steps fires it, by the marks of any version of torch;
compiled code does not.
"""

from __future__ import annotations

from typing import Final

import pytest
from tests.diagnosis.cases import found_in, found_in_runs, line, run
from tests.diagnosis.jobs import Job

STEP_NS: Final = 2_000_000


def training(name: str, lasts: int, in_steps: tuple[int, ...], *, frame: bool = False, api: str = "cuda") -> Job:
    """Twelve steps of two products; in some of them the host is at something else before."""
    job = Job(api=api)
    for number in job.steps(12):
        if number in in_steps:
            if frame:
                job.built.python(name, at=job.at, lasts=lasts)
            else:
                job.built.annotation(name, at=job.at, lasts=lasts)
            job.python(lasts)
        for _ in range(2):
            job.operator("aten::mm", "gemm", STEP_NS // 2)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("name", "frame", "api"),
    [
        ("_compile.compile_inner (dynamo_timed)", False, "cuda"),
        ("_compile.compile_inner (dynamo_timed)", False, "hip"),
        ("OutputGraph.call_user_compiler (dynamo_timed)", False, "cuda"),
        ("torch/_dynamo/convert_frame.py(1123): _compile_inner", True, "cuda"),
    ],
)
def test_compiling_in_a_few_steps_is_worth_its_share_of_all(name: str, frame: bool, api: str) -> None:
    finding = found_in(training(name, STEP_NS, (3, 6, 9), frame=frame, api=api).built)["host.recompile"]
    assert finding.severity != "info"
    assert finding.gain is not None
    # Ten of the steps are replayed, and every third has it.
    assert finding.gain.floor <= 1 + 1 / 3 <= finding.gain.ceiling
    assert finding.gain.floor <= 1 + 3 / 10 <= finding.gain.ceiling


@pytest.mark.parametrize(
    ("name", "lasts", "in_steps"),
    [
        ("Torch-Compiled Region: 0/0", 20_000, tuple(range(12))),  # runs what was compiled
        ("## Call CompiledFxGraph fx4h2 ##", 20_000, tuple(range(12))),
        ("_compile.compile_inner (dynamo_timed)", STEP_NS, (0,)),  # before the steps that count
        ("_compile.compile_inner (dynamo_timed)", 20_000, (3, 6, 9)),  # a guard that is cheap to look up
        ("", 0, ()),
    ],
)
def test_compiled_code_and_its_first_step_are_none(name: str, lasts: int, in_steps: tuple[int, ...]) -> None:
    assert "host.recompile" not in found_in(training(name, lasts, in_steps).built)


@pytest.mark.parametrize(
    ("share", "part", "leaf", "fires"),
    [
        (0.2, "compile", "torch._dynamo.symbolic_convert:run", True),
        (0.2, "compile", "torch._inductor.scheduler:fuse_nodes", True),
        (0.015, "compile", "torch._dynamo.symbolic_convert:run", False),
        (0.2, "forward", "torch._dynamo.eval_frame:_fn", False),
    ],
)
def test_looks_that_found_the_compiler(share: float, part: str, leaf: str, *, fires: bool) -> None:
    found = found_in_runs(run(shares={"other": 0.22}, places=[line(share, part=part, leaf=leaf)]))
    assert list(found) == (["host.recompile"] if fires else [])
    if fires:
        [where] = found["host.recompile"].code
        assert (where.file, where.line, where.symbol) == ("train.py", 7, "x = f()")
