"""start.imports: packages that no step uses fire it; torch, packages at work in steps and hidden imports do not."""

from __future__ import annotations

from tests.diagnosis.rules.start.jobs import HIDDEN, IMPORTS, PREPARES, S, found, line


def test_imports_of_a_fifth_of_the_job_are_named() -> None:
    (finding,) = found(IMPORTS).values()
    assert (finding.id, finding.severity, finding.gain) == ("start.imports", "info", None)
    assert (finding.evidence[0].value, finding.evidence[1].value) == (4 * S, 0.2)
    assert (finding.code[0].file, finding.code[0].line) == ("train.py", IMPORTS.line)


def test_the_time_of_a_line_is_summed_over_the_packages_that_it_loads() -> None:
    loads = [line("imports", 1, "import many", at=8, leaf=f"part{one}:<module>") for one in range(3)]
    (finding,) = found(*loads, line("imports", 2, "import one", at=4, leaf="one:<module>")).values()
    assert [(one.line, one.share) for one in finding.code] == [(8, 0.6), (4, 0.4)]


def test_a_package_that_another_line_needs_stays() -> None:
    shared = line("imports", 3, "import many", at=8, leaf="kept.inner:<module>")
    assert found(shared, used=["kept"]) == {}


def test_a_package_at_work_in_steps_is_needed() -> None:
    assert found(IMPORTS, used=["heavy"]) == {}


def test_a_line_is_needed_if_one_of_its_packages_is() -> None:
    several = line("imports", 4, "import time, torch_geometric as geometric", at=1, leaf="scipy.sparse:<module>")
    assert found(several, used=["torch_geometric"]) == {}
    assert list(found(several, used=["other"])) == ["start.imports"]


def test_an_import_hidden_in_a_constructor_is_left_alone() -> None:
    """No change of the job avoids it."""
    assert found(HIDDEN) == {}


def test_imports_and_set_up_are_two_causes() -> None:
    assert set(found(IMPORTS, PREPARES)) == {"start.imports", "start.set-up"}
