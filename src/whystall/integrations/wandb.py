"""A run that has ended as a run of Weights & Biases: into a folder, without the net, unless the user asks for more."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from whystall.errors import UsageError
from whystall.vocabulary.metrics import Told

PROJECT: Final = "whystall"
_BINS: Final = 64


def log_run(told: Told, where: str | None) -> tuple[str, str]:
    """Adds the run below the folder ``where``; returns the added item, and the command that shows it.

    With ``WANDB_MODE=online`` it is sent, too, by who has logged in. The project is that of ``WANDB_PROJECT``, else
    ``whystall``. Raises `UsageError` where that cannot be.
    """
    if where is None:
        raise UsageError("wandb writes a run into a folder: name one with -o")
    online = os.environ.get("WANDB_MODE") == "online"
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb  # noqa: PLC0415 - it reads the environment when it is imported

    try:
        Path(where).mkdir(parents=True, exist_ok=True)
        if online:
            wandb.Api()  # fails here without a login, instead of asking for a key
        with wandb.init(settings=_settings(told.run, where, online=online)) as run:
            _log(told, run)
            folder, address = Path(run.dir).parent, run.url if online else None
    except (wandb.Error, OSError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise UsageError(f"W&B: {said[0]}") from None
    return str(folder), str(address or f"wandb sync {folder}")


def _settings(name: str, where: str, *, online: bool) -> Any:
    """Settings of a run without data on the machine, the user, or the folder that it is made in."""
    from wandb import Settings  # noqa: PLC0415 - likewise

    return Settings(
        mode="online" if online else "offline",
        root_dir=where,
        run_name=name,
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        host="",
        console="off",
        silent=True,
        disable_code=True,
        disable_git=True,
        save_code=False,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )


def _log(told: Told, run: Any) -> None:
    from wandb import Histogram, Html  # noqa: PLC0415 - likewise

    by_step: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for times in told.times:
        for step, seconds in zip(times.steps, times.seconds, strict=True):
            by_step[step][times.path] = seconds
    for step in sorted(by_step):
        run.log(by_step[step], step=step)
    whole: dict[str, Any] = dict(told.numbers)
    for times in told.times:
        whole[times.histogram_path] = Histogram(np_histogram=np.histogram(times.seconds, _BINS))
    run.log(whole | {"whystall_report": Html(told.page, inject=False)})
    run.summary.update({"whystall_verdict": told.verdict, "whystall_cause": told.cause})
