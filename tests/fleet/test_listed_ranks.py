"""A list of ranks beside recordings that all say rank 0: the report is that of recordings that say it right."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fleet.ranks import job, rank_trace
from tests.fleet.test_remote import _Quiet

import whystall
from whystall.errors import InputError
from whystall.fleet.inputs import FEW_RANKS, are_many, find_files
from whystall.fleet.many import summarise_all
from whystall.fleet.summarise import Manner
from whystall.report.sections.hosts import hosts
from whystall.report.tables import Limits
from whystall.testing import trace
from whystall.trace.manifest import SCHEMA

MANY = FEW_RANKS + 4
MISLED = "its rank is the one that ranks.json gives it, not the one that it or its name states"


def unsure_job(folder: Path, world: int, *, late: int) -> Path:
    """The job of `tests.fleet.ranks.job`, each rank claiming to be 0, with a list of ranks; hosts take turns."""
    folder.mkdir()
    recordings = []
    for rank in range(world):
        built = rank_trace(rank, world, late_ns=200_000 if rank == late else 0, steps=20)
        built.metadata["distributedInfo"]["rank"] = 0
        name = f"{chr(ord('z') - rank)}.json"
        built.write(folder / name)
        recordings.append({"file": name, "rank": rank, "host": f"quagga-{'ab'[rank % 2]}"})
    (folder / "ranks.json").write_text(json.dumps({"schema": SCHEMA, "recordings": recordings}))
    return folder


def said(report: whystall.Report) -> tuple[Any, ...]:
    """All that the ranks have to do with, but for the sentences and what files are called."""
    return report.devices, report.findings, report.verdict, report.communication, report.ranks, report.source.ranks


@pytest.mark.parametrize(
    ("world", "options"), [(4, {}), (4, {"engine": "local", "workers": 2}), (MANY, {"workers": 2})]
)
def test_the_report_is_that_of_recordings_that_say_it_right(
    world: int, options: dict[str, Any], tmp_path: Path
) -> None:
    sure = whystall.analyze(job(tmp_path / "sure", world, late=2, steps=20), cache=False, **options)
    unsure = whystall.analyze(unsure_job(tmp_path / "unsure", world, late=2), cache=False, **options)
    assert said(unsure) == said(sure)
    assert unsure.findings[0].scope.ranks == [2]
    assert [text for text in unsure.source.warnings if not text.endswith(MISLED)] == sure.source.warnings
    assert any(text.endswith(MISLED) for text in unsure.source.warnings)
    assert [(file.rank, file.host) for file in unsure.source.files] == [(rank, rank % 2) for rank in range(world)]


def test_ray_is_told_as_well(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    folder = unsure_job(tmp_path / "unsure", 4, late=2)
    local, ray = (whystall.analyze(folder, cache=False, engine=engine, workers=2) for engine in ("local", "ray"))
    assert ray == local
    assert local.source.ranks == [0, 1, 2, 3]


def test_hosts_that_take_turns_are_groups_and_their_names_are_nowhere(tmp_path: Path) -> None:
    report = whystall.analyze(unsure_job(tmp_path / "unsure", MANY, late=2), cache=False, workers=2)
    rows = hosts(report, Limits(rows=99, name=80)).rows
    assert sorted((row[0].text, row[2].text) for row in rows) == [("0", "10"), ("1", "10")]
    assert all(row[1].text.startswith(f"{row[0].text}, {int(row[0].text) + 2}, ") for row in rows)
    assert "quagga" not in "".join(whystall.render(report, format_) for format_ in ("json", "html", "markdown"))


def test_ranks_are_counted_by_the_list(tmp_path: Path) -> None:
    folder = unsure_job(tmp_path / "unsure", MANY, late=2)
    assert are_many(find_files([folder], []))
    whole = json.loads((folder / "ranks.json").read_text())
    for one in whole["recordings"]:
        one["rank"] %= 2
    (folder / "ranks.json").write_text(json.dumps(whole))
    assert not are_many(find_files([folder], []))


def test_a_list_that_changed_counts_though_the_recordings_did_not(tmp_path: Path) -> None:
    folder = unsure_job(tmp_path / "unsure", 3, late=2)

    def ranks() -> dict[str, int]:
        found = whystall.analyze(folder, engine="local", workers=1)
        return {file.path: file.rank for file in found.source.files}

    assert ranks() == {"z.json": 0, "y.json": 1, "x.json": 2}
    whole = json.loads((folder / "ranks.json").read_text())
    for one in whole["recordings"]:
        one["rank"] = 2 - one["rank"]
    (folder / "ranks.json").write_text(json.dumps(whole))
    assert ranks() == {"z.json": 2, "y.json": 1, "x.json": 0}


@pytest.mark.parametrize("options", [{}, {"engine": "local"}])
def test_a_list_that_cannot_be_read_ends_the_analysis(options: dict[str, Any], tmp_path: Path) -> None:
    folder = unsure_job(tmp_path / "unsure", 2, late=1)
    (folder / "ranks.json").write_text("{}")
    with pytest.raises(InputError, match=r"ranks\.json: no list of ranks"):
        whystall.analyze(folder, cache=False, **options)


@pytest.mark.parametrize("options", [{}, {"engine": "local"}])
def test_a_recording_that_is_listed_and_not_there_is_named_once(options: dict[str, Any], tmp_path: Path) -> None:
    folder = unsure_job(tmp_path / "unsure", 3, late=1)
    (folder / "y.json").unlink()
    report = whystall.analyze(folder, cache=False, **options)
    told = [text for text in report.source.warnings if "not among the recordings here" in text]
    assert told == ["ranks.json names 1 file that is not among the recordings here: y.json"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("options", [{}, {"engine": "local", "workers": 2}])
def test_a_list_at_an_address_tells_of_what_lies_there(site: str, options: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    folder = unsure_job(tmp_path / "unsure", 3, late=1)
    here = whystall.analyze(folder, cache=False, **options)
    there = whystall.analyze(f"{site}/unsure/", cache=False, **options)
    assert (said(there), there.source) == (said(here), here.source)
    (folder / "ranks.json").write_text("[")
    with pytest.raises(InputError, match=r"http://127\.0\.0\.1:\d+/unsure/ranks\.json: no list of ranks"):
        whystall.analyze(f"{site}/unsure/", cache=False, **options)


def test_summaries_of_listed_ranks_say_so(tmp_path: Path) -> None:
    from tests.fleet.test_many import Here

    files = find_files([unsure_job(tmp_path / "unsure", 3, late=1)], [])
    assert [file.stated and msgspec.structs.astuple(file.stated) for file in files] == [
        (2, None, 0), (1, None, 1), (0, None, 0)
    ]  # fmt: skip
    found = [summarise_all(files, Manner(), Here(backwards=way), cache=None) for way in (False, True)]
    assert found[0].candidates == found[1].candidates
    assert [(one.rank, one.summary.facts.name) for one in found[0].candidates] == [
        (0, "z.json"), (1, "y.json"), (2, "x.json")
    ]  # fmt: skip


def test_messages_are_between_the_ranks_of_the_list(tmp_path: Path) -> None:
    """A message to rank 0 from one that claims to be rank 0 itself."""
    for rank, kind in enumerate(("send", "recv")):
        built = trace(distributedInfo={"rank": 0, "world_size": 3, "backend": "nccl"})
        record: dict[str, Any] = {"Collective name": kind, "Process Group Ranks": "[0, 1, 2]", "Group size": 3}
        record["Dst Rank" if kind == "send" else "Src Rank"] = 1 - rank
        for number in range(4):
            at = number * 9_000
            built.launch("ncclDevKernel_SendRecv", at=at, runs_at=at + 5_000, lasts=900, **record)
        built.write(tmp_path / f"{kind}.json")
    recordings = [{"file": "send.json", "rank": 0}, {"file": "recv.json", "rank": 1}]
    (tmp_path / "ranks.json").write_text(json.dumps({"schema": SCHEMA, "recordings": recordings}))
    report = whystall.analyze(tmp_path, cache=False)
    assert [(row.rank, row.collective, row.ranks) for row in report.communication] == [
        (0, "send", [0, 1]), (1, "recv", [0, 1])
    ]  # fmt: skip
