"""``whystall model --predict``: a step's needs, without running it and without its device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NoReturn

from whystall.cli import inputs, output
from whystall.errors import InputError, UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace, _ArgumentGroup

    from whystall.cli.console import Console
    from whystall.model.prediction.request import Fsdp
    from whystall.model.prediction.results import Prediction
    from whystall.probe.batch.results import Probed
    from whystall.report.document import Document

CHECKPOINTS = ("none", "selective", "full")
STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "fsdp2")
KERNELS = ("default", "foreach", "single", "fused")
ATTENTIONS = ("default", "flash", "efficient", "cudnn", "math")
AUTOCASTS = ("bf16", "fp16")
PARALLEL = {
    "tensor": "ranks that share each block's products",
    "pipeline": "stages that share the blocks",
    "expert": "of the --ranks, how many share the experts",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the options of ``--predict``."""
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
    group.add_argument(
        "--attention",
        choices=ATTENTIONS,
        help="the kernel of F.scaled_dot_product_attention (default: what torch chooses on the device)",
    )
    group.add_argument("--checkpoint", choices=CHECKPOINTS, help="activations that are computed again (default: none)")
    group.add_argument(
        "--recompute",
        metavar="MODULE,MODULE",
        help="modules that are computed again, such as 'blocks.*.mlp' ('blocks.*:cheap': all but products)",
    )
    group.add_argument("--autocast", choices=AUTOCASTS, help="forward passes under torch.autocast")
    group.add_argument(
        "--limit", metavar="SIZE", help="what tensors may hold, such as 8GiB, where that is less than the device has"
    )
    group.add_argument(
        "--effective-batch",
        metavar="N",
        help="samples that a step of the optimizer sees, over accumulated batches and ranks",
    )
    group.add_argument(
        "--probe",
        action="store_true",
        help="after --batch max, really run that batch and smaller ones on this machine, three times at most; of "
        "--ranks a process for each, on the CPU",
    )
    _add_sharing(group)
    _add_questions(group)


def _add_sharing(group: _ArgumentGroup) -> None:
    """How several devices share the step."""
    group.add_argument("--ranks", metavar="N", help="how many ranks share the work")
    group.add_argument("--strategy", choices=STRATEGIES, help="how they share it")
    group.add_argument(
        "--fsdp",
        metavar="KEY=VALUE,…",
        help="with --strategy fsdp2: wrap=model (one unit), reshard=no, param=bf16, reduce=fp32, "
        "shard=8 (HSDP: ranks per shard group)",
    )
    for kind, what in PARALLEL.items():
        group.add_argument(f"--{kind}-parallel", metavar="N", help=what)
    group.add_argument(
        "--sequence-parallel",
        action="store_true",
        help="what tensor parallelism leaves whole is split along the sequence",
    )
    group.add_argument("--micro-batches", metavar="N", help="micro-batches of a pipeline step (default: one per stage)")


def _add_questions(group: _ArgumentGroup) -> None:
    """Options for further results."""
    group.add_argument(
        "--devices",
        metavar="NAME,NAME",
        nargs="?",
        const="",
        help="a table instead: which options fit which devices and their least times (without names: common ones)",
    )
    group.add_argument("--remedies", action="store_true", help="also what would need less, if it fits")
    group.add_argument(
        "--reserved", action="store_true", help="also what torch's caching allocator would reserve (runs every block)"
    )
    group.add_argument(
        "--allocator", metavar="CONF", help="with --reserved: its settings, as PYTORCH_ALLOC_CONF has them"
    )
    group.add_argument("--conventions", action="store_true", help="also what others count for parameters and optimizer")


def is_asked_for(options: Namespace) -> bool:
    """Whether a prediction is wanted. Raises ``UsageError`` for its options alone, and for incompatible ones."""
    own: tuple[str, ...] = (
        "devices",
        "optimizer",
        "kernels",
        "attention",
        "checkpoint",
        "recompute",
        "autocast",
        "limit",
        "effective_batch",
        "ranks",
        "strategy",
        "fsdp",
        "allocator",
    )
    own += ("micro_batches", *(f"{kind}_parallel" for kind in PARALLEL))
    given = [f"--{name.replace('_', '-')}" for name in own if getattr(options, name) is not None]
    given += [f"--{name}" for name in ("probe", "remedies", "conventions", "reserved") if getattr(options, name)]
    given += ["--sequence-parallel"] if options.sequence_parallel else []
    if given and not options.predict:
        raise UsageError(f"{given[0]} belongs to --predict: add it")
    if options.probe and options.batch != "max":
        raise UsageError("--probe goes with --batch max")
    return bool(options.predict)


def run(
    options: Namespace, console: Console, *, batch: int | Literal["max"] | None, input_shape: tuple[int, ...] | None
) -> int:
    """Prints the prediction, and writes it to ``-o`` and ``--html``; 0."""
    from whystall.model.prediction.predict import predict
    from whystall.model.prediction.simulator import Simulator

    options.output += [options.html] if options.html else []
    output.targets(options)
    if options.devices is not None:
        return _print_table(options, console, _settings(options, batch, input_shape))
    console.detail("simulating a step in a process of its own")
    with Simulator() as simulator:
        try:
            found = predict(
                options.target,
                simulator=simulator,
                remedies=True if options.remedies else None,
                conventions=options.conventions,
                reserved=options.reserved,
                allocator=options.allocator,
                **_settings(options, batch, input_shape),
            )
        except InputError:
            console.detail(simulator.trace)
            raise
    probed = _probed(options, console, found)
    output.print_and_write(
        options, console, lambda width: _document(found, probed, width), lambda: _as_json(found, probed)
    )
    console.next(_next(options, found))
    return 0


def _document(found: Prediction, probed: Probed | None, width: int) -> Document:
    from whystall.report.batch_text import probed_parts
    from whystall.report.prediction_text import prediction_document

    document = prediction_document(found, width)
    return document if probed is None else document.with_parts(probed_parts(found, probed, width))


def _print_table(options: Namespace, console: Console, settings: dict[str, Any]) -> int:
    from whystall.model.prediction.predict import option_rows
    from whystall.model.prediction.simulator import Simulator

    if options.device or options.probe or options.reserved or settings["batch"] == "max":
        raise UsageError("--devices is a table of its own: leave --device, --batch max, --probe and --reserved out")
    del settings["device"]
    names = [name.strip() for name in options.devices.split(",") if name.strip()]
    console.detail("simulating a step for each option")
    with Simulator() as simulator:
        rows = option_rows(options.target, names, simulator=simulator, **settings)
    from whystall.report.options_text import options_document

    output.print_and_write(
        options,
        console,
        lambda width: options_document(rows, width),
        lambda: _in_schema("whystall.options/1", {"options": rows}),
    )
    console.next(f"whystall model {options.target} --predict with the options of a row and --device")
    return 0


def _probed(options: Namespace, console: Console, found: Prediction) -> Probed | None:
    if not options.probe:
        return None
    from whystall.probe.batch.run import probe_batches

    return probe_batches(found, progress=console.note)


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
        "attention": options.attention or "default",
        "checkpoint": options.checkpoint or "none",
        "strategy": options.strategy or "none",
        "ranks": 1 if options.ranks is None else _whole(options.ranks, "--ranks"),
        "limit_bytes": None if options.limit is None else inputs.n_bytes(options.limit, "--limit"),
        "effective_batch": None
        if options.effective_batch is None
        else _whole(options.effective_batch, "--effective-batch"),
    }
    for kind in PARALLEL:
        text = getattr(options, f"{kind}_parallel")
        settings[f"{kind}_parallel"] = 1 if text is None else _whole(text, f"--{kind}-parallel")
    if options.recompute is not None:
        settings["recompute"] = tuple(name.strip() for name in options.recompute.split(","))
    if options.fsdp is not None:
        settings["fsdp"] = _fsdp(options.fsdp)
    settings["sequence_parallel"] = options.sequence_parallel
    if options.micro_batches is not None:
        settings["micro_batches"] = _whole(options.micro_batches, "--micro-batches")
    if options.infer or options.optimizer == "none":
        return settings | {"optimizer": None}
    return settings if options.optimizer is None else settings | {"optimizer": options.optimizer}


def _whole(text: str, option: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1_000_000_000:
        raise UsageError(f"{option} wants a number from 1 on, not {text!r}")
    return int(text)


def _fsdp(text: str) -> Fsdp:
    import msgspec

    from whystall.model.prediction.request import Fsdp

    given: dict[str, Any] = dict(one.partition("=")[::2] for one in text.split(","))
    if "reshard" in given:
        given["reshard"] = {"yes": True, "no": False}.get(given["reshard"])
    if given.get("shard", "").isdecimal():
        given["shard"] = int(given["shard"])
    if given.keys() - set(Fsdp.__struct_fields__):
        return _no(text)
    try:
        return msgspec.convert(given, Fsdp)
    except msgspec.ValidationError:
        return _no(text)


def _no(text: str) -> NoReturn:
    raise UsageError(f"--fsdp wants such as wrap=model,reshard=no,param=bf16,reduce=fp32,shard=8, not {text!r}")


def _in_schema(schema: str, body: Any) -> str:
    import msgspec

    from whystall import __version__

    head = {"schema": schema, "whystall": __version__}
    return msgspec.json.format(msgspec.json.encode(head | msgspec.to_builtins(body)), indent=1).decode()


def _as_json(found: Prediction, probed: Probed | None) -> str:
    import msgspec

    tail = {} if probed is None else {"probed": msgspec.to_builtins(probed)}
    return _in_schema("whystall.prediction/1", msgspec.to_builtins(found) | tail)


def _next(options: Namespace, found: Prediction) -> str:
    if found.remedies:
        return f"whystall model {options.target} --predict {found.remedies[0].options}, the other options as they were"
    if found.batches and found.fit is not None and found.fit.fits and not options.probe and found.request.ranks == 1:
        return f"whystall model {options.target} --predict --batch max --probe, the other options as they were"
    if found.fit is None:
        return f"whystall model {options.target} --predict --device 'NVIDIA H100 80GB HBM3'"
    return f"whystall model {options.target} --predict --remedies, the other options as they were"
