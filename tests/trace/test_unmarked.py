"""Recorded traces without their marks: steps by repetition are those that the marks show, or none."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from tests.conftest import RealTraces

import whystall

_MARKS: Final = re.compile(r"^(ProfilerStep|Optimizer\.|nn\.Module: )")
_OF_ANNOTATIONS: Final = frozenset({"user_annotation", "gpu_user_annotation"})


def _period(starts: Any) -> float:
    return float(np.median(np.diff(np.sort(starts.to_numpy()))))


@pytest.mark.parametrize(
    ("name", "surely"),
    [
        ("ddp-2rank-a100.json.gz", True),
        ("dlrm-8rank-a100.json.gz", True),
        ("resnet50-workers0-v100.json.gz", True),
        ("resnet50-workers4-v100.json.gz", True),
        ("../recordings/wenlu-opt.json.gz", True),
        ("../recordings/reports/queue-attention/rank0.trace.json.gz", True),
        ("cnn-v100-ns.json.gz", False),
        ("recsys-2rank-v100.json.gz", False),
        ("mtia-inference.json.gz", False),
        ("../recordings/sam-fast-7055eae.json.gz", False),
        ("../recordings/kf-lambda.json.gz", False),
    ],
)
def test_steps_without_marks_are_those_of_the_marks(
    real_traces: RealTraces, tmp_path: Path, name: str, *, surely: bool
) -> None:
    path = real_traces.path(name)
    marked = whystall.load(path, cache=False).steps
    trace = json.loads(gzip.decompress(path.read_bytes()))
    trace["traceEvents"] = [
        event
        for event in trace["traceEvents"]
        if event.get("cat") not in _OF_ANNOTATIONS and not _MARKS.match(str(event.get("name")))
    ]
    (tmp_path / "unmarked.json").write_text(json.dumps(trace))
    unmarked = whystall.load(tmp_path / "unmarked.json", cache=False)
    assert len(unmarked.steps) in ({len(marked)} if surely else {0, len(marked)})
    if len(unmarked.steps):
        assert unmarked.steps_from == "the same launches again and again (the recording has no marks)"
        assert _period(unmarked.steps["ts_ns"]) == pytest.approx(_period(marked["ts_ns"]), rel=0.03)
