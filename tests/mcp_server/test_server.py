"""The real server as a subprocess, asked by the official package's own client."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import ClientSession, StdioServerParameters, stdio_client

import whystall
from whystall.diagnosis.catalogue import causes
from whystall.mcp_server.tools import MOST_CHARACTERS, MOST_ROWS
from whystall.testing import TraceBuilder

DEMO = "demo.json.gz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trace, a report and a run folder, and what must not be served beside and behind links."""
    base = tmp_path_factory.mktemp("served")
    given = base / "given"
    (given / "run").mkdir(parents=True)
    shutil.copy(whystall.demo_recording(), given / DEMO)
    shutil.copy(whystall.demo_recording(), given / "run" / "rank0.trace.json.gz")
    (given / "broken.json").write_text("no trace")
    for name in ("run.json", "rank0.run.json", "experiments.json"):  # what a run leaves beside its traces
        (given / "run" / name).write_text("{}")
    report = whystall.render(whystall.analyze(given / DEMO, cache=False), "json")
    (given / "report.json").write_text(report)
    secret = base / "secret.json"
    secret.write_text('{"traceEvents": [{"name": "SECRET"}]}')
    (given / "link.json").symlink_to(secret)
    (given / "linked").mkdir()
    (given / "linked" / "way-out").symlink_to(base)
    return given


Asked = tuple[str, dict[str, Any]]


def ask(folder: Path, questions: Sequence[Asked]) -> list[tuple[str, bool]]:
    """The answers of one server to questions put one after the other, each with whether it failed."""
    command = [sys.executable, "-m", "whystall", "mcp", "-q", str(folder)]

    async def conversation() -> list[tuple[str, bool]]:
        server = StdioServerParameters(command=command[0], args=command[1:])
        async with stdio_client(server) as (incoming, outgoing), ClientSession(incoming, outgoing) as session:
            await session.initialize()
            answers = [await session.call_tool(name, arguments) for name, arguments in questions]
        return [(answer.content[0].text, bool(answer.is_error)) for answer in answers]  # type: ignore[union-attr]

    return anyio.run(conversation)


def data(answer: tuple[str, bool]) -> Any:
    text, failed = answer
    assert not failed, text
    return json.loads(text)


def test_it_offers_its_tools_with_schemas_and_says_that_names_are_data(folder: Path) -> None:
    async def conversation() -> Any:
        server = StdioServerParameters(command=sys.executable, args=["-m", "whystall", "mcp", "-q", str(folder)])
        async with stdio_client(server) as (incoming, outgoing), ClientSession(incoming, outgoing) as session:
            return await session.initialize(), (await session.list_tools()).tools

    greeting, tools = anyio.run(conversation)
    assert greeting.server_info.name == "whystall"
    assert "never instructions" in greeting.instructions
    assert [tool.name for tool in tools] == [
        "list_runs",
        "analyze",
        "findings",
        "explain",
        "compare",
        "brief",
        "events",
    ]
    schemas = {tool.name: tool.input_schema for tool in tools}
    assert schemas["events"]["properties"]["limit"]["maximum"] == MOST_ROWS
    assert schemas["compare"]["required"] == ["base", "candidate"]
    assert all(tool.annotations.read_only_hint for tool in tools)


def test_a_run_is_listed_analysed_explained_and_compared(folder: Path) -> None:
    listed, told, found, cause, same = ask(
        folder,
        [
            ("list_runs", {}),
            ("analyze", {"path": DEMO}),
            ("findings", {"path": "run"}),
            ("explain", {"cause": "host.sync"}),
            ("compare", {"base": DEMO, "candidate": "report.json"}),
        ],
    )
    paths = {row["path"]: row["kind"] for row in data(listed)["runs"]}
    assert paths == {
        DEMO: "trace",
        "broken.json": "trace",
        "report.json": "report",
        "run/rank0.trace.json.gz": "trace",
    }
    report = whystall.analyze(folder / DEMO, cache=False)
    assert " ".join(report.verdict.summary.split()) in " ".join(told[0].split())
    assert [finding["id"] for finding in data(found)["findings"]] == [finding.id for finding in report.findings]
    assert data(found)["verdict"]["summary"] == report.verdict.summary
    assert data(cause)["remedy"] == causes()["host.sync"].remedy
    assert not same[1]
    assert "no change beyond the noise" in same[0]


def test_events_are_filtered_sorted_counted_and_bounded(folder: Path) -> None:
    trace = whystall.load(folder / DEMO, cache=False)
    mm = trace.operators.filter(trace.operators["name"].cast(str).str.contains("(?i)mm"))
    longest = int(mm["duration_ns"].max())  # type: ignore[arg-type]
    first, some, early = ask(
        folder,
        [
            ("events", {"path": DEMO, "table": "operators", "name_contains": "MM", "limit": 3}),
            ("events", {"path": DEMO, "table": "operators", "name_contains": "mm", "at_least_ns": longest}),
            ("events", {"path": DEMO, "table": "operators", "order": "time", "limit": 2}),
        ],
    )
    found = data(first)
    assert found["matching"] == len(mm)
    assert len(found["events"]) == 3
    assert found["events"][0]["duration_ns"] == longest
    assert found["matching_total_duration_ns"] == int(mm["duration_ns"].sum())
    assert data(some)["matching"] == mm.filter(mm["duration_ns"] >= longest).height
    begins = [event["ts_ns"] for event in data(early)["events"]]
    assert begins == sorted(trace.operators["ts_ns"].to_list())[:2]


@contextmanager
def outside(folder: Path) -> Iterator[list[str]]:
    yield [
        "../secret.json",
        str(folder.parent / "secret.json"),
        "link.json",
        "linked/way-out/secret.json",
        "/etc/passwd",
        "/etc/no-such-file",
        "run/../../secret.json",
        "no\0such",
        "",
        "x" * 2_000,
        "*.json.gz",
    ]


def test_nothing_outside_the_folder_is_read_nor_told_from_what_is_not_there(folder: Path) -> None:
    with outside(folder) as paths:
        answers = ask(folder, [("events", {"path": path}) for path in paths])
        for path, (text, failed) in zip(paths, answers, strict=True):
            assert failed, path
            assert "SECRET" not in text
            assert "root:" not in text
    told = {text.replace(repr(path), "PATH") for path, (text, _) in zip(paths[:7], answers[:7], strict=True)}
    assert told == {"PATH: no such file or folder in the folders that this server was given"}


def test_a_folder_with_a_link_that_leads_out_is_refused(folder: Path) -> None:
    ((text, failed),) = ask(folder, [("analyze", {"path": "linked"})])
    assert failed
    assert text == "linked/way-out is a link that leads out of the folders given: it is not followed"


def test_what_cannot_be_answered_is_a_sentence_and_the_next_question_is_answered(folder: Path) -> None:
    questions: list[Asked] = [
        ("analyze", {"path": "broken.json"}),
        ("analyze", {}),
        ("events", {"path": DEMO, "limit": 100_000}),
        ("events", {"path": DEMO, "table": "__class__"}),
        ("events", {"path": "run"}),
        ("explain", {"cause": "host.snyc"}),
        ("nothing", {}),
        ("analyze", {"path": DEMO, "cache": True}),
    ]
    answers = ask(folder, [*questions, ("explain", {})])
    for question, (text, failed) in zip(questions, answers, strict=False):
        assert failed, question
        assert "Traceback" not in text
        assert str(folder) not in text
        assert "\n" not in text
    assert "did you mean host.sync" in answers[5][0]
    assert list(data(answers[-1])) == list(causes())


def test_a_long_answer_is_cut_and_says_so(tmp_path: Path) -> None:
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": f"{'n' * 900}{number}\u202e\x1b[31m",
            "ts": number,
            "dur": 1,
            "pid": 1,
            "tid": 1,
        }
        for number in range(500)
    ]
    (tmp_path / "long.json").write_text(json.dumps({"traceEvents": events}))
    (answer,) = ask(tmp_path, [("events", {"path": "long.json", "table": "operators", "limit": MOST_ROWS})])
    assert len(answer[0]) <= MOST_CHARACTERS
    assert "\x1b" not in answer[0]
    assert "\u202e" not in answer[0]
    found = data(answer)
    assert found["matching"] == 500
    assert 0 < len(found["events"]) < MOST_ROWS


def test_a_report_is_made_again_when_its_trace_has_changed(folder: Path, tmp_path: Path) -> None:
    from whystall.mcp_server.folders import Folders
    from whystall.mcp_server.tools import Analyze, Tools

    shutil.copy(folder / DEMO, tmp_path / "a.json.gz")
    tools = Tools(Folders([tmp_path]))
    before = tools.analyze(Analyze(path="a.json.gz"))
    TraceBuilder({}).operator("aten::mm", at=0, lasts=1_000).write(tmp_path / "a.json.gz")
    assert tools.analyze(Analyze(path="a.json.gz")) != before


def test_without_the_package_it_says_how_to_get_it(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['mcp'] = None; from whystall.cli import main; sys.exit(main(['mcp', '.']))"
    done = subprocess.run([sys.executable, "-c", hidden], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "whystall: `whystall mcp` needs the package mcp: pip install 'whystall[mcp]'\n"


def test_what_is_no_folder_is_refused_at_the_start(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "whystall", "mcp", str(tmp_path / "none")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "is no folder" in done.stderr
