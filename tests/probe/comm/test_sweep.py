"""Sweeps between real processes on gloo: V8, ranks that die or stand still, and a job of torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from whystall.errors import WhystallError
from whystall.probe.comm.launch import Watch, run_sweep
from whystall.probe.comm.plan import Plan, swept
from whystall.probe.comm.results import COLLECTIVES, CommProbe, read_comm_probe

pytest.importorskip("torch")
ADDRESSES: set[str] = set()


def plan(ranks: int = 2, timeout_s: float = 300) -> Plan:
    sizes = swept(1 << 10, 1 << 18)
    return Plan(
        backend="gloo", ranks=ranks, sizes=sizes, collectives=list(COLLECTIVES), seconds=0.001, timeout_s=timeout_s
    )


@pytest.fixture(scope="module")
def found() -> CommProbe:
    def watch(_where: str, pids: Sequence[int]) -> None:
        for pid in pids:
            connections = psutil.Process(pid).net_connections(kind="inet")
            ADDRESSES.update(address.ip for one in connections for address in (one.laddr, one.raddr) if address)

    return run_sweep(plan(), watch)


def test_every_kind_and_size_is_measured_on_both_ranks(found: CommProbe) -> None:
    sizes = swept(1 << 10, 1 << 18)
    assert [(row.collective, row.bytes) for row in found.results] == [
        (kind, size) for kind in COLLECTIVES for size in sizes
    ]
    assert all(len(row.times_ns) == len(row.process_ns) == 2 and row.time_ns > 0 for row in found.results)
    assert found.skipped == []


def test_every_kind_has_a_fit_with_its_residuals(found: CommProbe) -> None:
    assert [one.collective for one in found.fits] == list(COLLECTIVES)
    for one in found.fits:
        assert one.unknown_because is not None or (len(one.residuals) == 5 and one.r2 is not None)


def test_nothing_leaves_the_machine(found: CommProbe) -> None:
    assert ADDRESSES
    assert not ADDRESSES.difference({"127.0.0.1", "::1", "::ffff:127.0.0.1"})


def ended(act: signal.Signals, timeout_s: float) -> str:
    """The sentence about a sweep whose rank 1 gets a signal in its first collective; none of its processes is left."""
    started: list[int] = []

    def watch(where: str, pids: Sequence[int]) -> None:
        if where.startswith("all_reduce") and not started:
            started.extend(pids)
            os.kill(pids[1], act)

    sentence = failure(plan(timeout_s=timeout_s), watch)
    assert started
    assert not any(psutil.pid_exists(pid) for pid in started)
    return sentence


def failure(told: Plan, watch: Watch) -> str:
    with pytest.raises(WhystallError) as raised:
        run_sweep(told, watch)
    return str(raised.value)


def test_a_rank_that_dies_is_named() -> None:
    sentence = ended(signal.SIGKILL, 300)
    assert sentence.startswith("rank 1 ended in ")
    assert "signal SIGKILL; nothing was measured" in sentence


def test_a_rank_that_stands_still_ends_the_sweep_in_time() -> None:
    sentence = ended(signal.SIGSTOP, 20)
    assert "did not end within 20 s (--timeout) and was ended" in sentence
    assert "rank 1 in " in sentence
    assert "(stopped)" in sentence


def test_the_command_line_prints_json_that_it_compares_with_later(tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    command = [
        sys.executable,
        "-m",
        "whystall",
        "probe",
        "comm",
        "--backend",
        "gloo",
        "--ranks",
        "2",
        "--max-bytes",
        "16K",
    ]
    command += ["--collective", "broadcast", "--seconds", "0.001"]
    first = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    path.write_text(first.stdout)
    assert read_comm_probe(path).network == "loopback"
    page = tmp_path / "page.html"
    command += ["--against", str(path), "-o", str(page)]
    later = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "against the earlier sweep" in later.stdout
    assert "Time of broadcast by size" in page.read_text()


def test_under_torchrun_rank_0_prints(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "whystall"]
    command += ["probe", "comm", "--backend", "gloo", "--max-bytes", "16K", "--seconds", "0.001", "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    body = json.loads(ran.stdout)
    assert (body["ranks"], body["network"], body["schema"]) == (2, "loopback", "whystall.comm/1")
    assert {row["collective"] for row in body["results"]} == set(COLLECTIVES)


def test_groups_measure_their_own_collectives() -> None:
    """Four ranks, pairs of every other: each process reports, and sizes are as those of two ranks."""
    told = Plan(
        backend="gloo", ranks=4, sizes=[1 << 12], collectives=list(COLLECTIVES), seconds=0.001, timeout_s=300,
        split="MOD 2",
    )  # fmt: skip
    found = run_sweep(told, lambda _where, _pids: None)
    assert (found.ranks, found.split, found.skipped) == (4, "MOD 2", [])
    assert [row.collective for row in found.results] == list(COLLECTIVES)
    assert {row.ranks for row in found.results} == {2}
    assert all(len(row.process_ns) == 4 for row in found.results)
