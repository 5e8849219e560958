from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

from tests.analysis.test_memory_holders import job
from tests.diagnosis.rules.memory.test_activation_bound import training as training_job
from tests.memory.program import MIB, Program, forward, training

from whystall.testing import trace

if TYPE_CHECKING:
    from .conftest import Cli


def write(path: Path, program: Program, lost: int = 0) -> Path:
    path.write_bytes(pickle.dumps(program.snapshot(lost)))
    return path


def test_the_peak_and_its_holders_are_told(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("memory", write(tmp_path / "snapshot.pickle", training(5)))

    assert outcome.code == 0
    first, second, *_ = outcome.out.splitlines()
    assert first == "snapshot.pickle: device 0: at most 38.0 MiB allocated, in the backward pass of recorded step 2,"
    assert second.strip() == "63.2 % of it activations."
    assert "model.py:40 forward       activations  12.0 MiB  31.6 %      1" in outcome.out
    assert "optimizer state   8.00 MiB  21.1 %            4" in outcome.out
    assert "Snapshots leave out memory" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 100
    assert outcome.err.splitlines()[-1].startswith("next: whystall memory")


def test_json_holds_what_the_text_says(cli: Cli, tmp_path: Path) -> None:
    answer = json.loads(cli("memory", write(tmp_path / "snapshot.pickle", training(8, leak=MIB)), "--json").out)

    assert answer["schema"] == "whystall.memory/1"
    (file,) = answer["files"]
    (device,) = file["devices"]
    assert file["summary"].startswith("device 0: at most")
    assert device["growth"]["bytes_per_step"] == MIB
    assert {one["category"] for one in device["peak"]["held"]} >= {"activations", "parameters"}


def test_the_ranks_of_a_job_are_told_together_the_fullest_first(cli: Cli, tmp_path: Path) -> None:
    ran_out = training(3)
    ran_out.alloc(200 * MIB, forward(1))
    ran_out.out_of_memory(900 * MIB, 5 * MIB, forward(55))
    write(tmp_path / "rank0.pickle", training(3))
    write(tmp_path / "rank1.pickle", ran_out)
    (tmp_path / "rank2.pickle").write_bytes(b"\x80\x04}.")
    (tmp_path / "other.pkl").write_text("no pickle")

    outcome = cli("memory", tmp_path)

    said, _, below = outcome.out.partition("\n\n")
    assert " ".join(said.split()).startswith("rank1.pickle ran out of memory (900 MiB asked for); 1 of 2 files did. ")
    assert "200 MiB more at model.py:1 forward" in " ".join(said.split())
    answer = json.loads(cli("memory", tmp_path, "--json").out)
    assert answer["together"]["summary"] == " ".join(said.split())
    assert answer["together"]["first_out"]["file"] == "rank1.pickle"
    assert cli("memory", tmp_path, "-o", "ranks.html").code == 0
    assert "1 of 2 files did" in Path("ranks.html").read_text()
    lines = below.splitlines()
    assert lines[0].split() == ["file", "device", "peak", "allocated", "peak", "reserved", "out", "of", "memory"]
    assert lines[1].startswith("rank1.pickle")
    assert "900 MiB asked for" in lines[1]
    assert lines[2].startswith("rank0.pickle")
    assert "rank1.pickle: device 0: model.py:55 forward asked for 900 MiB and found no room, with 216" in outcome.out
    assert "left out: rank2.pickle is a pickle, but no memory snapshot" in outcome.err


def test_of_a_run_the_snapshot_of_where_memory_ran_out_counts(cli: Cli, tmp_path: Path) -> None:
    """A rank that ran out has a snapshot of that moment and an older one; a rank that did not has the older one."""
    ran_out = training(3)
    ran_out.out_of_memory(900 * MIB, 5 * MIB, forward(55))
    write(tmp_path / "rank0.memory.pickle", training(3))
    write(tmp_path / "rank1.memory.pickle", training(3))
    write(tmp_path / "rank1.oom.pickle", ran_out)
    answer = json.loads(cli("memory", tmp_path, "--json").out)
    assert sorted(Path(one["file"]).name for one in answer["files"]) == ["rank0.memory.pickle", "rank1.oom.pickle"]


def test_the_size_of_the_device_tells_what_lies_outside_torch(cli: Cli, tmp_path: Path) -> None:
    program = training(3)
    program.out_of_memory(900 * MIB, 5 * MIB, forward(55))
    path = write(tmp_path / "snapshot.pickle", program)
    reserved = sum(segment["total_size"] for segment in program.segments()) // MIB

    plain, sized = cli("memory", path).out, cli("memory", path, "--device-memory", f"{reserved + 35}MiB").out

    assert "--device-memory SIZE shows how much that was" in plain
    assert "outside torch's allocator: CUDA" not in plain
    told = " ".join(sized.split())
    assert "30.0 MiB lay outside torch's allocator: CUDA's context, libraries' workspaces, NCCL's buffers" in told
    assert "--device-memory" not in sized
    assert cli("memory", path, "--device-memory", "much").code == 2
    assert cli("memory", path, "--against", path, "--device-memory", "8GiB").code == 2


def test_two_snapshots_are_compared_by_line(cli: Cli, tmp_path: Path) -> None:
    before = write(tmp_path / "before.pickle", training(3))
    more = training(3)
    key = more.alloc(100 * MIB, forward(91))
    more.alloc(2 * MIB)
    more.free(key, ())
    after = write(tmp_path / "after.pickle", more)

    outcome = cli("memory", after, "--against", before)
    answer = json.loads(cli("memory", after, "--against", before, "--json").out)

    assert "device 0: 38.0 MiB at the peak of before.pickle, 118 MiB at the peak of after.pickle" in outcome.out
    (one,) = answer["comparisons"]
    changes = {(row["site"], row["function"]): row["after_bytes"] - row["before_bytes"] for row in one["changes"]}
    assert changes["model.py:91", "forward"] == 100 * MIB
    assert changes["model.py:40", "forward"] == -12 * MIB


def test_what_is_printed_is_written_too(cli: Cli, tmp_path: Path) -> None:
    snapshot = write(tmp_path / "snapshot.pickle", training(5))
    outcome = cli("memory", snapshot, "-o", "memory.html", "-o", "memory.json", "-o", "memory.txt")

    assert outcome.code == 0
    assert Path("memory.txt").read_text() == outcome.out
    assert json.loads(Path("memory.json").read_text()) == json.loads(cli("memory", snapshot, "--json").out)
    page = Path("memory.html").read_text()
    assert "<h1>device 0: at most 38.0\N{NO-BREAK SPACE}MiB allocated" in page
    assert "model.py:40 forward" in page
    assert "wrote memory.html" in outcome.err
    assert cli("memory", snapshot, "-o", "memory.html").code == 2  # exists, and no --force
    assert cli("memory", snapshot, "-o", "memory.html", "--force").code == 0
    refused = cli("memory", snapshot, "-o", "memory.pdf")
    assert (refused.code, refused.out) == (2, "")
    assert "end it in one of .html, .json, .txt" in refused.err


def test_a_comparison_is_a_page_too(cli: Cli, tmp_path: Path) -> None:
    before, after = (write(tmp_path / f"{name}.pickle", training(number)) for name, number in (("a", 3), ("b", 4)))
    assert cli("memory", after, "--against", before, "-o", "against.html").code == 0
    assert "at the peak of a.pickle" in Path("against.html").read_text()


def test_names_of_a_stranger_do_nothing_to_the_terminal(cli: Cli, tmp_path: Path) -> None:
    program = Program()
    program.alloc(MIB, (("\x1b[2Jf", "/home/me/a\u202e.py", 3),), user_metadata="x\ny" * 5000)
    with program.marked("\x1b]0;title\x07"):
        program.alloc(2 * MIB, (("\x1b[2Jf", "/home/me/a\u202e.py", 3),))
    path = tmp_path / "sn\x1bap.pickle"
    value = program.snapshot() | {"allocator_settings": {"last_allocator_settings": "\x1b[31m" * 1000}}
    path.write_bytes(pickle.dumps(value))

    outcome = cli("memory", path)

    assert outcome.code == 0
    assert all(character.isprintable() or character == "\n" for character in outcome.out)
    assert len(outcome.out) < 10_000


def test_a_pickle_that_would_run_something_is_refused(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(b"\x80\x04cos\nsystem\nX\x05\0\0\0touch\x85R.")

    outcome = cli("memory", path)

    assert outcome.code == 3
    assert "names a function or class (at byte 2), which no snapshot does: it was not run" in outcome.err
    assert "Traceback" not in outcome.err


def test_traces_tell_the_peaks_of_their_allocators(cli: Cli, tmp_path: Path) -> None:
    recorded = trace().operator("aten::mm", at=0, lasts=10)
    for at, allocated in ((1, 5 * MIB), (2, 9 * MIB), (3, MIB)):
        recorded = recorded.memory(at=at, size=512, allocated=allocated, reserved=20 * MIB)
    recorded.write(tmp_path / "trace.json")

    outcome = cli("memory", tmp_path / "trace.json", "--no-cache")
    answer = json.loads(cli("memory", tmp_path / "trace.json", "--no-cache", "--json").out)

    assert outcome.code == 0
    assert "9.00 MiB" in outcome.out
    assert answer["traces"][0]["peak_allocated_bytes"] == 9 * MIB


def test_a_trace_with_modules_names_who_held_the_peak(cli: Cli, tmp_path: Path) -> None:
    job().built.write(tmp_path / "trace.json")

    outcome = cli("memory", tmp_path / "trace.json", "--no-cache")
    answer = json.loads(cli("memory", tmp_path / "trace.json", "--no-cache", "--json").out)

    assert outcome.code == 0
    said = " ".join(outcome.out.split())
    assert said.startswith("rank 0, cuda 0: at most 37.0 MiB allocated, 64.9 % of it activations.")
    assert "Net/Block model.py(10): forward aten::linear activations 24.0 MiB 64.9 % 3" in said
    assert "allocated before the record 10.0 MiB 27.0 %" in said
    assert max(map(len, outcome.out.splitlines())) <= 100
    assert answer["traces"][0]["holders"][0]["module"] == "Net/Block"
    assert answer["findings"] == []  # of so little memory nobody is short


def test_a_trace_without_stacks_says_what_it_does_not_name(cli: Cli, tmp_path: Path) -> None:
    job(frames=False).built.write(tmp_path / "trace.json")

    said = " ".join(cli("memory", tmp_path / "trace.json", "--no-cache").out.split())

    assert "the trace names no modules and functions here: with_stack=True records them" in said
    assert "aten::linear activations 24.0 MiB" in said


def test_a_peak_that_is_mostly_activations_is_a_finding(cli: Cli, tmp_path: Path) -> None:
    training_job(4, 4).built.write(tmp_path / "trace.json")

    said = " ".join(cli("memory", tmp_path / "trace.json", "--no-cache").out.split())

    assert "memory.activation-bound: 2.50 GiB allocated at the peak, 2.00 GiB activations at the peak" in said
    assert "torch.utils.checkpoint" in said


def test_a_run_folder_tells_of_its_traces(cli: Cli, tmp_path: Path) -> None:
    recorded = trace().operator("aten::mm", at=0, lasts=10)
    recorded.memory(at=1, size=512, allocated=7 * MIB, reserved=20 * MIB).write(tmp_path / "rank0.trace.json")
    (tmp_path / "rank0.flight.pickle").write_bytes(pickle.dumps({"entries": []}))  # what a job that hung leaves

    outcome = cli("memory", tmp_path, "--no-cache")

    assert outcome.code == 0
    assert "7.00 MiB" in outcome.out


def test_traces_without_memory_events_say_how_to_record_them(cli: Cli, tmp_path: Path) -> None:
    trace().operator("aten::mm", at=0, lasts=10).write(tmp_path / "trace.json")

    outcome = cli("memory", tmp_path / "trace.json", "--no-cache")

    assert outcome.code == 3
    assert "profile_memory=True" in outcome.err


def test_what_cannot_be_is_a_usage_error(cli: Cli, tmp_path: Path) -> None:
    one = write(tmp_path / "one.pickle", training(1))
    trace().operator("aten::mm", at=0, lasts=10).write(tmp_path / "trace.json")

    assert cli("memory", one, tmp_path / "trace.json").code == 2
    assert cli("memory", one, one, "--against", one).code == 2
    assert cli("memory", tmp_path / "missing.pickle").code == 3
    assert cli("memory", one, "--against", tmp_path / "missing.pickle").code == 3
