"""One result of each verb that writes a page, made without running anything."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.diagnosis.test_comparison import compared, loop
from tests.memory.program import MIB, Program, training
from tests.probe.comm.test_parts import swept_rows
from tests.report.test_probe_text import A100

from whystall.hardware import find
from whystall.memory.explain import explain
from whystall.memory.read import read_snapshot
from whystall.memory.results import MemoryReport
from whystall.model.results import Amount, ModelProfile, ModuleProfile
from whystall.probe.comm.against import against
from whystall.report.comm_text import sweep_document
from whystall.report.comparison_page import comparison_document
from whystall.report.document import PAGE_WIDTH, Document
from whystall.report.document_page import as_page
from whystall.report.memory_text import memory_document
from whystall.report.model_page import render_model_page
from whystall.report.probe_text import calibration_document
from whystall.report.tune_text import tuning_document
from whystall.verify.tune.results import LeftOut, Trial, Tuning

HOSTILE = "</td><img src=x onerror=window.pwned=1><b>\u202e"


def snapshot(program: Program, name: str = "snapshot.pickle") -> MemoryReport:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "s.pickle"
        path.write_bytes(pickle.dumps(program.snapshot()))
        return replace(explain(read_snapshot(path, None), 200), file=name)


def memory() -> Document:
    hostile = Program()
    hostile.alloc(MIB, ((HOSTILE, f"/home/me/{HOSTILE}.py", 3),))
    hostile.alloc(2 * MIB, ((HOSTILE, f"/home/me/{HOSTILE}.py", 4),))
    return memory_document([snapshot(training(8, leak=MIB)), snapshot(hostile, HOSTILE)], PAGE_WIDTH)


def compare() -> Document:
    return comparison_document(compared(loop(500_000, fetch_ns=300_000, name=HOSTILE), loop(500_000)))


def comm() -> Document:
    return sweep_document(swept_rows(), None, against(swept_rows(), swept_rows(2.0)))


def probe() -> Document:
    return calibration_document(A100, find(A100.device), [("fp8", HOSTILE)])


def tune() -> Document:
    trial = Trial(
        name="--width",
        value=HOSTILE,
        before_s=[0.02] * 3,
        after_s=[0.01] * 3,
        speedup=2.0,
        interval=None,
        verdict="faster",
    )
    found = Tuning(
        trials=[trial], left_out=[LeftOut(name="num_workers", because=HOSTILE)], settings={"--width": HOSTILE},
        confirmed=trial, noise=1.01, runs=9, step_s=0.02, ended_because="nothing is left to try", seen=None,
    )  # fmt: skip
    return tuning_document(found, None, [f"train.py:7: {HOSTILE}"])


def model() -> str:
    def module(path: str, depth: int) -> ModuleProfile:
        work = Amount(model_flops=3 * 10**9, all_flops=4 * 10**9, bytes=10**6, time_ns=2_000_000)
        return ModuleProfile(
            path=path, class_name=HOSTILE, parent=None if depth == 0 else "" if depth == 1 else path.rpartition(".")[0],
            depth=depth, calls=1, recompute_calls=0, parameters=10**6, trainable_parameters=10**6, forward=work,
            backward=work, recompute=Amount(), optimizer=Amount(), input_gradient_flops=0, weight_gradient_flops=0,
        )  # fmt: skip

    top = module("", 0)
    profile = ModelProfile(
        parameters=10**6, trainable_parameters=10**6, forward=top.forward, backward=top.backward, recompute=Amount(),
        optimizer=Amount(), input_gradient_flops=0, weight_gradient_flops=0, operators=(), uncovered=(),
        modules=(top, *(module(f"layers.{number}", 1) for number in range(3)), module("layers.0.linear", 2)),
    )  # fmt: skip
    return render_model_page(profile, title=f"{HOSTILE}.py:model", conventions={"6N": 6 * 10**6})


DOCUMENTS: dict[str, Callable[[], Document]] = {
    "memory": memory, "compare": compare, "comm": comm, "probe": probe, "tune": tune,
}  # fmt: skip


def page(name: str) -> str:
    return model() if name == "model" else as_page(DOCUMENTS[name]())


PAGES = (*DOCUMENTS, "model")
