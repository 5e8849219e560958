"""The capture as a Python API, for programs that mark its begin and their steps themselves."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from whystall.capture import startup
from whystall.capture.config import CaptureConfig, Schedule
from whystall.capture.profile_folder import finished, prepared
from whystall.run_folder.layout import folder_for

if TYPE_CHECKING:
    from pathlib import Path

    import torch


class profile:  # noqa: N801 - it is used like torch.profiler.profile
    """Watches what runs inside the ``with`` block and leaves a run folder.

    Steps are found as ``whystall run`` finds them, unless `step` is called: then each call ends one. Inside
    a job that ``whystall run`` watches already, steps go to that capture and nothing else is begun.

    The run of an earlier block of the same process, or of one that has ended, in ``output`` is replaced, as when a
    notebook's cell runs again; a folder that holds anything else is left alone, and ``output`` names the one beside it.

    >>> import torch, whystall, tempfile
    >>> model = torch.nn.Linear(4, 4)
    >>> with whystall.profile(model, output=tempfile.mkdtemp()) as watched:
    ...     for _ in range(12):
    ...         _ = model(torch.ones(2, 4)).sum().backward()
    ...         watched.step()
    >>> whystall.analyze(watched.output).run[0].steps
    11
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        *,
        schedule: Schedule | None = None,
        output: str | Path | None = None,
        shapes: bool = True,
        stacks: bool = False,
        modules: bool = False,
        memory: bool = False,
    ) -> None:
        folder = folder_for("profile", None if output is None else str(output), now=time.localtime(), environment={})
        self.output = folder
        self._model = model
        self._config = CaptureConfig(
            folder=str(folder.resolve()),
            schedule=schedule or Schedule(),
            shapes=shapes,
            stacks=stacks,
            modules=modules,
            memory=memory,
        )
        self._session = startup.session()
        self._owns_session = self._session is None

    def __enter__(self) -> Self:
        """Begins to watch."""
        if self._session is None:
            import torch  # noqa: PLC0415 - the user has it

            from whystall.capture.session import Session  # noqa: PLC0415 - needs torch

            self.output = prepared(self.output, self._config.schedule)
            self._config = msgspec.structs.replace(self._config, folder=str(self.output.resolve()))
            self._session = Session(torch, self._config)
            self._session.open(whole_process=False)
            if self._model is not None:
                self._session.watch(self._model)
        return self

    def step(self) -> None:
        """Says that a step has ended."""
        if self._session is not None:
            self._session.step_by_hand()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ends the watch and writes the run folder."""
        if self._session is not None and self._owns_session:
            self._session.close()
            finished(self.output, self._config.schedule)
