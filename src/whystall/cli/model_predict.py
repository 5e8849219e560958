"""``whystall model --predict``: what a step would need, without running it and without its device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from whystall.errors import InputError, UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console
    from whystall.model.prediction.results import Prediction

CHECKPOINTS = ("none", "selective", "full")
STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "fsdp2")
KERNELS = ("default", "foreach", "single", "fused")
AUTOCASTS = ("bf16", "fp16")


def add_arguments(parser: ArgumentParser) -> None:
    """Declares what ``--predict`` takes."""
    group = parser.add_argument_group("without running it")
    group.add_argument(
        "--predict",
        action="store_true",
        help="say what a training step needs: memory by phase, work, whether it fits --device (a name such as "
        "'NVIDIA H100 80GB HBM3'; default: cpu)",
    )
    group.add_argument("--optimizer", metavar="NAME", help="adamw (default), sgd, muon …; none for gradients alone")
    group.add_argument(
        "--kernels", choices=KERNELS, help="the optimizer's implementation (default: what torch chooses)"
    )
    group.add_argument("--checkpoint", choices=CHECKPOINTS, help="activations that are computed again (default: none)")
    group.add_argument("--autocast", choices=AUTOCASTS, help="forward passes under torch.autocast")
    group.add_argument("--ranks", metavar="N", help="how many ranks share the work")
    group.add_argument("--strategy", choices=STRATEGIES, help="how they share it")
    group.add_argument("--remedies", action="store_true", help="also what would need less, if it fits")
    group.add_argument(
        "--reserved", action="store_true", help="also what torch's caching allocator would reserve (runs every block)"
    )
    group.add_argument("--conventions", action="store_true", help="also what others count for parameters and optimizer")


def is_asked_for(options: Namespace) -> bool:
    """Whether a prediction is wanted. Raises ``UsageError`` for its options alone, and for what it does not take."""
    own = ("optimizer", "kernels", "checkpoint", "autocast", "ranks", "strategy")
    given = [f"--{name}" for name in own if getattr(options, name) is not None]
    given += [f"--{name}" for name in ("remedies", "conventions", "reserved") if getattr(options, name)]
    if given and not options.predict:
        raise UsageError(f"{given[0]} belongs to --predict: add it")
    if options.predict and options.html:
        raise UsageError("--predict writes no page: leave --html out, or take --json")
    return bool(options.predict)


def run(
    options: Namespace, console: Console, *, batch: int | Literal["max"] | None, input_shape: tuple[int, ...] | None
) -> int:
    """Prints the prediction; 0."""
    from whystall.model.prediction.predict import predict
    from whystall.model.prediction.simulator import Simulator

    console.detail("simulating a step in a process of its own")
    with Simulator() as simulator:
        try:
            found = predict(
                options.target,
                simulator=simulator,
                remedies=True if options.remedies else None,
                conventions=options.conventions,
                reserved=options.reserved,
                **_settings(options, batch, input_shape),
            )
        except InputError:
            console.detail(simulator.trace)
            raise
    if options.json:
        console.result(_as_json(found))
    else:
        from whystall.report.prediction_text import render_prediction

        console.result(render_prediction(found, width=console.width))
    console.next(_next(options, found))
    return 0


def _settings(
    options: Namespace, batch: int | Literal["max"] | None, input_shape: tuple[int, ...] | None
) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "batch": batch,
        "input_shape": input_shape,
        "dtype": options.dtype,
        "autocast": options.autocast,
        "device": options.device or "cpu",
        "backward": not options.infer,
        "kernels": options.kernels or "default",
        "checkpoint": options.checkpoint or "none",
        "strategy": options.strategy or "none",
        "ranks": _ranks(options.ranks),
    }
    if options.infer or options.optimizer == "none":
        return settings | {"optimizer": None}
    return settings if options.optimizer is None else settings | {"optimizer": options.optimizer}


def _ranks(text: str | None) -> int:
    if text is None:
        return 1
    if not text.isdigit() or not 0 < int(text) <= 1_000_000:
        raise UsageError(f"--ranks wants a number from 1 on, not {text!r}")
    return int(text)


def _as_json(found: Prediction) -> str:
    import msgspec

    from whystall import __version__

    head = {"schema": "whystall.prediction/1", "whystall": __version__}
    return msgspec.json.format(msgspec.json.encode(head | msgspec.to_builtins(found)), indent=1).decode()


def _next(options: Namespace, found: Prediction) -> str:
    if found.remedies:
        return f"whystall model {options.target} --predict {found.remedies[0].options}, the other options as they were"
    if found.fit is None:
        return f"whystall model {options.target} --predict --device 'NVIDIA H100 80GB HBM3'"
    return f"whystall model {options.target} --predict --remedies, the other options as they were"
