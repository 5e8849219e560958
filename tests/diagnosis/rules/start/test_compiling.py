"""start.compiling: compilers at work until the first step ends fire it; a warm cache may leave nothing to save."""

from __future__ import annotations

from tests.diagnosis.rules.start.jobs import S, found, line


def test_compilation_is_named_and_may_save_nothing() -> None:
    (finding,) = found(line("code generation", 4, "loss = model(batch)")).values()
    assert (finding.id, finding.evidence[0].value) == ("start.compiling", 4 * S)
    assert finding.remedy is not None
    assert "INDUCTOR" in finding.remedy.text
    assert finding.saves is not None
    assert (finding.saves.floor_ns, finding.saves.ceiling_ns < 4 * S) == (0, True)


def test_no_cache_keeps_what_is_traced() -> None:
    (finding,) = found(line("compile", 4, "loss = model(batch)")).values()
    assert finding.remedy is not None
    assert "INDUCTOR" not in finding.remedy.text
    assert finding.saves is None


def test_the_models_own_first_step_is_none() -> None:
    assert found(line("model", 4, "loss = model(batch)")) == {}
