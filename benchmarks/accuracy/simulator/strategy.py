"""What working together adds to a rank's script; a single rank adds nothing."""

from __future__ import annotations

from benchmarks.accuracy.simulator.engine import Steps
from benchmarks.accuracy.simulator.host import Thread


class Strategy:
    """Hooks that the training loop calls; each may take host time and launch work."""

    forward: str = ""
    """What the wrapper marks its forward pass with."""

    def begin(self, *, last: bool) -> None:
        """A backward pass begins; the last one before the optimizer's step, or not."""

    def before_forward(self, thread: Thread, block: str) -> Steps:  # noqa: ARG002 - hooks share a signature
        """A block's forward pass is next."""
        yield from ()

    def after_forward(self, thread: Thread, block: str) -> Steps:  # noqa: ARG002
        """A block's forward pass was issued."""
        yield from ()

    def before_backward(self, thread: Thread, block: str) -> Steps:  # noqa: ARG002
        """A block's backward pass is next."""
        yield from ()

    def after_backward(self, thread: Thread, block: str) -> Steps:  # noqa: ARG002
        """A block's backward pass was issued."""
        yield from ()

    def gradient(self, thread: Thread, shape: tuple[int, ...]) -> Steps:  # noqa: ARG002
        """A gradient is ready."""
        yield from ()

    def finish(self, thread: Thread) -> Steps:  # noqa: ARG002
        """The backward pass is over."""
        yield from ()
