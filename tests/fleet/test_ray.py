"""The engine of that name, with Ray itself: the same results, also when a worker of Ray is killed."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.fleet.ranks import job

import whystall
from whystall.errors import InputError
from whystall.fleet.engines import Work, engine_named

ray: Any = pytest.importorskip("ray")
# What Ray itself leaves open or has outgrown is not ours.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"
)


@pytest.fixture(autouse=True)
def _path_of_work(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "jobs"))  # what Ray starts inherits it
    yield
    ray.shutdown()


@pytest.mark.parametrize("workers", [1, 2])
def test_the_report_is_that_of_local_processes(tmp_path: Path, workers: int) -> None:
    folder = job(tmp_path, 6, late=4)
    local = whystall.analyze(folder, cache=False, engine="local", workers=2)
    assert whystall.analyze(folder, cache=False, engine="ray", workers=workers) == local
    assert not ray.is_initialized()
    assert print.__module__ == "builtins"  # Ray would put its own in its place


def test_a_worker_that_is_killed_changes_nothing(tmp_path: Path) -> None:
    items = [str(tmp_path / name).encode() for name in ("a", "dies", "c", "dies too")]
    work = [Work("fleet_work:dies_once", item, 1) for item in items]
    found = sorted(engine_named("ray", workers=2).map(work), key=lambda done: done.place)
    assert [(done.result, done.failure) for done in found] == [(item, None) for item in items]


def test_a_worker_of_ray_that_is_killed_in_an_analysis_changes_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor does Ray write of it where a report is written."""
    folder = job(tmp_path, 20, late=4, steps=20)
    usual = whystall.analyze(folder, cache=False, engine="local", workers=2)
    killed: list[int] = []
    over = threading.Event()

    def kill_one() -> None:
        while not killed and not over.wait(0.005):
            for one in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if one.cmdline()[:1] == ["ray::_answer"] and not killed:
                        one.kill()
                        killed.append(one.pid)

    killer = threading.Thread(target=kill_one)
    killer.start()
    try:
        found = whystall.analyze(folder, cache=False, engine="ray", workers=2)
    finally:
        over.set()
        killer.join()
    assert killed
    assert found == usual
    assert "died" not in capfd.readouterr().out


def test_an_item_that_ray_cannot_do_is_left_out() -> None:
    work = [Work("fleet_work:dies_always", item, 1) for item in (b"a", b"bad", b"c")]
    found = sorted(engine_named("ray", workers=1).map(work), key=lambda done: done.place)
    assert [done.result for done in found] == [b"a", None, b"c"]
    assert found[1].failure == "Ray gave it up (WorkerCrashedError)"


def test_a_cluster_that_runs_is_used_and_left_running(tmp_path: Path) -> None:
    folder = job(tmp_path, 3)
    started = ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    address = started.address_info["gcs_address"]
    found = whystall.analyze(folder, cache=False, engine="ray")
    assert ray.is_initialized()
    assert ray.nodes()[0]["Alive"]
    assert found == whystall.analyze(folder, cache=False, engine="local")
    assert address.startswith(("127.", "10.", "172.", "192.", "[", "0.")) or ":" in address


def test_an_address_without_a_cluster_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "1")
    with pytest.raises(InputError, match=r"no cluster of Ray answers at nonsense"):
        whystall.analyze(job(tmp_path, 2), cache=False, ray_address="nonsense")


def test_ray_reports_to_nobody() -> None:
    engine_named("ray")
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert not [one for one in psutil.Process().children(recursive=True) if "dashboard/dashboard.py" in one.cmdline()]
