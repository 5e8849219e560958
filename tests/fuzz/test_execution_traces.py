"""Whatever an execution trace says, there is a graph whose numbers fit each other, or a sentence that refuses it."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

from tests.fuzz.mutations import damaged

from whystall.analysis.dataflow.chosen_calls import chosen_calls
from whystall.analysis.dataflow.demand import unread
from whystall.analysis.dataflow.recorded import as_recorded
from whystall.analysis.dataflow.sameness import computed_again
from whystall.errors import InputError
from whystall.trace.readers.execution_trace import read_execution_trace

RECORDED = Path(__file__).parents[1] / "trace" / "readers" / "execution_traces" / "training.json.gz"
CASES = int(os.environ.get("WHYSTALL_FUZZ_CASES", "300"))


def test_damaged_ones_are_read_or_refused(tmp_path: Path) -> None:
    originals, path, read = [gzip.decompress(RECORDED.read_bytes())[:20_000]], tmp_path / "trace.json", 0
    for seed in range(CASES):
        path.write_bytes(damaged(seed, originals))
        try:
            execution = read_execution_trace(path)
        except InputError:
            continue
        read += 1
        graph = as_recorded(execution)
        chosen = chosen_calls(execution)
        assert all(one.first < one.call < len(chosen.calls) for one in computed_again(chosen)), seed
        assert all(0 <= place < len(chosen.calls) for place in unread(chosen)), seed
        assert len({node.number for node in execution.nodes}) == len(execution.nodes), seed
        assert (graph.made_by < len(graph.rows)).all(), seed
        assert (graph.read < len(graph.made_by)).all(), seed
        assert all(graph.maker(value) <= node for node in range(len(graph.rows)) for value in graph.given(node)), seed
    assert read > CASES // 4
