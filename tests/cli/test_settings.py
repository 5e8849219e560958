from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Cli, FakeApi


def test_the_project_file_supplies_defaults(cli: Cli, api: FakeApi, trace_file: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.whystall]\nno-cache = true\nquiet = true\n")

    assert cli("analyze", trace_file).err == ""
    assert api.analyzed[0][1]["cache"] is False


def test_a_verb_has_its_own_table_which_wins(cli: Cli, api: FakeApi, trace_file: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.whystall]\nno-cache = true\n[tool.whystall.analyze]\nno-cache = false\njson = true\n"
    )

    assert cli("analyze", trace_file).out.startswith("<json>")
    assert api.analyzed[0][1]["cache"] is True


def test_an_argument_beats_the_configuration(cli: Cli, api: FakeApi, trace_file: Path, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text('kernel-classes = "theirs.toml"\n')

    cli("analyze", trace_file, "--config", "settings.toml", "--kernel-classes", "mine.toml")

    assert api.analyzed[0][1]["kernel_classes"] == "mine.toml"


def test_paths_are_relative_to_the_file_that_names_them(
    cli: Cli, api: FakeApi, trace_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "settings.toml").write_text('kernel-classes = "kernels.toml"\n')

    cli("analyze", trace_file, "--config", "team/settings.toml")

    assert api.analyzed[0][1]["kernel_classes"] == "team/kernels.toml"


def test_outputs_can_be_configured(cli: Cli, api: FakeApi, trace_file: Path, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text('[analyze]\noutput = ["a.html", "b.md"]\n')

    assert cli("analyze", trace_file, "--config", "settings.toml").code == 0
    assert (tmp_path / "a.html").exists()
    assert (tmp_path / "b.md").exists()


def test_an_option_of_another_verb_is_ignored(cli: Cli, api: FakeApi, trace_file: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.whystall]\nno-open = true\n")

    assert cli("analyze", trace_file).code == 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("speed = 9\n", "no verb and no option is called 'speed'"),
        ("[analyze]\nspeed = 9\n", "analyze has no option 'speed'"),
        ("force = true\n", "no verb and no option is called 'force'"),
        ("no-cache = 1\n", "no-cache must be true or false, not 1"),
        ("kernel-classes = 3\n", "kernel-classes must be a string, not 3"),
        ("analyze = 3\n", "analyze must be a table, not 3"),
    ],
)
def test_a_setting_that_makes_no_sense_ends_with_2(
    text: str, sentence: str, cli: Cli, api: FakeApi, trace_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "settings.toml").write_text(text)

    outcome = cli("analyze", trace_file, "--config", "settings.toml")

    assert outcome.code == 2
    assert sentence in outcome.err


@pytest.mark.parametrize("content", [None, "not = = toml", "\ufeffx = 1"])
def test_a_configuration_that_cannot_be_read_ends_with_3(
    content: str | None, cli: Cli, api: FakeApi, trace_file: Path, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "settings.toml").write_text(content)

    outcome = cli("analyze", trace_file, "--config", "settings.toml")

    assert outcome.code == 3
    assert "settings.toml" in outcome.err


def test_a_project_file_without_our_table_changes_nothing(
    cli: Cli, api: FakeApi, trace_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")

    assert cli("analyze", trace_file).code == 0
