"""A run that has ended as a run of MLflow, by MLflow's own client, which adds neither user nor command line."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from whystall.errors import UsageError
from whystall.vocabulary.metrics import Told

EXPERIMENT: Final = "whystall"
_AT_ONCE: Final = 1000
"""MLflow takes no more metrics in a request."""
_RETRIES: Final = "2"
"""By default MLflow retries an absent server for minutes."""


def log_run(told: Told, where: str | None) -> tuple[str, str]:
    """Adds the run to the store ``where``; returns the added item, and the command that shows it.

    ``where`` is a folder, which gets a database and artifacts, or a tracking URI; ``None``: ``MLFLOW_TRACKING_URI``.
    The experiment is that of ``MLFLOW_EXPERIMENT_NAME``, else ``whystall``. Raises `UsageError` where MLflow refuses.
    """
    uri = where or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        raise UsageError("name a folder or a tracking URI with -o, or set MLFLOW_TRACKING_URI")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", _RETRIES)
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - it reads the environment when it is imported

    for chatty in ("mlflow", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)

    artifacts = None
    if "://" not in uri:
        if find_spec("sqlalchemy") is None:
            raise UsageError("a folder needs MLflow's database, which mlflow-skinny lacks: pip install mlflow")
        folder = Path(uri).absolute()
        uri, artifacts = f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()
    try:
        if artifacts:
            folder.mkdir(parents=True, exist_ok=True)
        run_id = _logged(told, uri, artifacts)
    except (MlflowException, OSError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise UsageError(f"MLflow: {said[0].replace(uri.rstrip('/'), 'the server')}") from None
    shown_by = f"mlflow ui --backend-store-uri {uri}" if artifacts else f"open the experiment {_experiment()} in MLflow"
    return f"run {run_id} of MLflow", shown_by


def _experiment() -> str:
    return os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)


def _logged(told: Told, uri: str, artifacts: str | None) -> str:
    from mlflow import MlflowClient  # noqa: PLC0415 - likewise

    client: Any = MlflowClient(tracking_uri=uri)
    name = _experiment()
    known = client.get_experiment_by_name(name)
    number = known.experiment_id if known else client.create_experiment(name, artifact_location=artifacts)
    tags = {"mlflow.note.content": told.verdict, "whystall.verdict": told.verdict, "whystall.cause": told.cause or ""}
    run_id: str = client.create_run(number, run_name=told.run, tags=tags).info.run_id
    metrics = list(_metrics(told))
    for begin in range(0, len(metrics), _AT_ONCE):
        client.log_batch(run_id, metrics=metrics[begin : begin + _AT_ONCE])
    client.log_text(run_id, told.page, "whystall.html")
    client.set_terminated(run_id)
    return run_id


def _metrics(told: Told) -> Iterator[Any]:
    from mlflow.entities import Metric  # noqa: PLC0415 - likewise

    for path, number in told.numbers.items():
        yield Metric(path, number, round(told.began_unix_s * 1000), 0)
    for times in told.times:
        for step, at, seconds in zip(times.steps, times.ended_unix_s, times.seconds, strict=True):
            yield Metric(times.path, seconds, round(at * 1000), step)
