"""host.python: long Python between operators fires it, in traces and in samples;
short Python and Python of other causes do not.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import pytest
from tests.diagnosis.cases import case_of, found_in, found_in_runs, line, run, told_of
from tests.diagnosis.jobs import Job, is_worth, meet, message, together

import whystall
from whystall.diagnosis.rules.host import python
from whystall.diagnosis.run_facts import RunFacts
from whystall.run_folder.observations import Observations, WindowPlace
from whystall.run_folder.samples import BEFORE, CALLED
from whystall.testing import TraceBuilder, trace
from whystall.testing.builder import EPOCH_NS

PRODUCT_NS: Final = 1_000_000


def training(
    python_ns: int, *, api: str = "cuda", stacked: bool = False, marked: str = "", queued: bool = False
) -> Job:
    """Eight steps of a stretch of Python and two products; what is queued runs meanwhile."""
    job = Job(api=api)
    for _ in job.steps(8):
        if queued:
            job.operator("aten::mm", "gemm", 2 * PRODUCT_NS)
        begin = job.at
        job.python(python_ns)
        if stacked:
            job.built.python("train.py(12): reward", at=begin, lasts=python_ns)
        if marked:
            job.built.annotation(marked, at=begin, lasts=python_ns)
        for _ in range(2):
            job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.wait()
    return job


@pytest.mark.parametrize(("api", "stacked"), [("cuda", False), ("cuda", True), ("hip", False), ("hip", True)])
def test_python_that_holds_up_the_device_is_worth_its_time(api: str, stacked: bool) -> None:
    job = training(800_000, api=api, stacked=stacked)
    finding = found_in(job.built)["host.python"]
    is_worth(finding, job.step_ns / (job.step_ns - 800_000))
    assert [place.symbol for place in finding.code] == (["reward"] if stacked else [])
    assert finding.could_be == ([] if stacked else ["host.gc"])


@pytest.mark.parametrize(("marked", "fused"), [("Optimizer.step#Adam.step", True), ("reward", False)])
def test_the_annotation_around_python_is_named_and_an_optimizers_has_its_remedy(marked: str, *, fused: bool) -> None:
    """Without stacks a foreach step over DTensors got "a loader's worker"."""
    finding = found_in(training(800_000, marked=marked).built)["host.python"]
    assert [fact.value for fact in finding.evidence if fact.what == "mostly within"] == [marked]
    assert finding.remedy is not None
    assert ("fused=True" in finding.remedy.text) is fused


@pytest.mark.parametrize(("share", "could_be"), [(0.0, []), (0.2, ["host.gc"])])
def test_a_run_that_hardly_collects_is_not_said_to_collect_perhaps(share: float, could_be: list[str]) -> None:
    """800 us of Python in steps of 2.8 ms: Python itself says how long of them it collects."""
    job = training(800_000)
    length = round(job.step_ns)
    even: dict[str, Any] = {"median_ns": length, "p90_ns": length, "total_ns": 100 * length}
    finding = found_in(job.built, runs=[run(shares={"gc": share}, **even)])["host.python"]
    assert finding.could_be == could_be
    assert ("garbage collection" in finding.title) == bool(could_be)


def on_ranks(*python_ns: int) -> list[Job]:
    """Twelve steps of ranks that each run Python for so long, then a product, and meet."""
    jobs = [Job() for _ in python_ns]
    record = message("allreduce", 32 << 20, ranks=tuple(range(len(jobs))))
    for _ in together(jobs, 12):
        for job, lasts in zip(jobs, python_ns, strict=True):
            job.python(lasts)
            job.operator("aten::mm", "gemm", PRODUCT_NS)
        meet(jobs, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 200_000, **record)
        for job in jobs:
            job.wait()
    return jobs


@pytest.mark.parametrize(
    ("python_ns", "guilty", "saved_ns"),
    [
        ((150_000, 900_000), [1], 750_000),
        ((150_000, 900_000, 100_000, 900_000), [1, 3], 750_000),
        ((900_000, 900_000), [0, 1], 900_000),
        ((700_000, 900_000), [0, 1], 900_000),
    ],
)
def test_the_rank_whose_python_the_others_wait_for_is_named_and_worth_what_mending_it_there_saves(
    python_ns: tuple[int, ...], guilty: list[int], saved_ns: int
) -> None:
    jobs = on_ranks(*python_ns)
    told = told_of(*(job.built for job in jobs))
    assert told["host.python"].scope.ranks == guilty
    is_worth(told["host.python"], jobs[0].step_ns / (jobs[0].step_ns - saved_ns))
    if len(guilty) == 1:
        assert told["communication.straggler"].because == "host.python"


@pytest.mark.parametrize(
    ("operator", "named"), [("DropoutAddLayerNormFn", True), ("aten::nonzero", False), ("AddmmBackward0", False)]
)
def test_what_runs_in_a_function_of_the_users_is_python(operator: str, *, named: bool) -> None:
    """A function with a backward pass of its own is recorded as an operator, yet what it does itself is Python."""
    job = Job()
    for _ in job.steps(8):
        begin = job.at
        job.python(800_000)
        job.launch("gemm", PRODUCT_NS)
        job.built.operator(operator, at=begin, lasts=job.at - begin)
        job.wait()
    found = found_in(job.built)
    assert ("host.python" in found) is named
    if named:
        is_worth(found["host.python"], job.step_ns / (job.step_ns - 800_000))


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(training(30_000), id="as between any two operators"),
        pytest.param(training(800_000, marked="evaluate"), id="evaluation"),
        pytest.param(training(800_000, marked="wandb.log"), id="logging"),
        pytest.param(
            training(800_000, marked="enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"), id="input"
        ),
        pytest.param(training(800_000, queued=True), id="hidden behind queued work"),
    ],
)
def test_short_and_hidden_python_and_that_of_other_causes_are_none(job: Job) -> None:
    assert "host.python" not in found_in(job.built)


def pauses(at_operators: tuple[int, ...]) -> TraceBuilder:
    """Twelve steps of four different operators; in every third step a long pause, after one of the operators."""
    built = trace()
    at = 0
    for number in range(12):
        begin = at
        for place, name in enumerate(("aten::mm", "aten::add", "aten::relu", "aten::mul")):
            built.operator(name, at=at, lasts=20_000)
            built.launch("kernel", at=at + 5_000, call_lasts=5_000, runs_at=at + 12_000, lasts=400_000)
            at += 430_000
            if number % 3 == 1 and place == at_operators[number // 3]:
                at += 3_000_000
        built.step(number, at=begin, lasts=at - begin)
    return built


def test_a_pause_that_nothing_names_is_told_with_all_that_it_may_be() -> None:
    """Without Python stacks a collection, Python and logging look alike: the pause is told,
    and what would tell more.
    """
    findings = found_in(pauses((0, 2, 1, 3)))
    assert set(findings) == {"host.python"}
    pause = findings["host.python"]
    assert pause.confidence == pytest.approx(
        0.925, abs=0.006
    )  # half the doubt, as it was right on seeds that no rule was made on
    assert pause.could_be == ["host.gc", "episodic.logging", "episodic.checkpoint"]
    assert pause.remedy is not None
    assert "Python stacks" in pause.remedy.text
    assert pause.missing_signals == ["Python stacks"]
    assert pause.gain is not None
    assert pause.gain.floor > 1.2
    assert pause.attributed_ns_per_step == pytest.approx(4 * 3_400_000 / 12, rel=0.05)
    assert pause.title.endswith("in 4 of 12 steps the host is at something long that no event names")
    assert {one.what: one.value for one in pause.evidence}["times in the recording"] == 4


def now_and_then(*, stacks: bool) -> Job:
    """Eighteen steps with an annotated backward pass, of which every third holds 5 ms of Python."""
    job = Job()
    for number in job.steps(18):
        begin = job.at
        with job.marked("## backward ##"):
            job.operator("aten::mm", "gemm", 1_000_000)
            if number % 3 == 1:
                job.python(5_000_000)
            job.operator("aten::mm", "gemm", 1_000_000)
            job.wait()
        if stacks:
            job.built.python("train.py(40): step", at=begin, lasts=job.at - begin)
    return job


@pytest.mark.parametrize("stacks", [False, True])
def test_a_pause_in_an_annotation_that_every_step_has_is_told_with_it(*, stacks: bool) -> None:
    """A backward pass is what each step has: that it is marked does not say what takes long in some."""
    found = found_in(now_and_then(stacks=stacks).built)["host.python"]
    assert found.title.endswith("within ## backward ##")
    assert found.could_be == (["host.gc"] if stacks else ["host.gc", "episodic.logging", "episodic.checkpoint"])
    assert [place.file for place in found.code] == (["train.py"] if stacks else [])
    # The first product runs beside it: 4 of the 5 ms are waited for.
    is_worth(found, (2_020_000 + 4_000_000 / 3) / 2_020_000, within=0.03)


@pytest.mark.parametrize("named", ["annotation", "other thread"])
def test_a_pause_in_which_something_else_runs_is_not_silent(named: str) -> None:
    """An annotation around it, or a call that another thread waits in, names what goes on."""
    built = pauses((0, 2, 1, 3))
    for begin in range(0, 40_000_000, 100_000):
        if named == "annotation":
            built.annotation("Stage::merge", at=begin, lasts=99_000)
        else:
            built.runtime("synchronizeStream", at=begin, lasts=99_000, thread=300)
    assert "host.python" not in {one for one, finding in told_of(built).items() if "no event names" in finding.title}


def on_a_cpu(python_ns: int, *, function: str | None = None) -> TraceBuilder:
    """Steps of a job without an accelerator: an operator of 1 ms, then Python."""
    built = trace()
    for number in range(5):
        begin = number * (1_000_000 + python_ns)
        built.step(number, at=begin, lasts=1_000_000 + python_ns)
        built.operator("aten::mm", at=begin, lasts=1_000_000)
        if function:
            built.python(function, at=begin + 1_000_000, lasts=python_ns)
    return built


@pytest.mark.parametrize("function", [None, "train.py(7): heavy"])
def test_heavy_python_of_a_job_without_an_accelerator_is_named(function: str | None) -> None:
    report = whystall.analyze(on_a_cpu(4_000_000, function=function).load())
    assert report.verdict.cause == "host.python"
    [found] = [one for one in report.findings if one.severity != "info"]
    assert found.gain is not None
    assert found.gain.floor <= 5.0 <= found.gain.ceiling
    assert [place.symbol for place in found.code] == (["heavy"] if function else [])
    assert found.could_be == ([] if function else ["host.gc", "episodic.logging"])


def test_short_python_of_a_job_without_an_accelerator_is_no_cause() -> None:
    assert whystall.analyze(on_a_cpu(50_000).load()).verdict.summary.startswith("Nothing was found")


def test_the_optimizer_is_not_counted_as_python_of_a_job_without_an_accelerator() -> None:
    built = on_a_cpu(4_000_000)
    for number in range(5):
        built.annotation("Optimizer.step#SGD.step", at=number * 5_000_000 + 1_000_000, lasts=4_000_000)
    assert "host.python" not in told_of(built)


def test_samples_of_the_whole_run_go_before_python_of_a_trace() -> None:
    case = case_of(on_a_cpu(4_000_000))
    sampled: Any = SimpleNamespace(rank=0, measured=20)
    assert list(python.in_trace_of_a_cpu(case))
    assert not list(python.in_trace_of_a_cpu(replace(case, runs=(sampled,))))


@pytest.mark.parametrize(
    ("share", "lines", "functions", "fires"),
    [
        (0.08, 8, 4, False),  # as in a healthy agent's loop
        (0.08, 2, 2, True),  # half of it in one line
        (0.08, 8, 1, True),  # all of it in one function
        (0.2, 8, 4, True),  # much is much
    ],
)
def test_a_little_python_in_each_of_many_lines_is_none(
    share: float, lines: int, functions: int, *, fires: bool
) -> None:
    places = [
        msgspec.structs.replace(line(share / lines, f"a{at} = f()", at=at + 1), function=f"f{at % functions}")
        for at in range(lines)
    ]
    found = found_in_runs(run(shares={"other": share}, places=places))
    assert ("host.python" in found) is fires


@pytest.mark.parametrize(("functions", "computing", "fires"), [(8, 0.8, False), (1, 0.8, True), (8, 0.0, True)])
def test_of_a_librarys_call_that_runs_the_step_its_functions_count(
    functions: int, computing: float, *, fires: bool
) -> None:
    """Generation in one line: a little in each of the library's functions is no more to act on than a loop's lines."""
    text, share = "tokens = model.generate(prompt)", 0.08
    places = [line(share / 8, text, leaf=f"library.generation:f{at % functions}") for at in range(8)]
    if computing:
        places.append(line(computing, text, part="forward", leaf="torch.nn.modules.linear:forward"))
    found = found_in_runs(run(shares={"other": share, "forward": computing}, places=places))
    assert ("host.python" in found) is fires


@pytest.mark.parametrize(("torchs", "fires"), [("torch.nn.modules.linear:forward", False), ("numpy.linalg:eig", True)])
def test_a_models_functions_outside_of_the_passes_that_learn_are_python_as_far_as_a_recording_shows_it(
    torchs: str, *, fires: bool
) -> None:
    """A reference runs under no_grad, through a library's layers: these call operators, and no recording is there."""
    text = "scores = reference(ids)"
    places = [line(0.15, text, leaf="library.models.llama:forward"), line(0.15, text, leaf=torchs)]
    found = found_in_runs(run(shares={"other": 0.3, "forward": 0.7}, places=places))
    assert ("host.python" in found) is fires


@pytest.mark.parametrize(("share", "fires"), [(0.2, True), (0.015, False)])
def test_lines_of_the_user_between_the_parts_of_a_step(share: float, *, fires: bool) -> None:
    found = found_in_runs(run(shares={"other": share + 0.02}, places=[line(share, "total += token")]))
    assert list(found) == (["host.python"] if fires else [])


def test_python_is_as_long_as_the_clock_says_and_not_as_the_looks_happen_to_fall() -> None:
    """The clock gives 20 % to what is no named part; nine of ten looks at it found the user's Python."""
    looks = [
        line(0.18, "total += token"),
        line(0.02, "loss.backward()", leaf="torch.autograd:_engine"),
        line(0.8, part="forward"),
    ]
    gain = found_in_runs(run(shares={"other": 0.2, "forward": 0.245}, places=looks))["host.python"].gain
    assert gain is not None
    assert gain.expected == pytest.approx(1 / (1 - 0.18), rel=0.01)
    held = [line(0.1, "total += token"), line(0.08, "optimizer.zero_grad()", leaf=BEFORE), *looks[1:]]
    found = found_in_runs(run(shares={"other": 0.2, "forward": 0.245}, places=held))["host.python"]
    assert found.gain == gain
    assert [where.symbol for where in found.code] == ["total += token"]


def test_a_line_in_a_call_is_python_as_far_as_a_recording_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators of torch's that the loop calls itself are found at the user's line, as a pause would be."""
    looks = [line(0.6, "x = torch.randn(1000, 1000)", leaf=CALLED), line(0.1, "total += token")]
    sampled = run(shares={"other": 0.7, "forward": 0.1, "backward": 0.1}, places=looks)
    for recorded, share in ((0.0, 0.1), (0.4, 0.4), (0.9, 0.7)):
        monkeypatch.setattr(python, "_recorded_python", lambda *_, found=recorded, **__: found)
        found = found_in_runs(sampled)["host.python"]
        assert found.gain is not None
        assert found.gain.expected == pytest.approx(1 / (1 - share), rel=0.01)
        assert [where.symbol for where in found.code][-1] == "total += token"


def test_a_hook_that_fills_a_ranks_backward_pass_is_its_own_where_others_are_only_found_waiting() -> None:
    """One rank is nearly always found in its hook, the other nearly always in the backward pass, where it waits."""
    engine = "torch.autograd.graph:_engine_run_backward"
    waits = line(0.94, "loss.backward()", part="backward", leaf=engine, at=99)
    hook = line(0.94, "time.sleep(HOOK_S)", part="backward", leaf="(a call)", at=63)
    short = line(0.02, "loss.backward()", part="backward", leaf=engine, at=99)
    shares = {"backward": 0.95, "forward": 0.03, "optimizer": 0.01, "other": 0.01}
    runs = [
        run(rank=0, shares=shares, places=[waits], on_cpu_share=0.2),
        run(rank=1, shares=shares, places=[hook, short], on_cpu_share=0.2),
    ]
    assert found_in_runs(*runs, processes=2)["host.python"].scope.ranks == [1]


@pytest.mark.parametrize(
    ("leaf", "fires"),
    [
        ("torch.serialization:_load", True),  # a file of tensors is read in each step
        ("torch._weights_only_unpickler:load", True),
        ("torch._tensor:__deepcopy__", True),  # weights are copied
        ("torch._utils:_rebuild_tensor_v2", True),
        ("torch.nn.modules.linear:forward", False),
        ("torch._tensor:backward", False),
    ],
)
def test_what_torch_does_in_python_for_files_and_copies_is_the_jobs(leaf: str, *, fires: bool) -> None:
    found = found_in_runs(run(shares={"other": 0.25}, places=[line(0.24, "shard = torch.load(path)", leaf=leaf)]))
    assert ("host.python" in found) is fires


@pytest.mark.parametrize(
    ("leaf", "fires"),
    [
        ("__main__:mel_filterbank", True),
        ("project.train:mel_filterbank", True),
        ("transformers.pytorch_utils:mel_filterbank", False),  # a module of a library's, of the same name
        (CALLED, False),  # an operator of torch's, that the line calls
        (BEFORE, False),  # short: what a module does in Python before it
        ("torch.nn.modules.conv:_conv_forward", False),
        ("numpy.fft:rfft", False),  # another library's code, in an operator of the user's perhaps
    ],
)
def test_a_function_that_is_found_running_in_the_forward_pass_is_python(leaf: str, *, fires: bool) -> None:
    """A table that is made by loops in each forward pass (1.68 by hand, 1.02 told of its neighbours)."""
    loops = line(0.3, "bank[m][k] = k - left", part="forward", leaf=leaf, at=35)
    places = [
        msgspec.structs.replace(loops, function="mel_filterbank"),
        line(0.4, part="forward", at=53),
        line(0.3, part="backward", at=9),
    ]
    found = found_in_runs(run(shares={"forward": 0.7, "backward": 0.3, "other": 0.0}, places=places))
    assert ("host.python" in found) is fires
    if fires:
        finding = found["host.python"]
        is_worth(finding, 1 / (1 - 0.3))
        assert [one.line for one in finding.code] == [35]
        assert "in its passes or its optimizer's step" in finding.evidence[0].what


@pytest.mark.parametrize(
    ("leaf", "recorded", "share"),
    [
        ("numpy.lib._function_base_impl:percentile", 0.4, 0.3),
        ("numpy.lib._function_base_impl:percentile", 0.2, 0.2),  # the recording shows less of it
        ("numpy.lib._function_base_impl:percentile", 0.0, 0.0),  # it shows operators all the time
        ("torch.nn.modules.conv:_conv_forward", 0.4, 0.0),
        ("wandb.sdk.wandb_run:_log", 0.4, 0.0),  # logging has a cause of its own
    ],
)
@pytest.mark.parametrize("part", ["forward", "optimizer"])  # a closure's end counts as the optimizer's
def test_what_a_hook_computes_outside_of_torch_holds_the_pass_up(
    leaf: str, recorded: float, share: float, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python, "_recorded_python", lambda _case, _run, lines, **_: recorded if lines else 0.0)
    hook = line(0.3, "low, high = np.percentile(values, [1, 99])", part=part, leaf=leaf, at=48)
    places = [hook, line(0.4, part="forward", at=25), line(0.3, part="backward", at=78)]
    shares = {"forward": 0.4, "backward": 0.3, "optimizer": 0.0, "other": 0.0}
    found = found_in_runs(run(shares={**shares, part: shares[part] + 0.3}, places=places))
    assert ("host.python" in found) is (share > 0)
    if share:
        finding = found["host.python"]
        is_worth(finding, 1 / (1 - share))
        assert [one.line for one in finding.code] == [48]
        assert finding.remedy is not None
        assert "only observes the forward or backward pass" in finding.remedy.text


@pytest.mark.parametrize(("pause_ns", "found"), [(400_000, 0.4 / 2.4), (150_000, 0.0)])
def test_the_end_of_a_step_is_no_call(pause_ns: int, found: float) -> None:
    """A healthy service was told Python, 1.09: the pauses in which its requests end, and are marked."""
    job = Job()
    for _ in job.steps(8):
        with job.inside("aten::mm", **{"Input Dims": [[64]], "Input type": ["float"]}):  # type: ignore[arg-type]
            job.python(2_000_000)
        job.python(pause_ns)
    sampled = run(total_ns=100 * (2_000_000 + pause_ns))
    share = python._recorded_python(replace(case_of(job.built), runs=(sampled,)), sampled, [])
    assert share == pytest.approx(found, abs=0.01)


@pytest.mark.parametrize(
    ("own", "of_torch", "share"),
    [
        (4, 0, 1.0),
        (4, 4, 5 / 9),
        (
            0,
            2,
            1 / 3,
        ),  # two looks are little, and say what they say: a teacher's memory given back was told Python, 1.10
        (0, 0, 1.0),  # nobody looked
    ],
)
def test_recorded_python_of_torchs_own_is_not_that_of_a_line_that_calls_operators(
    own: int, of_torch: int, share: float
) -> None:
    """A job under ``torch.func`` was told 1.22 at a line of large operators: the Python was another line's."""
    job, at = Job(), []
    for _ in job.steps(8):
        with job.inside("aten::mm", **{"Input Dims": [[64]], "Input type": ["float"]}):  # type: ignore[arg-type]
            job.python(2_000_000)
        at.append(EPOCH_NS + job.at + 100_000)
        job.python(400_000)
    seen = (
        WindowPlace("train.py", 1, "main", "x = f()", "__main__:main", at[2 : 2 + own]),
        WindowPlace("train.py", 2, "main", "y = g(x)", "torch._functorch.vmap:wrapped", at[2 : 2 + of_torch]),
    )
    lines = [line(0.3, at=1), line(0.3, at=2)]
    sampled = run(total_ns=100 * 2_400_000)
    case = case_of(job.built, facts=RunFacts(observed={0: Observations(in_windows=seen)}))
    found = python._recorded_python(replace(case, runs=(sampled,)), sampled, lines)
    assert found == pytest.approx(share * 0.4 / 2.4, abs=0.002)
    seen_there = own / max(own + of_torch, 1)  # a model's lines, which are to be found there
    found = python._recorded_python(replace(case, runs=(sampled,)), sampled, lines, unseen=0)
    assert found == pytest.approx(seen_there * 0.4 / 2.4, abs=0.002)


@pytest.mark.parametrize(("pauses", "found"), [(1, (4 - 4 / 20) / 6), (20, 0.0)])
def test_short_pauses_that_a_profiler_makes_longer_are_no_python(pauses: int, found: float) -> None:
    """Twenty operators of 0.3 ms and 4 ms of pauses in recorded steps of 10 ms; others take 6 ms.

    Of the 4 ms that a recorded step is longer each pause is taken to have a twentieth: of one that is little, of twenty
    it is all.
    """
    job = Job()
    for _ in job.steps(8):
        for number in range(20):
            with job.inside("aten::mul", **{"Input Dims": [[64]], "Input type": ["float"]}):  # type: ignore[arg-type]
                job.python(300_000)
            if number < pauses:
                job.python(4_000_000 // pauses)
    sampled = run(total_ns=100 * 6_000_000)
    share = python._recorded_python(replace(case_of(job.built), runs=(sampled,)), sampled, [])
    assert share == pytest.approx(found, abs=0.01)
    assert type(share) is float  # the report is written with it


@pytest.mark.parametrize(
    ("text", "leaf", "in_patch"),
    [
        ("states = torch.tensor(rows)", "__main__:sample", "torch.from_numpy(np.stack(rows))"),
        ("states = torch.FloatTensor([r.state for r in rows])", BEFORE, "torch.from_numpy(np.stack(rows))"),
        ("picture = picture.resize((64, 64))", "PIL.Image:resize", "np.asarray(Image.open(path)"),
        ("picture.save(out, format='PNG', optimize=True)", "PIL.ImageFile:_encode_tile", "compress_level=1"),
        ("grid = np.load(paths[year])", "numpy.lib._npyio_impl:load", "mmap_mode"),
        ("with zipfile.ZipFile(path) as archive:", "zipfile:_RealGetContents", "mmap_mode"),
        ("row = np.histogram(values)[0].tolist()", "numpy.lib._histograms_impl:_unsigned_subtract", None),
        ("weights = torch.load_balanced(rows)", "__main__:step", None),
        ("shadow = copy.deepcopy(model)", "copy:_reconstruct", "torch._foreach_lerp_"),
        ("body = json.dumps(answer)", "json.encoder:iterencode", "tobytes()"),
        ("items.append(inbox.get(timeout=left))", "threading:wait", "get_nowait()"),
        ("fcntl.flock(self.handle, MODE)", BEFORE, "LOCK_SH"),
        ("with FileLock(path):", "filelock._api:acquire", "LOCK_SH"),
        ("self._lock.acquire()", BEFORE, None),
        ("with open_block(path):", "__main__:step", None),
        ("time.sleep(0.01)", "__main__:pace", "get_nowait()"),
        ("rows = rng.choice(len(p), size, p=p)", "__main__:draw", "np.searchsorted(sums"),
        ("rows = random.choices(rows, weights=odds, k=32)", "random:choices", "np.searchsorted(sums"),
        ("rows = rng.choice(len(x), size)", "__main__:draw", None),
        ("weights = self.table.get(key)", "__main__:lookup", None),
        ("batch = torch.stack([cut(row) for row in rows])", "__main__:cut", None),
        ("x = tensor(rows)", "__main__:pillow", None),
    ],
)
def test_what_to_do_about_python_depends_on_what_it_does(text: str, leaf: str, in_patch: str | None) -> None:
    places = [line(0.3, text, leaf=leaf), line(0.1, "y = g()", at=8), line(0.6, part="backward", at=9)]
    remedy = found_in_runs(run(places=places, shares={"other": 0.4, "backward": 0.6}))["host.python"].remedy
    assert remedy is not None
    if in_patch is None:
        assert remedy.patch is None
    else:
        assert in_patch in (remedy.patch or "")


@pytest.mark.parametrize(("share", "locked"), [(0.12, True), (0.04, False)])
def test_a_lock_need_not_be_most_of_it(share: float, *, locked: bool) -> None:
    """What others do under it is waited for as well."""
    places = [line(0.4 - share, "rows = sample(graph)"), line(share, "fcntl.flock(handle, MODE)", leaf=BEFORE, at=8)]
    sampled = run(places=[*places, line(0.6, part="backward", at=9)], shares={"other": 0.4, "backward": 0.6})
    remedy = found_in_runs(sampled)["host.python"].remedy
    assert remedy is not None
    assert ("LOCK_SH" in (remedy.patch or "")) is locked


@pytest.mark.parametrize(("text", "told"), [("dist.scatter_object_list(mine, parts)", False), ("shuffle(rows)", True)])
def test_pickling_of_what_ranks_exchange_is_told_once(text: str, *, told: bool) -> None:
    """The exchange of objects has a cause of its own, with the Python in it."""
    places = [line(0.3, text, leaf=BEFORE), line(0.1, text, leaf="torch.distributed.distributed_c10d:scatter")]
    runs = [
        run(rank=rank, places=[*places, line(0.6, part="backward", at=9)], shares={"other": 0.4, "backward": 0.6})
        for rank in (0, 1)
    ]
    found = found_in_runs(*runs)
    assert ("host.python" in found) is told
    assert ("communication.small-messages" in found) is not told


def test_what_a_line_calls_outside_of_torch_is_no_python_to_vectorise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python, "_recorded_python", lambda *_, **__: 0.3)
    places = [line(0.3, "x = counts[:, rows].T", leaf=CALLED), line(0.1, "y = g()", at=8), line(0.6, part="backward")]
    remedy = found_in_runs(run(places=places, shares={"other": 0.4, "backward": 0.6}))["host.python"].remedy
    assert remedy is not None
    assert "in the order in which it is read" in remedy.text


def test_lines_behind_which_python_ended_are_told_where_most_was_found_there() -> None:
    """What holds the lock to its end is found at the line after it (a conversion of a table's column)."""
    places = [line(0.3, "y = torch.stack(x)", leaf=BEFORE, at=8), line(0.1), line(0.6, part="backward", at=9)]
    found = found_in_runs(run(places=places, shares={"other": 0.4, "backward": 0.6}))["host.python"]
    assert [one.line for one in found.code] == [8, 7]


def test_a_job_without_a_device_is_told_of_none() -> None:
    finding = found_in_runs(run(shares={"other": 0.4}, places=[line(0.4)]))["host.python"]
    assert finding.remedy is not None
    assert "device" not in f"{finding.title} {finding.remedy.text} {finding.verify.expect if finding.verify else ''}"


def test_what_no_recording_backs_is_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of a library's, found in its forward pass: its operators are torch's, and Python is elsewhere."""
    monkeypatch.setattr(python, "_recorded_python", lambda *_, **__: 0.0)
    model = line(0.34, "out = model(**batch)", part="forward", leaf="transformers.pytorch_utils:forward", at=3)
    places = [model, line(0.1, "score = bleu(words)", leaf="__main__:bleu", at=8), line(0.56, part="backward", at=9)]
    found = found_in_runs(run(places=places, shares={"other": 0.1, "forward": 0.34, "backward": 0.56}))["host.python"]
    assert [one.line for one in found.code] == [8]
    assert found.evidence[0].value == pytest.approx(0.1)
    assert "between the parts" in found.evidence[0].what


def test_the_functions_that_cost_most_are_told() -> None:
    """What a library's call is at, where the user's line says nothing."""
    places = [
        line(0.22, "agent.learn()", leaf="pandas.core.nanops:nanvar"),
        line(0.1, "agent.learn()", leaf="pyarrow.compute:take"),
        line(0.02, "agent.learn()", leaf="random:choice"),  # little
        line(0.06, "agent.learn()", leaf="queue:get"),  # a wait
        line(0.6, part="backward", at=9),
    ]
    found = found_in_runs(run(places=places, shares={"other": 0.4, "backward": 0.6}))["host.python"]
    told = next(one.value for one in found.evidence if one.what == "the costliest functions in it")
    assert told == "nanvar of pandas (55%), take of pyarrow (25%)"
    assert found.remedy is not None
    assert "as NumPy arrays, and slice these" in found.remedy.text


def followed(between_ns: list[int]) -> TraceBuilder:
    """Eight steps of two products behind calls of Python, each of 1 us and so long after the one before."""
    job = Job()
    for _ in job.steps(8):
        begin = job.at
        for pause in between_ns:
            job.python(pause)
            job.built.python("<built-in method get of dict object>", at=job.at, lasts=1_000)
            job.python(1_000)
        job.built.python("train.py(75): look_up", at=begin, lasts=job.at - begin)
        for _ in range(2):
            job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.wait()
    return job.built


@pytest.mark.parametrize("pause_ns", [2_000, 19_000])
def test_calls_that_all_take_as_long_may_be_the_profilers_own_cost(pause_ns: int) -> None:
    """1,200 calls alike: what follows each costs as much, and nobody knows what is left without it."""
    told = told_of(followed([pause_ns] * 1_200))["host.python"]
    assert told.severity == "info"
    assert told.remedy is None
    assert "not known" in told.title
    assert "host.python" not in found_in(followed([pause_ns] * 1_200))


@pytest.mark.parametrize(
    "between_ns",
    [
        pytest.param([1_000] * 300 + [12_000] * 300, id="half of the calls do work of their own"),
        pytest.param([1_000] * 1_200 + [8_000_000], id="most of it lies in no call that was followed"),
        pytest.param([200_000] * 40, id="calls that are far apart"),
    ],
)
def test_calls_that_differ_do_work_of_their_own(between_ns: list[int]) -> None:
    finding = found_in(followed(between_ns))["host.python"]
    python_ns = sum(between_ns) + 1_000 * len(between_ns)
    assert finding.gain is not None
    assert finding.gain.expected == pytest.approx((2 * PRODUCT_NS + python_ns) / (2 * PRODUCT_NS), rel=0.1)


def answering(*, within: bool, mark: str = "") -> Job:
    """Eight batches of a model that only answers, with a long stretch of Python in its pass, or before it."""
    job = Job()
    for _ in job.steps(8):
        with job.marked(mark or "answer"):
            if not within:
                job.python(800_000)
            with job.module("Model_0"):
                job.operator("aten::mm", "gemm", PRODUCT_NS)
                job.wait()
                if within:
                    job.python(800_000)
                job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("within", "mark", "remedy"),
    [
        (True, "", "model"),
        (False, "", "when_inference"),
        (True, "gpu_model_runner: forward", "served_model"),
        (False, "gpu_model_runner: forward", "when_serving"),
    ],
)
def test_python_of_a_model_that_answers_is_told_from_python_between_batches(
    within: bool, mark: str, remedy: str
) -> None:
    finding = found_in(answering(within=within, mark=mark).built)["host.python"]
    assert finding.remedy == python.CAUSE.remedies[remedy]
