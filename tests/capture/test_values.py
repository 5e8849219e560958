"""The window in which torch's observer writes which tensors operators are given, and the jobs that get none."""

from __future__ import annotations

import ctypes
import gzip
import json
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whystall.analysis.dataflow.chosen_calls import chosen_calls
from whystall.capture import values
from whystall.capture.values import ValuesWindow, unfit_in
from whystall.trace.readers.execution_trace import read_execution_trace

torch = pytest.importorskip("torch")
MILLISECOND = 1_000_000


@pytest.fixture(autouse=True)
def without_compiled_code(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another test of this process may have compiled something."""
    monkeypatch.setattr(values, "has_compiled", lambda: False)
    monkeypatch.setattr(values, "jobs_scope_is_left_open", lambda: False)
    yield
    for window in opened:
        window.close()
    opened.clear()


opened: list[ValuesWindow] = []


class Seen:
    """A window over the steps of a job, and the sentences that it leaves."""

    def __init__(self, folder: Path, held: Callable[[], list[object]] = list) -> None:
        self.notes: list[str] = []
        self.folder = folder
        self.window = ValuesWindow(torch, folder, held, self.notes.append)
        opened.append(self.window)

    def steps(self, step: Callable[[], object], count: int = 8, unfit: str | None = None) -> Seen:
        for _ in range(count):
            if not self.window.over:
                self.window.step_ended(MILLISECOND, 0, unfit)
            step()
        return self

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


def a_step() -> None:
    x = torch.ones(4, 4)
    (x @ x).relu()


def log_level() -> int:
    library = ctypes.CDLL("libc10.so", mode=os.RTLD_NOLOAD)
    return ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level").value


def test_three_whole_steps_are_recorded_and_nothing_else_is_left(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = log_level()
    seen = Seen(tmp_path).steps(a_step)
    assert (seen.window.file, seen.left, seen.notes) == ("rank0.values.json.gz", ["rank0.values.json.gz"], [])
    chosen = chosen_calls(read_execution_trace(tmp_path / "rank0.values.json.gz"))
    names = [(call.step, call.node.name) for call in chosen.calls if call.node.name in ("aten::mm", "aten::relu")]
    assert names == [(step, name) for step in range(3) for name in ("aten::mm", "aten::relu")]
    assert chosen.steps == 3
    assert log_level() == before
    assert capfd.readouterr().err == ""  # torch's observer logs its begin and its end by itself


def test_steps_are_marked_as_looked_at_from_the_begin_to_the_removal(tmp_path: Path) -> None:
    seen, looking = Seen(tmp_path), []

    def step() -> None:
        looking.append(seen.window.looking)
        a_step()

    seen.steps(step, 8)
    assert looking == [False, False, True, True, True, True, False, False]


def test_the_memory_that_modules_and_optimizers_hold_is_marked(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)
    model.kept = torch.ones(4)
    model.from_numpy = torch.from_numpy(torch.ones(4).numpy())
    model.of_all = torch.ones(4).share_memory_()
    model.replaced = torch.ones(4)
    model.register_buffer("counts", torch.ones(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.ones(1, 4))
        model.replaced = torch.ones(4)

    Seen(tmp_path, lambda: [model, optimizer]).steps(step)
    chosen = chosen_calls(read_execution_trace(tmp_path / "rank0.values.json.gz"))
    assert len(chosen.held) == 4  # weight, bias, kept, counts


@pytest.mark.parametrize(
    ("reads", "seen"),
    [(lambda x: x.tolist(), False), (lambda x: x.numpy(), False), (pickle.dumps, True), (np.from_dlpack, True)],
)
def test_reads_that_no_operator_shows_are_marked(tmp_path: Path, reads: Callable[[Any], object], *, seen: bool) -> None:
    codes = [getattr(torch.Tensor, name).__code__ for name in values._READS]
    Seen(tmp_path, lambda: [torch.nn.Linear(4, 4)]).steps(lambda: reads(torch.ones(4)))
    assert chosen_calls(read_execution_trace(tmp_path / "rank0.values.json.gz")).reads_unseen is seen
    assert [getattr(torch.Tensor, name).__code__ for name in values._READS] == codes


def test_random_numbers_and_results_are_those_of_an_unobserved_job(tmp_path: Path) -> None:
    def trained(seen: Seen | None) -> list[Any]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters())

        def step() -> None:
            optimizer.zero_grad()
            model(torch.randn(16, 8)).pow(2).mean().backward()
            optimizer.step()

        for _ in range(8):
            if seen is not None and not seen.window.over:
                seen.window.step_ended(MILLISECOND, 0, None)
            step()
        return [torch.get_rng_state(), *(one.detach() for one in model.parameters())]

    pairs = zip(trained(None), trained(Seen(tmp_path)), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert (tmp_path / "rank0.values.json.gz").is_file()


def test_a_job_that_profiles_or_observes_itself_gets_no_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        seen = Seen(tmp_path).steps(a_step)
    assert (seen.window.file, seen.left) == (None, [])
    assert seen.notes == ["the values of operators were not recorded: the job is profiling itself"]

    monkeypatch.setenv("ENABLE_PYTORCH_EXECUTION_TRACE", "1")
    assert Seen(tmp_path).steps(a_step).notes == seen.notes


def test_an_observer_of_the_job_s_own_goes_on(tmp_path: Path) -> None:
    own = torch.profiler.ExecutionTraceObserver().register_callback(str(tmp_path / "own.json"))
    own.start()
    folder = tmp_path / "run"
    folder.mkdir()
    seen = Seen(folder).steps(a_step)
    own.stop()
    own.unregister_callback()
    assert (seen.window.file, seen.left) == (None, [])
    assert seen.notes == ["the values of operators were not recorded: the job observes itself"]
    assert len(json.loads((tmp_path / "own.json").read_text())["nodes"]) > 30


@pytest.mark.parametrize(
    ("patched", "reason"),
    [
        ("has_compiled", "compiled code does not show them"),
        ("jobs_scope_is_left_open", "a scope of the job's own (record_function) was open as a window ended"),
    ],
)
def test_a_job_in_which_a_window_does_harm_gets_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patched: str, reason: str
) -> None:
    monkeypatch.setattr(values, patched, lambda: True)
    seen = Seen(tmp_path).steps(a_step)
    assert (seen.left, seen.notes) == ([], [f"the values of operators were not recorded: {reason}"])


def test_a_window_waits_for_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([True] * 3)
    monkeypatch.setattr(values, "imports", lambda: next(answers, False))
    assert Seen(tmp_path).steps(a_step, 8).left == [f".rank0.values.json.gz.{os.getpid()}.json"]


@pytest.mark.parametrize("part", ["_mark_held", "_hear_reads", "_pack"])
def test_a_failure_of_ours_leaves_no_observer_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def fails(*_: object) -> None:
        raise OSError(part)

    before = log_level()
    monkeypatch.setattr(ValuesWindow, part, fails)
    seen = Seen(tmp_path)
    with pytest.raises(OSError, match=part):
        seen.steps(a_step)
    assert (seen.window.over, seen.window.looking, seen.left, log_level()) == (True, False, [], before)
    assert Seen(tmp_path / "another").window.over is False
    monkeypatch.undo()
    monkeypatch.setattr(values, "has_compiled", lambda: False)
    assert Seen(tmp_path).steps(a_step).left == ["rank0.values.json.gz"]  # the observer is free again


@pytest.mark.parametrize("limit", ["_MOST_BYTES", "_LONGEST_NS"])
def test_a_window_that_grows_too_large_or_lasts_too_long_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(values, limit, 0)
    seen = Seen(tmp_path)
    seen.steps(a_step, 4)
    seen.window.watch()
    seen.steps(a_step)
    assert (seen.window.file, seen.left) == (None, [])
    assert seen.notes == ["the values of operators were not recorded: the steps took too long, or were too many"]


def test_a_job_that_ends_or_starts_a_profiler_meanwhile_leaves_no_file(tmp_path: Path) -> None:
    seen = Seen(tmp_path).steps(a_step, 4)
    seen.window.close()
    assert (seen.window.over, seen.left) == (True, [])

    seen = Seen(tmp_path).steps(a_step, 4)
    seen.window.cut()
    assert seen.steps(a_step).left == []


def test_a_job_that_traces_a_program_gets_no_window_and_an_open_one_is_cut(tmp_path: Path) -> None:
    seen = Seen(tmp_path).steps(a_step, 1)
    seen.window.give_up()
    assert (seen.window.over, seen.left) == (True, [])

    seen = Seen(tmp_path).steps(a_step, 4)
    seen.window.give_up()
    assert seen.steps(a_step).left == []
    assert seen.window.over


def test_a_fork_ends_the_window_and_the_child_writes_nothing(tmp_path: Path) -> None:
    before = log_level()
    seen = Seen(tmp_path).steps(a_step, 4)
    plain = tmp_path / f".rank0.values.json.gz.{os.getpid()}.json"
    child = os.fork()
    if not child:
        size = plain.stat().st_size
        a_step()
        os._exit(int(plain.stat().st_size != size or log_level() != before))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert seen.steps(a_step).left == []


def written(folder: Path, step: Callable[[], object]) -> Path:
    """A plain trace of three steps."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=3, repeat=1),
        record_shapes=True,
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(folder / "trace.json")),
    ) as profiler:
        for _ in range(5):
            step()
            profiler.step()
    return folder / "trace.json"


def test_an_ordinary_recording_shows_nothing_against_a_window(tmp_path: Path) -> None:
    assert unfit_in(written(tmp_path, a_step)) is None


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:The PyTorch API of nested tensors")
def test_compressed_sparse_and_nested_tensors_show_in_the_recording(tmp_path: Path) -> None:
    matrix = torch.eye(4).to_sparse_csr()
    reason = "torch's observer cannot describe its sparse or nested tensors"
    assert unfit_in(written(tmp_path, lambda: matrix @ torch.ones(4, 4))) == reason
    assert unfit_in(written(tmp_path, lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))) == reason


def test_steps_of_too_many_operators_are_not_observed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = written(tmp_path, a_step)
    monkeypatch.setattr(values, "_MOST_OPERATORS", 2)
    assert unfit_in(trace) == "its steps have more than 2 operators"
    (tmp_path / "none.json").write_bytes(b"{}")
    assert unfit_in(tmp_path / "none.json") == "the recording has no operators"


def test_the_reason_of_the_recording_is_said(tmp_path: Path) -> None:
    assert Seen(tmp_path).steps(a_step, unfit="…").notes == ["the values of operators were not recorded: …"]


def test_the_packed_file_is_whole(tmp_path: Path) -> None:
    Seen(tmp_path).steps(a_step)
    with gzip.open(tmp_path / "rank0.values.json.gz") as file:
        assert json.load(file)["nodes"]
