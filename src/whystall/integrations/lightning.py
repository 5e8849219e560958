"""Lightning: a callback for its ``Trainer``.

    Trainer(..., callbacks=[WhystallCallback(output="runs/first")])

Tested against the real package (tests/integrations).
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from whystall.capture.profile import profile


class WhystallCallback(Callback):
    """Watches ``fit`` from its begin to its end; the arguments are those of `whystall.profile`."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._watched: profile | None = None

    @property
    def output(self) -> Any:
        """The run folder, once training has begun."""
        return None if self._watched is None else self._watched.output

    def on_train_start(self, _trainer: Any, pl_module: Any) -> None:
        """Begins to watch."""
        self._watched = profile(pl_module, **self._options).__enter__()

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """A batch after which the optimizer has stepped ends a step."""
        if self._watched is not None and not trainer.fit_loop._should_accumulate():  # noqa: SLF001 - no public name
            self._watched.step()

    def on_train_end(self, *_: Any) -> None:
        """Writes the run folder."""
        if self._watched is not None:
            self._watched.__exit__(None, None, None)

    def on_exception(self, *_: Any) -> None:
        """Writes the results so far."""
        self.on_train_end()
