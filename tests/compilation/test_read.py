from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.compilation.builder import Log, training
from tests.conftest import TRACES

from whystall.compilation import read
from whystall.compilation.one_compile import Room
from whystall.compilation.read import read_account
from whystall.compilation.results import KernelCompiler, ProcessAccount
from whystall.errors import InputError

S = 1_000_000_000
SAMPLES = TRACES.parent / "samples" / "compile-logs"


def account(log: Log, folder: Path) -> ProcessAccount:
    [found] = read_account([log.write(folder)]).processes
    return found


def test_attempts_are_one_compile_and_its_phases_add_up(tmp_path: Path) -> None:
    found = account(training(), tmp_path)
    first = found.compiles[0]

    assert (first.id, first.attempts, first.total_ns, first.restarts_ns) == ("0/0", 2, 8 * S, S // 2)
    assert (str(first.frame), str(first.caller)) == ("train.py:10", "train.py:40")
    assert first.phases.dynamo_ns == 2 * S
    assert first.phases.aot_ns == S
    assert first.phases.inductor_ns == S // 2
    assert first.phases.code_ns == 3 * S // 2
    assert first.phases.kernels_ns == 3 * S  # the two waits, of 2 s and 1 s, and not the 4.5 s of all code generation
    assert first.kernels_by is KernelCompiler.CPP


def test_a_wait_within_another_counts_once(tmp_path: Path) -> None:
    log = Log().event("compile_file", 1001, 1003).event("async_compile.wait", 1000.5, 1004)
    log.event("compile_file", 1001, 1004, of=None)  # of a thread beside, without an id

    [found] = account(log.ends(total=10, code_gen_time_s=6.0), tmp_path).compiles

    assert found.phases.kernels_ns == 7 * S // 2


def test_a_hit_of_autograd_holds_those_of_its_graphs(tmp_path: Path) -> None:
    log = Log()
    for key, saved in (("forward", 2 * S), ("backward", 3 * S)):
        log.artifact("fx_graph_cache_hit", {"key": key, "cache_state": "hit", "time_saved_ns": saved})
    saved_ms = {"forward_time_saved_ms": 2500.0, "backward_time_saved_ms": 3500.0}
    log.artifact("aotautograd_cache_hit", {"key": "a", "cache_state": "hit"} | saved_ms)

    assert account(log.ends(), tmp_path).saved_ns == 6 * S


def test_a_backward_graph_is_a_compile_of_its_own(tmp_path: Path) -> None:
    found = account(training(), tmp_path)

    [backward] = [one for one in found.compiles if one.backward]
    assert (backward.id, backward.total_ns, str(backward.frame)) == ("1/0", 3 * S, "train.py:12")
    assert (backward.phases.dynamo_ns, backward.phases.aot_ns, backward.phases.inductor_ns) == (0, S // 2, 5 * S // 2)


def test_a_break_has_its_line_its_waste_and_what_resumes(tmp_path: Path) -> None:
    [found] = account(training(), tmp_path).breaks

    assert (str(found.place), found.times, found.restarts_ns) == ("train.py:12", 1, S // 2)
    assert (found.resumes, found.resumes_ns, found.resumes_dynamo_ns) == (2, (2 + 1 + 3) * S, S // 2 + 3 * S // 4)


def test_recompiles_are_one_for_each_guard(tmp_path: Path) -> None:
    size, value = account(training(), tmp_path).recompiles

    assert (size.kind, size.is_value, size.times, size.versions, size.total_ns) == ("a size", False, 2, 3, 8 * S)
    assert size.at_limit
    assert "mark_dynamic" in size.edit
    assert (value.guard, value.is_value, value.times, value.versions) == ("___stack0 == 123.5", True, 1, 2)
    assert str(value.line) == "train.py:13"
    assert "capture_scalar_outputs" in value.edit
    assert not value.at_limit


def test_a_wrapper_of_torch_is_named_by_the_users_call(tmp_path: Path) -> None:
    log, wrapper = Log(), "/venv/lib/python3.11/site-packages/torch/_dynamo/external_utils.py"
    main = ("/home/someone/train.py", 40, "main")
    for version in (0, 1):
        log.starts(main, (wrapper, 67, "inner"), of=f"0/{version}")
        log.ends("inner", 67, file=wrapper, of=f"0/{version}", start=1000 + 10 * version)

    [found] = account(log, tmp_path).recompiles

    assert (str(found.frame), str(found.line)) == ("external_utils.py:67", "train.py:40")


def test_caches_failures_and_the_estimate_of_torch(tmp_path: Path) -> None:
    found = account(training(), tmp_path)

    counts = {use.cache: (use.hits, use.misses, use.bypasses) for use in found.caches}
    assert counts == {"FX graph": (1, 2, 0), "AOTAutograd": (0, 1, 1)}
    assert found.caches[1].bypass_reasons == (("Unsupported call_function target flex_attention.", 1),)
    assert found.saved_ns == 2 * S
    [failure] = found.failures
    assert (str(failure.frame), failure.kind, failure.times) == ("train.py:30", "BackendCompilerFailed", 1)


def test_processes_are_never_added(tmp_path: Path) -> None:
    for rank in range(3):
        Log(pid=100 + rank, rank=rank).ends(total=rank + 1).write(tmp_path, f"log_rank_{rank}.log")

    found = read_account([tmp_path])

    assert [(one.rank, one.total_ns) for one in found.processes] == [(2, 3 * S), (1, 2 * S), (0, S)]


def test_forked_children_and_prefixed_ranks_share_a_file(tmp_path: Path) -> None:
    parent, child = Log(pid=7).ends(total=1), Log(pid=8).ends(total=2)
    ranks = [Log(pid=9, prefix=f"[rank{rank}]:").ends(total=4 + rank).breaks(5 + rank, of="1/0") for rank in (0, 1)]
    mixed = [line for pair in zip(ranks[0].lines, ranks[1].lines, strict=True) for line in pair]
    path = tmp_path / "stderr.log"
    path.write_text("Traceback: noise\n" + parent.text() + child.text() + "\n".join(mixed) + "\n")

    found = read_account([path])

    assert [(one.rank, one.pid, one.total_ns) for one in found.processes] == [
        (1, 9, 5 * S),
        (0, 9, 4 * S),
        (None, 8, 2 * S),
        (None, 7, S),
    ]
    assert [str(one.breaks[0].place) for one in found.processes[:2]] == ["train.py:6", "train.py:5"]
    assert found.notes == ("stderr.log: left out 1 line of no record.",)


def test_a_thread_in_place_of_a_process_is_no_process(tmp_path: Path) -> None:
    forward, backward = Log(pid=139877824898048).ends(total=1), Log(pid=139877824898049)
    backward.record("aot_autograd_backward_compilation_metrics", {"inductor_compile_time_s": 2.0}, of="0/0")
    path = tmp_path / "old.log"
    path.write_text(forward.text() + backward.text())

    [found] = read_account([path]).processes

    assert (found.pid, found.total_ns, len(found.compiles)) == (None, 3 * S, 2)


def test_ids_begin_again_after_a_reset(tmp_path: Path) -> None:
    log = Log()
    for start in (1000, 1010, 1020):
        log.starts(("/home/someone/train.py", 1, "<module>")).ends(start=start, total=1)

    found = account(log, tmp_path)

    assert [(one.total_ns, one.backward) for one in found.compiles] == [(S, False)] * 3
    assert found.recompiled == 0


def test_a_compile_within_another_is_counted_once(tmp_path: Path) -> None:
    log = Log().ends(of="1/0", start=1002, total=3).ends(of="0/0", start=1000, total=10)

    found = account(log, tmp_path)

    assert found.total_ns == 10 * S
    assert [one.nested for one in found.compiles] == [True, False]


def test_the_same_key_that_misses_again_is_a_cold_cache(tmp_path: Path) -> None:
    for run, start in enumerate((1000, 2000)):
        log = Log(pid=run + 1)
        log.artifact("fx_graph_cache_miss", {"key": "f1", "cache_state": "miss", "time_taken_ns": 5 * S})
        log.ends(start=start, total=10, backend_compile_time_s=8.0).write(tmp_path, f"{run}.log")

    [cold] = [one for one in read_account([tmp_path]).findings if one.id == "compile.cold-cache"]

    assert (cold.saves_ns, cold.processes) == (5 * S, 1)


def test_ranks_that_miss_together_are_no_cold_cache(tmp_path: Path) -> None:
    for rank in range(2):
        log = Log(pid=rank + 1, rank=rank)
        log.artifact("fx_graph_cache_miss", {"key": "f1", "cache_state": "miss", "time_taken_ns": 5 * S})
        log.ends(start=1000 + rank, total=10, backend_compile_time_s=8.0).write(tmp_path, f"{rank}.log")

    assert [one.id for one in read_account([tmp_path]).findings] == []


def test_four_graphs_with_one_checksum_are_too_many(tmp_path: Path) -> None:
    counts = {}
    for copies in (3, 4):
        log = Log()
        for number in range(copies):
            of = f"{number}/0"
            log.record("dynamo_output_graph", {}, of=of, payload="class GraphModule: secret")
            log.ends("block", 5, of=of, start=1000 + 10 * number, total=1 + number)
        counts[copies] = account(log, tmp_path).findings

    assert counts[3] == ()
    [found] = counts[4]
    assert (found.id, found.where, found.saves_ns) == ("compile.too-many-graphs", "train.py:5", (1 + 2 + 3) * S)


def test_tuning_beside_a_hit_happens_each_time(tmp_path: Path) -> None:
    log = Log().artifact("fx_graph_cache_hit", {"key": "f", "cache_state": "hit", "time_saved_ns": S})
    log.ends(total=4, compile_time_autotune_time_us=3_000_000)
    log.ends(of="1/0", start=1010, total=4, compile_time_autotune_time_us=2_000_000)

    found = account(log, tmp_path)

    assert [(one.id, one.saves_ns) for one in found.findings] == [("compile.autotune-each-time", 3 * S)]
    assert found.autotune_ns == 5 * S


def test_recordings_of_cuda_graphs(tmp_path: Path) -> None:
    log = Log().ends(cudagraph_skip_reason="skipping cudagraphs due to mutated inputs (2 instances)")
    log.event("CUDAGraphNode.record", 1010, 1012, of=None).event("CUDAGraphNode.record", 1013, 1014, of=None)

    found = account(log, tmp_path).cuda_graphs

    assert (found.recordings, found.recording_ns) == (2, 3 * S)
    assert found.skips == (("skipping cudagraphs due to mutated inputs (2 instances)", 1),)


def test_old_logs_know_breaks_by_restarts_and_what_resumes(tmp_path: Path) -> None:
    said = "'skip function graph_break in file /data/someone/torch/_dynamo/decorators.py'"
    log = Log(pid=139877824898048)
    log.ends("fn", 20, attempt=1, total=2, restart_reasons=[said], dynamo_time_before_restart_s=0.5)
    log.ends("torch_dynamo_resume_in_fn_at_22", 22, of="1/0", start=1010, total=1, restart_reasons=[])

    [found] = account(log, tmp_path).breaks

    assert (str(found.place), found.reason) == ("train.py:22", "skip function graph_break in file decorators.py")
    assert (found.times, found.restarts_ns, found.resumes) == (1, S // 2, 1)


def test_a_function_that_resumes_is_a_break_even_where_nothing_else_is_left(tmp_path: Path) -> None:
    log = Log().ends("torch_dynamo_resume_in_fn_at_22", 22, of="1/0")

    [found] = account(log, tmp_path).breaks

    assert (str(found.place), found.reason) == ("train.py:22", "the log does not hold the reason")


def test_a_skipped_function_and_the_oldest_form_of_a_reason(tmp_path: Path) -> None:
    log = Log()
    for of, reason in (
        (
            "0/0",
            "Graph Break Reason: Failed to handle graph break gracefully. Skipping.\n\nmissing handler\n  Hint: no",
        ),
        ("1/0", "Reason: Unsupported: builtin: open"),
    ):
        said = f"Graph break in user code at /home/someone/train.py:7\n{reason}\nUser code traceback:\n  secret"
        log.artifact("dynamo_graph_break_reason", said, of=of)
    log.ends().ends(of="1/0", start=1010)

    assert sorted(one.reason for one in account(log, tmp_path).breaks) == [
        "Unsupported: builtin: open",
        "missing handler; the function runs without a graph",
    ]


def test_a_break_in_other_code_has_the_users_line(tmp_path: Path) -> None:
    said = (
        "Graph break in user code at /usr/lib/python3.11/contextlib.py:105\nGraph Break Reason: skipped\n"
        'User code traceback:\n  File "/home/someone/train.py", line 40, in main\n    secret\n'
        '  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 9, in _call_impl\n    secret\n'
        '  File "/usr/lib/python3.11/contextlib.py", line 105, in __init__\n    secret\n'
    )
    [found] = account(Log().artifact("dynamo_graph_break_reason", said).ends(), tmp_path).breaks

    assert (str(found.place), str(found.called_at)) == ("contextlib.py:105", "train.py:40")


def test_functions_around_a_break_belong_to_it(tmp_path: Path) -> None:
    said = (
        "Graph break in user code at /home/someone/layers.py:5\nGraph Break Reason: print\n"
        'User code traceback:\n  File "/home/someone/train.py", line 12, in forward\n    secret\n'
        '  File "/home/someone/layers.py", line 5, in inner\n    secret\n'
    )
    log = Log().artifact("dynamo_graph_break_reason", said).ends(attempt=1, total=4)
    log.ends("torch_dynamo_resume_in_inner_at_5", 5, file="/home/someone/layers.py", of="1/0", start=1010, total=2)
    log.ends("torch_dynamo_resume_in_forward_at_12", 12, of="2/0", start=1020, total=3)

    [found] = account(log, tmp_path).breaks

    assert (str(found.place), found.place and found.place.function) == ("layers.py:5", "inner")
    assert (found.called_at, found.resumes, found.resumes_ns) == (None, 2, 5 * S)


def test_a_packed_log(tmp_path: Path) -> None:
    path = tmp_path / "x.log.gz"
    path.write_bytes(gzip.compress(training().text().encode()))

    [found] = read_account([path]).processes

    assert found == account_without_file(training(), tmp_path, found.file)


def account_without_file(log: Log, folder: Path, name: str) -> ProcessAccount:
    (folder / "plain").mkdir()
    [found] = read_account([log.write(folder / "plain", name)]).processes
    return found


def test_a_cut_log_keeps_what_it_has(tmp_path: Path) -> None:
    text = training().text()
    path = tmp_path / "cut.log"
    path.write_text(text[: text.rindex('{"compilation_metrics"') + 100])

    found = read_account([path])

    assert found.processes[0].unfinished == 1
    assert found.notes == ("cut.log: left out 1 damaged record.",)


def test_a_log_of_endless_compiles_is_read_as_far_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    for number in range(5):
        log.breaks(7, of=f"{number}/0").ends(of=f"{number}/0", start=1000 + 10 * number)
    monkeypatch.setattr(read, "Room", lambda: Room(compiles=3, notes=1))

    found = read_account([log.write(tmp_path)])

    assert len(found.processes[0].compiles) == 3
    assert [one.times for one in found.processes[0].breaks] == [1]
    # Two breaks beyond the first; of each of the last two compiles, the record of a break and that of its metrics.
    assert found.notes == ("6 compiles or notes on them beyond what is kept are left out.",)


@pytest.mark.parametrize(
    ("content", "says"), [("", "is empty"), ("text\n", "no structured log"), ("{}", "TORCH_TRACE")]
)
def test_other_files_are_refused(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "other.log"
    path.write_text(content)

    with pytest.raises(InputError, match=says):
        read_account([path])
    with pytest.raises(InputError, match="no structured log of torch's compiler in this folder"):
        read_account([tmp_path])


def test_a_log_without_a_compile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="hold no compile"):
        read_account([Log().record("str", ["/a.py", 0], of=None).write(tmp_path)])


def raw(name: str) -> list[dict[str, Any]]:
    """The records of a sample by a simple reader: an oracle."""
    path = SAMPLES / name
    if not path.exists():
        pytest.skip("the samples are not beside the repository (../shared/samples)")
    heads = re.findall(r"^V\d.*?\] (\{.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [json.loads(head) for head in heads]


def counted(records: list[dict[str, Any]], name: str) -> int:
    return sum(record.get("artifact", {}).get("name") == name for record in records)


@pytest.mark.real_traces
@pytest.mark.parametrize(
    "name", ["own_2.13_break_and_recompile.log", "recompiles_15.log", "cache_hit_miss.log", "simple.log"]
)
def test_recorded_logs_against_their_raw_records(name: str) -> None:
    records = raw(name)
    metrics = [record[kind] for record in records for kind in record if kind.endswith("compilation_metrics")]
    [found] = read_account([SAMPLES / name]).processes
    uses = {use.cache: use for use in found.caches}

    assert len(found.compiles) == len(metrics)
    fields = ("duration_us", "dynamo_cumulative_compile_time_us")
    durations = [next(one[field] for field in fields if one.get(field) is not None) for one in metrics]
    assert [one.total_ns for one in found.compiles] == [1000 * duration for duration in durations]
    assert found.total_ns == 1000 * sum(durations) == found.phases.total_ns
    assert found.recompiled == counted(records, "recompile_reasons")
    assert sum(one.times for one in found.breaks) == counted(records, "dynamo_graph_break_reason")
    assert uses["FX graph"].misses == counted(records, "fx_graph_cache_miss")
    assert uses["FX graph"].hits == counted(records, "fx_graph_cache_hit")
    assert uses["AOTAutograd"].bypasses == counted(records, "aotautograd_cache_bypass")
    assert found.unfinished == 0


@pytest.mark.real_traces
def test_the_recorded_log_of_a_known_program() -> None:
    """Its truth was written down when it was recorded: 56.8 s in 7 compiles, by hand from the job's own clock."""
    raw("own_2.13_break_and_recompile.log")
    [found] = read_account([SAMPLES / "own_2.13_break_and_recompile.log"]).processes

    assert sorted(round(one.total_ns / S, 2) for one in found.compiles) == [0.28, 2.28, 3.35, 3.91, 6.86, 7.41, 32.69]
    assert [(str(one.place), one.times) for one in found.breaks] == [("cb.py:17", 2)]
    assert sorted((one.kind, one.times) for one in found.recompiles) == [
        ("a scalar from before a graph break", 1),
        ("a size", 1),
        ("a size", 1),
    ]
    assert {(use.cache, use.hits, use.misses) for use in found.caches} == {("FX graph", 2, 8), ("AOTAutograd", 1, 5)}


@pytest.mark.real_traces
def test_the_recorded_log_of_torch_2_4() -> None:
    raw("comp_metrics.log")
    [found] = read_account([SAMPLES / "comp_metrics.log"]).processes

    assert [(str(one.place), one.times) for one in found.breaks] == [("test_misc.py:9551", 1), ("test_misc.py:9553", 1)]
    assert [one.attempts for one in found.compiles] == [2, 2, 1]


@pytest.mark.real_traces
def test_a_folder_of_all_recorded_logs() -> None:
    raw("simple.log")
    found = read_account([SAMPLES])

    assert len(found.processes) == len(list(SAMPLES.glob("*.log")))
    assert "Several processes state rank 0: their logs may be of different jobs." in found.notes
    for process in found.processes:
        assert all(one.saves_ns <= process.total_ns for one in process.findings)
        assert sum(one.phases.total_ns for one in process.compiles if not one.nested) == process.total_ns
