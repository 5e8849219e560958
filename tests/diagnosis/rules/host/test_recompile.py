"""host.recompile: a compiler at work in steady steps fires it, by the marks of any version of torch;
compiled code does not.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in, found_in_runs, line, run
from tests.diagnosis.jobs import Job

from whystall.diagnosis.run_facts import RunFacts
from whystall.run_folder.observations import CompileLimit, Observations

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


def test_a_model_that_is_compiled_in_each_step_is_no_python_to_move_and_no_warm_up() -> None:
    job = training("_compile.compile_inner (dynamo_timed)", 10 * STEP_NS, tuple(range(12)))
    found = found_in(job.built)
    assert found["host.recompile"].severity == "critical"
    assert not found.keys() & {"host.python", "host.warm-up"}


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


PRODUCT: Final[dict[str, Any]] = {"Input Dims": [[4096, 96], [96, 96]], "Input type": ["float", "float"]}
COMPILED_NS: Final = 10_000_000
AS_IT_IS_NS: Final = 40_000_000


def looked_up(versions: list[int | None]) -> Job:
    """Steps of one function on a CPU: a compiled version of it by number, or itself where none fits."""
    job = Job()
    for number in job.steps(len(versions)):
        with job.inside("TorchDynamo Cache Lookup"):
            job.python(50_000)
        version = versions[number]
        around = "aten::linear" if version is None else f"Torch-Compiled Region: 1/{version}"
        with job.inside(around):
            with job.inside("aten::mm", **PRODUCT):
                job.python(2_000_000)
            job.python((AS_IT_IS_NS if version is None else COMPILED_NS) - 2_000_000)
    return job


def test_what_runs_as_it_is_past_the_limit_is_worth_what_compiled_versions_save() -> None:
    """Seven of ten replayed steps take four times what compiled ones do; one version for all sizes is a bit slower."""
    finding = found_in(looked_up([0, 1, *[None] * 4, 2, *[None] * 4, 7]).built)["host.recompile"]
    assert finding.gain is not None
    mixed = (8 * AS_IT_IS_NS + 2 * COMPILED_NS) / (10 * COMPILED_NS)
    assert finding.gain.floor <= mixed / 1.3 <= finding.gain.expected <= mixed <= finding.gain.ceiling


def test_the_compilers_own_word_tells_of_it_where_no_version_was_recorded() -> None:
    limit = CompileLimit(
        function="forward",
        file="job.py",
        line=40,
        text="def forward(self, x):",
        versions=8,
        reason="0/7: size mismatch",
    )
    facts = RunFacts(observed={0: Observations(given_up=(limit,))})
    finding = found_in(looked_up([None] * 12).built, facts=facts)["host.recompile"]
    assert finding.code[0].line == 40
    assert "(size mismatch)" in finding.title
    assert "host.recompile" not in found_in(looked_up([None] * 12).built)


def test_one_version_that_fits_in_most_steps_is_no_such_thing() -> None:
    assert "host.recompile" not in found_in(looked_up([0] * 12).built)
    assert "host.recompile" not in found_in(looked_up([0, None] * 6).built)


@pytest.mark.parametrize(
    ("leaf", "traced"),
    [
        ("torch.jit._recursive:infer_concrete_type_builder", True),
        ("torch._jit_internal:get_torchscript_modifier", True),
        ("torch._dynamo.symbolic_convert:step", False),
        ("torch._inductor.scheduler:fuse_nodes", False),
    ],
)
def test_what_traces_anew_in_steps_has_another_remedy_than_what_compiles(leaf: str, *, traced: bool) -> None:
    places = [line(0.3, "f = torch.jit.trace(model, x)", part="compile", leaf=leaf), line(0.1, "f(x)", part="compile")]
    finding = found_in_runs(run(shares={"other": 0.4}, places=places))["host.recompile"]
    assert finding.remedy is not None
    assert ("before the loop" in finding.remedy.text) is traced
