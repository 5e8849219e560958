"""host.model-rebuilt: modules that are made in the steps are told; weights that are copied on purpose are not."""

from __future__ import annotations

import pytest
from tests.diagnosis.cases import found_in_runs, line, run

from whystall.analysis.run_results import SampledLine

INIT = "torch.nn.init:_no_grad_uniform_"
MADE = "torch.nn.modules.linear:__init__"
FILLED = "torch.serialization:load_tensor"
LOADED = "torch.nn.modules.module:load_state_dict"


def told(*places: SampledLine) -> dict[str, object]:
    other = sum(place.share for place in places)
    return dict(found_in_runs(run(shares={"other": other, "forward": 1 - other}, places=list(places))))


def test_a_model_for_each_request_is_told_with_its_lines_before_the_python_in_it() -> None:
    """Making and loading took 0.58 of such a request, and the request without both was 3.09 times as fast."""
    found = found_in_runs(
        run(
            shares={"other": 0.57, "forward": 0.43},
            places=[
                line(0.38, "self.rnn = nn.LSTM(256, 256)", leaf=INIT, at=26),
                line(0.02, "self.out = nn.Linear(256, 64)", leaf=MADE, at=27),
                line(0.16, "model.load_state_dict(torch.load(path))", leaf=FILLED, at=49),
            ],
        )
    )
    assert next(iter(found)) == "host.model-rebuilt"
    gain = found["host.model-rebuilt"].gain
    assert gain is not None
    assert gain.floor <= 1 / (1 - 0.56) <= gain.ceiling
    assert found["host.model-rebuilt"].code[0].line == 26


def test_a_model_is_known_where_every_look_found_the_numbers_of_its_one_large_layer() -> None:
    """Some looks are too few to find the constructor itself, whose own work is a hundredth of it."""
    found = told(line(0.8, "self.words = nn.Embedding(2000, 256)", leaf="torch.nn.init:_no_grad_normal_", at=5))
    assert next(iter(found)) == "host.model-rebuilt"


@pytest.mark.parametrize(
    "places",
    [
        pytest.param([line(0.3, "target.load_state_dict(model.state_dict())", leaf=LOADED)], id="a target is updated"),
        pytest.param([line(0.3, "nn.init.normal_(noise)", leaf="torch.nn.init:normal_")], id="noise of one line"),
        pytest.param([line(0.3, "", leaf="torch.nn.init:normal_")], id="a line that is not known"),
        pytest.param([line(0.3, "torch.load(path)", leaf=FILLED)], id="a file of tensors"),
        pytest.param([line(0.3, "copy.deepcopy(model)", leaf="copy:deepcopy")], id="a copy for a client"),
        pytest.param([line(0.02, "nn.Linear(2, 2)", leaf=MADE)], id="a small part once in a while"),
    ],
)
def test_what_makes_no_module_is_no_model_that_is_made_again(places: list[SampledLine]) -> None:
    assert "host.model-rebuilt" not in told(*places)
