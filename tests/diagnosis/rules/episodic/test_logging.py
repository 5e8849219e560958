"""episodic.logging: printing and logging that training waits for fire it, by any package's names; logarithms do not."""

from __future__ import annotations

from typing import Final

import pytest
from msgspec.structs import replace
from tests.diagnosis.cases import found_in, found_in_runs, line, run
from tests.diagnosis.jobs import Job, is_worth

from whystall.run_folder.samples import CALLED

PRODUCT_NS: Final = 2_000_000
LOG_NS: Final = 4_000_000
EVERY: Final = 4


def training(name: str, lasts: int = LOG_NS, *, frame: bool = True, api: str = "cuda") -> Job:
    """Twenty-six steps of a product; in every fourth something else is done before, under a name."""
    job = Job(api=api)
    for number in job.steps(26):
        if number % EVERY == 1:
            mark = job.built.python if frame else job.built.annotation
            mark(name, at=job.at, lasts=lasts)
            job.python(lasts)
        job.operator("aten::mm", "gemm", PRODUCT_NS)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("name", "frame", "api"),
    [
        ("log", False, "cuda"),
        ("logging/__init__.py(1477): info", True, "cuda"),
        ("logging/__init__.py(1477): info", True, "hip"),
        ("<built-in function print>", True, "cuda"),
        ("wandb/sdk/wandb_run.py(1765): log", True, "cuda"),
        ("torch/utils/tensorboard/writer.py(370): add_scalar", True, "cuda"),
        ("mlflow/tracking/fluent.py(812): log_metric", True, "cuda"),
        ("tqdm/std.py(1325): refresh", True, "cuda"),
        ("<built-in function fsync>", True, "cuda"),
    ],
)
def test_logging_every_fourth_step_is_worth_a_fourth_of_it(name: str, frame: bool, api: str) -> None:
    finding = found_in(training(name, frame=frame, api=api).built)["episodic.logging"]
    step = PRODUCT_NS + 8_000
    is_worth(finding, (step + LOG_NS / EVERY) / step, within=0.1)


@pytest.mark.parametrize(
    ("name", "frame"),
    [
        ("<built-in method log of type object at 0x7f0a1c2b3d40>", True),  # torch.log
        ("<built-in method log of Tensor object at 0x7f0a1c2b3d40>", True),
        ("<built-in function log>", True),  # math.log
        ("datasets/fingerprint.py(230): update_fingerprint", True),
        ("torch/nn/functional.py(2180): log_softmax", True),
        ("train.py(31): catalogue", True),
        ("torch/serialization.py(943): save", True),  # is a checkpoint, whatever it logs
    ],
)
def test_logarithms_and_other_words_with_the_same_letters_are_none(name: str, frame: bool) -> None:
    assert "episodic.logging" not in found_in(training(name, frame=frame).built)


def test_a_short_line_is_none() -> None:
    assert "episodic.logging" not in found_in(training("<built-in function print>", 50_000).built)


@pytest.mark.parametrize(
    ("text", "leaf", "part"),
    [
        ("print(loss.item())", "__main__:main", "other"),
        ("x = f()", "logging:emit", "other"),
        ("x = f()", "__main__:main", "logging"),
        ("run.log({'loss': loss})", "__main__:main", "other"),
        ("writer.add_scalar('loss', loss, step)", "__main__:main", "other"),
        ("x = f()", "tensorboard.summary.writer:flush", "other"),
        ("json.dump(metrics, file)", "json.encoder:iterencode", "other"),
        ("self.log.info('step %d', step)", "__main__:main", "other"),
        ("logger.log_metrics(metrics)", "__main__:main", "other"),
    ],
)
def test_looks_that_found_a_line_that_logs(text: str, leaf: str, part: str) -> None:
    found = found_in_runs(run(shares={"other": 0.22}, places=[line(0.2, text, leaf=leaf, part=part)]))
    assert list(found) == ["episodic.logging"]
    is_worth(found["episodic.logging"], 1 / (1 - 0.2), within=0.1)
    assert [(place.file, place.line, place.symbol) for place in found["episodic.logging"].code] == [
        ("train.py", 7, text)
    ]


@pytest.mark.parametrize(
    ("function", "leaf", "part"),
    [
        ("rank_auroc", CALLED, "forward"),
        ("update_metrics", CALLED, "other"),
        ("phone_error_rate", "train:distance", "other"),
        ("training_step", "torchmetrics.classification.auroc:compute", "forward"),
        ("distance", CALLED, "metric"),  # as it is seen from within a job: a function further out has the name
    ],
)
def test_a_metric_that_is_worked_out_in_each_step_is_told(function: str, leaf: str, part: str) -> None:
    """A third of the steps of a job went into the ranks of all scores of the epoch; "healthy" before."""
    seen = replace(line(0.35, "order = scores.argsort()", leaf=leaf, part=part), function=function)
    model = line(0.25, "return self.net(x)", leaf=CALLED, part="forward", at=9)
    shares = {"forward": 0.6 if part == "forward" else 0.25, "other": 0.05 if part == "forward" else 0.35}
    found = found_in_runs(run(shares=shares, places=[seen, model]))
    assert "episodic.logging" in found
    assert "a metric" in found["episodic.logging"].title
    remedy = found["episodic.logging"].remedy
    assert remedy is not None
    assert "every N steps" in remedy.text
    is_worth(found["episodic.logging"], 1 / (1 - 0.35), within=0.1)


@pytest.mark.parametrize(
    ("function", "part"),
    [
        ("soft_dice_loss", "forward"),
        ("approx_ndcg_objective", "forward"),
        ("auc_margin_loss", "forward"),
        ("metric_learning_step", "forward"),
        ("forward", "forward"),
        ("rank_auroc", "backward"),
        ("powers", "other"),
    ],
)
def test_what_is_trained_by_is_no_metric(function: str, part: str) -> None:
    seen = replace(line(0.35, "order = scores.argsort()", leaf=CALLED, part=part), function=function)
    found = found_in_runs(run(shares={"forward": 0.6, "other": 0.36}, places=[seen]))
    assert "episodic.logging" not in found


@pytest.mark.parametrize(("part", "fires"), [("optimizer", True), ("forward", False)])
def test_what_a_trainers_callback_works_out_to_write_is_logging(part: str, *, fires: bool) -> None:
    """Of a function that runs within the optimizer's step alone and writes, all is; of the model's nothing."""
    places = [
        line(0.5, "edges = torch.quantile(weights, points)", leaf=CALLED, part=part, at=5),
        line(0.02, 'file.write(json.dumps(row) + "\\n")', part=part, at=9),
    ]
    found = found_in_runs(run(shares={part: 0.7, "other": 0.05}, places=places))
    assert ("episodic.logging" in found) is fires
    if fires:
        assert found["episodic.logging"].code[0].line == 5


@pytest.mark.parametrize(
    ("share", "text", "leaf", "part"),
    [
        (0.015, "print(loss.item())", "__main__:main", "other"),
        (0.2, "x = torch.log(y)", "torch:log", "forward"),
        (0.2, "blueprint = f()", "torch.nn.functional:cross_entropy", "other"),
    ],
)
def test_short_lines_and_arithmetic_are_none(share: float, text: str, leaf: str, part: str) -> None:
    assert found_in_runs(run(shares={"other": 0.22}, places=[line(share, text, leaf=leaf, part=part)])) == {}


@pytest.mark.parametrize(
    ("text", "leaf"),
    [
        ('payload = json.dumps({"vectors": vectors.tolist()}).encode()', "json.encoder:iterencode"),
        ("record = json.loads(row)", "json.decoder:decode"),
        ("for row in csv.DictReader(file):", "csv:__next__"),
        ("rows = self.log.filter(pl.col('customer') == customer).tail(40)", "polars.dataframe:filter"),
        ("seen = log.groupby('user').size()", "pandas.core:size"),
    ],
)
def test_messages_and_rows_that_are_read_are_python(text: str, leaf: str) -> None:
    found = found_in_runs(run(shares={"other": 0.22}, places=[line(0.2, text, leaf=leaf, part="other")]))
    assert list(found) == ["host.python"]


@pytest.mark.parametrize(
    ("opens", "beside", "told"),
    [
        pytest.param('with open(self.path, "w") as f:', "json.dump(self.history, f)", True, id="all rows, each time"),
        pytest.param("with path.open('wt') as f:", "f.write(line)", True, id="by a path"),
        pytest.param("with open(self.path) as f:", "json.dump(self.history, f)", False, id="a file that is read"),
        pytest.param(
            'with open(self.path, "wb") as f:', "rows = self.sort(rows)", False, id="nothing is logged beside"
        ),
    ],
)
def test_a_file_that_is_written_anew_for_each_step_is_logging_where_it_is_closed(
    opens: str, beside: str, *, told: bool
) -> None:
    """What is written goes out at the end of the block, for which its first line stands: 0.25 of a step, and 0.13."""
    places = [
        line(0.25, opens, leaf="__main__:add", at=89),
        line(0.13, beside, leaf="json:dump", at=90),
        line(0.62, "loss.backward()", part="backward", at=9),
    ]
    found = found_in_runs(run(shares={"other": 0.4, "backward": 0.6}, places=places))
    logged = found.get("episodic.logging")
    assert (next(iter(found)) == "episodic.logging") is told
    if told:
        assert logged is not None
        assert logged.gain is not None
        assert logged.gain.floor <= 1 / (1 - 0.38) <= logged.gain.ceiling
        assert logged.remedy is not None
        assert "append" in logged.remedy.text
        assert [place.line for place in logged.code] == [89, 90]
