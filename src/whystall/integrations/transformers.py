"""Hugging Face Transformers: a callback for ``Trainer``.

    Trainer(..., callbacks=[WhystallCallback(output="runs/first")])

Tested against the real package (tests/integrations).
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from whystall.capture.profile import profile


class WhystallCallback(TrainerCallback):
    """Watches training from its begin to its end; the arguments are those of `whystall.profile`."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._watched: profile | None = None

    @property
    def output(self) -> Any:
        """The run folder, once training has begun."""
        return None if self._watched is None else self._watched.output

    def on_train_begin(self, _args: Any, _state: Any, _control: Any, model: Any = None, **_: Any) -> None:
        """Begins to watch."""
        self._watched = profile(model, **self._options).__enter__()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """One optimizer step, gradient accumulation included, is a step."""
        if self._watched is not None:
            self._watched.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Writes the run folder."""
        if self._watched is not None:
            self._watched.__exit__(None, None, None)
