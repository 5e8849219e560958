"""input.synchronous-loader: batches made on the training thread fire it, in traces and samples;
small and hidden ones do not.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
import pytest
from tests.diagnosis.cases import case_of, found_in, found_in_runs, line, loader, run, told_of
from tests.diagnosis.jobs import Job, is_worth, shaped

from whystall.analysis.run_results import SampledLine
from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.finding import Finding
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.run_facts import RunFacts
from whystall.testing import TraceBuilder, trace

STEP_NS: Final = 1_000_000
TORCH: Final = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def training(fetch_ns: int, name: str = TORCH, *, api: str = "cuda", queued: bool = False) -> Job:
    """Eight steps of a fetch and a product of 1 ms, before which another may have been launched."""
    job = Job(api=api)
    for _ in job.steps(8):
        if queued:
            job.operator("aten::mm", "gemm", 2 * fetch_ns)
        with job.marked(name):
            job.python(fetch_ns)
        job.operator("aten::mm", "gemm", STEP_NS)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("name", "api"),
    [
        (TORCH, "cuda"),
        (TORCH, "hip"),
        ("enumerate(DataLoader)#_StatefulSingleProcessDataLoaderIter.__next__", "cuda"),  # torchdata, torchtitan
    ],
)
def test_a_fetch_is_worth_its_time(name: str, api: str) -> None:
    job = training(500_000, name, api=api)
    finding = found_in(job.built)["input.synchronous-loader"]
    is_worth(finding, job.step_ns / (job.step_ns - 500_000))
    assert finding.severity == "critical"
    assert finding.attributed_ns_per_step == pytest.approx(500_000, rel=0.01)


def test_what_workers_cannot_make_in_a_step_is_still_waited_for() -> None:
    """Batches of 9 ms beside a step of 1 ms, on three cores: two workers make one in 4.5 ms."""
    job = training(9_000_000)
    finding = found_in(job.built, facts=RunFacts(cores=3))["input.synchronous-loader"]
    assert finding.gain is not None
    assert finding.gain.expected == pytest.approx(job.step_ns / 4_500_000, rel=0.05)


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (training(15_000), False),  # below two per cent
        (training(500_000, "Optimizer.zero_grad#AdamW.zero_grad"), False),
        (training(500_000, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"), False),
        (training(500_000, queued=True), True),
    ],
)
def test_short_and_hidden_fetches_and_other_loaders_are_none(job: Job, *, told: bool) -> None:
    assert "input.synchronous-loader" not in found_in(job.built)
    if told:
        assert "leave it" in told_of(job.built)["input.synchronous-loader"].title


@pytest.mark.parametrize(("share", "fires"), [(0.3, True), (0.015, False)])
def test_input_on_the_training_thread(share: float, *, fires: bool) -> None:
    found = found_in_runs(run(shares={"input": share}, on_cpu_share=1 - share), **loader(0))
    assert ("input.synchronous-loader" in found) is fires
    if fires:
        gain = found["input.synchronous-loader"].gain
        assert gain is not None
        assert gain.floor <= 1 / (1 - share) <= gain.ceiling


@pytest.mark.parametrize(
    ("text", "leaf", "told"),
    [
        ("mels = torch.tensor(rows)", "__main__:__getitem__", "Making tensors of lists"),
        ("picture = open_image(path)", "PIL.Image:resize", "Decoding and resizing"),
        ("grid = np.load(self.paths[year])", "numpy.lib._format_impl:read_array", "Reading whole files"),
        ("row = self.table.iloc[index]", "pandas.core.indexing:__getitem__", "Taking rows out of a table"),
        (
            "ids = self.tok(self.df.iloc[i])",
            "transformers.tokenization_utils_fast:_encode_plus",
            "Tokenizing takes most",
        ),
        (
            "row = self.data[index]",
            "datasets.formatting.torch_formatter:format_row",
            "Making a batch mostly takes format_row",
        ),
        ("ids = self.tokenizer(text)", "tokenizers:encode", "Tokenizing takes most"),
        ("row = self.data[index]", "datasets.formatting.formatting:_row", "Making Python objects of a table's rows"),
        ("for data in loader:", "numpy.linalg._linalg:eig", "Making a batch mostly takes eig of numpy"),
        ("noise = augment(rows)", "torch.functional:stft", None),
    ],
)
def test_what_would_make_a_batch_cheaper_is_told_beside_workers(text: str, leaf: str, told: str | None) -> None:
    places = [line(0.5, text, part="input", leaf=leaf), line(0.5, part="backward", at=9)]
    found = found_in_runs(run(shares={"input": 0.5}, on_cpu_share=0.9, places=places), **loader(0))
    remedy = found["input.synchronous-loader"].remedy
    assert remedy is not None
    assert "Give the loader workers" in remedy.text
    assert told is None or remedy.text.startswith(told)
    assert (told is None) == remedy.text.startswith("Give")


def test_reading_less_goes_before_a_worker_that_takes_trainings_core() -> None:
    """A year was read for five frames of it: 0.39 of a step, which was 2.79 times as fast with a map of it."""
    places = [
        line(0.37, "grid = np.load(self.paths[year])", part="input", leaf="numpy.lib._format_impl:read_array"),
        line(0.5, part="backward", at=9),
    ]
    facts: dict[str, Any] = {"cores": 2, "threads": 2, "loaders": ({"workers": 0},)}
    sampled = run(shares={"input": 0.39, "backward": 0.61}, on_cpu_share=0.93, places=places)
    found = found_in_runs(sampled, **facts)["input.synchronous-loader"]
    assert found.remedy is not None
    assert found.remedy.patch is not None
    assert "mmap_mode" in found.remedy.patch
    assert found.gain is not None
    assert found.gain.floor < 1.1 < found.gain.expected < found.gain.ceiling


@pytest.mark.parametrize(("lines", "told"), [(1, "one line most of that"), (6, "at the lines below")])
def test_batches_that_fill_the_step_are_told_though_workers_cannot_help(lines: int, told: str) -> None:
    """Two cores: a worker hides the tenth of a step that training takes; without the line it is 9.42 times as fast."""
    share = 0.9 / lines
    places = [line(share, f"unseen = listed{at}(user)", part="input", leaf="__main__:f", at=at) for at in range(lines)]
    facts: dict[str, Any] = {"cores": 2, "threads": 2, "loaders": ({"workers": 0},)}
    sampled = run(shares={"input": 0.9, "backward": 0.1}, on_cpu_share=0.97, places=places)
    found = found_in_runs(sampled, **facts)["input.synchronous-loader"]
    assert found.severity in {"critical", "major"}
    assert found.remedy is not None
    assert told in found.remedy.text
    assert found.gain is not None
    assert found.gain.ceiling > 9


@pytest.mark.parametrize(
    ("lines", "elsewhere", "told"),
    [
        pytest.param([0.26, 0.02], 0.0, True, id="one line of what makes a sample"),
        pytest.param([0.26, 0.02], 0.01, True, id="a look of which was counted elsewhere"),
        pytest.param([0.14, 0.14], 0.0, False, id="two lines"),
        pytest.param([0.26, 0.02], 0.4, False, id="the line that runs the loop"),
        pytest.param([0.11, 0.01], 0.0, False, id="a tenth of the step"),
    ],
)
def test_one_line_that_takes_a_fourth_of_the_step_is_told_though_workers_cannot_help(
    lines: list[float], elsewhere: float, *, told: bool
) -> None:
    """The percentiles of a whole volume for a patch of it: 1.44 times as fast without; workers would take its cores."""
    made = sum(lines)
    places = [line(share, f"low{at} = np.percentile(volume)", part="input", at=at) for at, share in enumerate(lines)]
    if elsewhere:
        places.append(line(elsewhere, "low0 = np.percentile(volume)", part="backward", at=0))
    places.append(line(1 - made - elsewhere, part="backward", at=9))
    facts: dict[str, Any] = {"cores": 2, "threads": 2, "loaders": ({"workers": 0},)}
    sampled = run(shares={"input": made, "backward": 1 - made}, on_cpu_share=0.97, places=places)
    found = found_in_runs(sampled, **facts).get("input.synchronous-loader")
    cheaper = found is not None and found.remedy is not None and "one line most of that" in found.remedy.text
    assert cheaper is told
    if told:
        assert found is not None
        assert found.gain is not None
        assert found.gain.floor <= 1.1 < found.gain.expected < 1 / (1 - lines[0]) <= found.gain.ceiling


def test_rows_that_are_fetched_one_by_one_are_worth_indexing_at_once() -> None:
    """1024 rows of tensors in memory: with whole batches indexed at once such a step was 1.43 times as fast."""
    places = [
        line(0.07, "for x, y in loader:", part="input", leaf="torch.utils.data._utils.collate:collate_tensor_fn"),
        line(0.12, "for x, y in loader:", part="input", leaf="torch.utils.data._utils.fetch:<listcomp>"),
        line(0.1, "return self.x[i], self.y[i]", part="input", leaf="__main__:__getitem__", at=9),
    ]
    facts: dict[str, Any] = {"cores": 2, "threads": 2, "loaders": ({"workers": 0},)}
    sampled = run(shares={"input": 0.36, "backward": 0.64, "gc": 0.15}, on_cpu_share=0.97, places=places)
    found = found_in_runs(sampled, **facts)
    assert next(iter(found)) == "input.synchronous-loader"
    finding = found["input.synchronous-loader"]
    assert finding.remedy is not None
    assert "BatchSampler" in (finding.remedy.patch or "")
    assert finding.gain is not None
    assert finding.gain.floor <= 1.43 <= finding.gain.ceiling


SHUFFLES: Final = "torch.utils.data.sampler:__iter__"
BEGUN: Final = {"workers": 0, "epochs": 900, "taken": 900, "batches": 2000}


def begins(share: float, *, part: str = "input", leaf: str = SHUFFLES) -> SampledLine:
    return line(share, "x, y = next(iter(loader))", part=part, leaf=leaf, at=69)


@pytest.mark.parametrize(
    ("changed", "anew"),
    [
        ({}, True),
        ({"batches": None}, True),  # a stream
        ({"batches": 1}, False),  # all data in one batch: each is an epoch
        ({"taken": 9000}, False),  # a step goes through the whole loader
        ({"epochs": 30}, False),  # short epochs
        ({"epochs": 3, "taken": 3}, False),
        ({"taken": None}, False),  # recorded before it was counted
    ],
)
def test_a_loader_that_is_begun_for_each_batch_is_to_be_kept(changed: dict[str, Any], *, anew: bool) -> None:
    """Workers would be started for each batch; an iterator that was kept made such a step 2.34 times as fast."""
    places = [begins(0.2), line(0.18, "return x[i]", part="input", at=28), begins(0.14, part="other", leaf="main:main")]
    sampled = run(shares={"input": 0.39, "other": 0.16, "forward": 0.45}, on_cpu_share=0.9, places=places)
    sampled = msgspec.structs.replace(sampled, steps=930)
    told = found_in_runs(sampled, cores=8, threads=4, loaders=({**BEGUN, **changed},))
    found = told["input.synchronous-loader"]
    assert found.remedy is not None
    assert found.remedy.text.startswith("Keep one iterator") is anew
    assert ("host.python" in told) is not anew
    if anew:
        assert found.gain is not None
        assert found.gain.floor < 1 / (1 - 0.34) < found.gain.ceiling
        assert found.gain.expected == pytest.approx(1 / (1 - 0.34) / (1 - 0.15), rel=0.05)
        assert found.gain.ceiling >= 1 / (1 - 0.53)
        assert found.code[0].line == 69


def test_input_that_computes_gains_only_on_cores_that_are_free() -> None:
    """Two cores, both busy with training for 40 % of the time: one worker makes batches all the time, at best."""
    facts: dict[str, Any] = {"cores": 2, "threads": 2, "loaders": ({"workers": 0},)}
    found = found_in_runs(run(shares={"input": 0.6}, on_cpu_share=1.0), **facts)["input.synchronous-loader"]
    assert found.gain is not None
    assert found.gain.expected <= 1 / 0.6


def fed(operator_ns: int, times: int) -> TraceBuilder:
    """Eight steps on a CPU: 5 ms of a loader, and 5 ms of products."""
    built, at = trace(), 0
    for number in range(8):
        begin = at
        built.annotation(TORCH, at=at, lasts=5_000_000)
        at += 5_000_000
        for _ in range(times):
            built.operator("aten::mm", at=at, lasts=operator_ns, **shaped([512, 512], [512, 512]))
            at += operator_ns
        built.step(number, at=begin, lasts=at - begin)
    return built


@pytest.mark.parametrize(("threads", "patch"), [(2, "torch.set_num_threads(1)"), (1, "DataLoader(")])
def test_a_worker_has_a_core_for_itself_where_operators_are_short(threads: int, patch: str) -> None:
    """Products of 50 us run as fast on one thread: half of the step is hidden, but for what a worker costs."""
    found = sampled(fed(50_000, 100), threads=threads)["input.synchronous-loader"]
    assert found.gain is not None
    assert found.gain.floor <= 2 / 1.15 <= found.gain.ceiling
    assert found.remedy is not None
    assert (found.remedy.patch or "").startswith(patch)


def test_a_core_is_not_taken_from_operators_that_need_it() -> None:
    """Two products of 2.5 ms take 9 ms on one thread: a step with a worker is no shorter than the 10 ms before."""
    found = sampled(fed(2_500_000, 2), threads=2).get("input.synchronous-loader")
    assert found is None or found.gain is None or found.gain.expected < 1.2


def test_of_many_cores_workers_take_as_many_as_save_most() -> None:
    """Batches that take nearly all of a step, on 16 cores that training fills: not one thread beside 15 workers."""
    found = sampled(fed(2_500_000, 2), threads=16, cores=16, made=0.97)["input.synchronous-loader"]
    assert found.gain is not None
    assert found.gain.expected > 5
    assert found.remedy is not None
    threads, workers = map(int, re.findall(r"num_(?:threads\(|workers=)(\d+)", found.remedy.patch or ""))
    assert threads > 1
    assert threads + workers <= 16


def sampled(built: TraceBuilder, threads: int, cores: int = 2, made: float = 0.5) -> dict[str, Finding]:
    """The findings of a job whose loader has no workers."""
    runs = [run(shares={"input": made, "forward": 1 - made}, on_cpu_share=1.0, other_cores=0.0)]
    facts = RunFacts(threads=threads, cores=cores, loaders=({"workers": 0},))
    told = diagnose(case_of(built, facts=facts, runs=runs), RULES)
    assert told.failures == []
    return {finding.id: finding for finding in told.findings if finding.severity != "info"}


def test_a_loader_that_waits_gains_as_much_as_the_workers_of_the_remedy_make() -> None:
    """Batches of 192 ms, all of it pauses, beside 6 ms of training: 16 workers make one in 12 ms."""
    shares = {"input": 192 / 198, "forward": 3 / 198, "backward": 2 / 198, "other": 1 / 198}
    found = found_in_runs(run(shares=shares, on_cpu_share=8 / 198), **loader(0))["input.synchronous-loader"]
    assert found.gain is not None
    assert found.gain.expected == pytest.approx(198 / 12, rel=0.05)
    assert found.remedy is not None
    assert "num_workers=16," in (found.remedy.patch or "")


@pytest.mark.parametrize(("fetch_ns", "workers"), [(500_000, 2), (3_200_000, 4), (4_050_000, 4), (6_000_000, 6)])
def test_the_remedy_has_the_workers_that_keep_up(fetch_ns: int, workers: int) -> None:
    """Beside a product of 1 ms: as many as make a batch in it."""
    remedy = found_in(training(fetch_ns).built, facts=RunFacts(cores=64))["input.synchronous-loader"].remedy
    assert remedy is not None
    assert f"num_workers={workers}," in (remedy.patch or "")


@pytest.mark.parametrize(("cores", "workers"), [(2, 1), (3, 2), (64, 6), (None, 4)])
def test_the_remedy_has_no_more_workers_than_cores_are_free(cores: int | None, workers: int) -> None:
    remedy = found_in(training(6_000_000).built, facts=RunFacts(cores=cores))["input.synchronous-loader"].remedy
    assert remedy is not None
    assert remedy.patch == f"DataLoader(..., num_workers={workers}, persistent_workers=True, pin_memory=True)"


def test_without_an_accelerator_nothing_is_pinned_and_workers_may_take_trainings_cores() -> None:
    crowded, roomy = (
        found_in_runs(run(shares={"input": 0.6}, on_cpu_share=0.9), cores=cores, threads=2, loaders=({"workers": 0},))[
            "input.synchronous-loader"
        ].remedy
        for cores in (2, 16)
    )
    assert crowded is not None
    assert roomy is not None
    assert (crowded.patch or "").splitlines() == [
        "torch.set_num_threads(1)  # cores for the workers",
        "DataLoader(..., num_workers=1, persistent_workers=True)",
    ]
    assert "slower than before" in (crowded.risk or "")
    assert roomy.patch == "DataLoader(..., num_workers=2, persistent_workers=True)"
    assert "slower than before" not in (roomy.risk or "")


@pytest.mark.parametrize(
    ("others", "cores", "warned"), [(1.1, 2, True), (0.1, 2, False), (None, 2, False), (1.1, 8, False)]
)
def test_beside_other_programs_a_worker_may_bring_nothing_and_the_remedy_says_so(
    others: float | None, cores: int, *, warned: bool
) -> None:
    sampled = run(shares={"input": 0.4}, other_cores=others)
    found = found_in_runs(sampled, cores=cores, threads=1, loaders=({"workers": 0},))
    remedy = found["input.synchronous-loader"].remedy
    assert remedy is not None
    assert ("Other programs used" in (remedy.risk or "")) is warned
