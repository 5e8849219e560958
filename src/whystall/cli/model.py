"""``whystall model``: parameters, FLOPs, bytes and time of a model, by module."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from whystall.cli import model_predict, output
from whystall.cli.users_code import users_own_errors
from whystall.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console
    from whystall.hardware.accelerators import Precision
    from whystall.model.results import ModelProfile
    from whystall.model.target import Target
    from whystall.report.model_tree import Ceiling

PRECISIONS: dict[str, Precision] = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
DTYPES = ("float32", "fp32", "bfloat16", "bf16", "float16", "fp16", "float64")


class Model:
    """The verb ``model``."""

    name = "model"
    help = "count and time a model: parameters, FLOPs, bytes and latency of each module"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""
        parser.add_argument(
            "target",
            metavar="MOD:FACTORY",
            help="package.module:function or file.py:function; it returns a model, or (model, inputs)",
        )
        parser.add_argument("--depth", default="3", metavar="N", help="how deep the tree is shown; all for everything")
        parser.add_argument(
            "--batch", metavar="N", help="samples a batch; with --predict also max: the largest that fits --device"
        )
        parser.add_argument("--input-shape", metavar="N,N,…", help="one floating-point input of this shape")
        parser.add_argument("--device", help="cpu, cuda, or meta, which needs no memory and times nothing")
        parser.add_argument("--dtype", choices=DTYPES, help="the dtype of weights and floating-point inputs")
        mode = parser.add_mutually_exclusive_group()
        mode.add_argument(
            "--train", action="store_true", help="forward, backward and an AdamW step, the model in training mode"
        )
        mode.add_argument(
            "--infer", action="store_true", help="forward alone (default: forward and backward, in evaluation mode)"
        )
        parser.add_argument("--repeats", default="3", metavar="N", help="timed runs; 0 for counts alone (default: 3)")
        parser.add_argument("--json", action="store_true", help="print the profile as JSON")
        parser.add_argument("--html", metavar="FILE", help="also write the tree as a page")
        model_predict.add_arguments(parser)
        output.add_output(parser)

    def run(self, options: Namespace, console: Console) -> int:
        """Prints the tree, or the prediction; 0."""
        if model_predict.is_asked_for(options):
            batch = _batch(options.batch) if options.batch and options.batch != "max" else None
            return model_predict.run(
                options, console, batch=batch or options.batch, input_shape=_shape(options.input_shape)
            )
        depth = None if options.depth == "all" else _number(options.depth, "--depth")
        repeats = _number(options.repeats, "--repeats")
        written = [*([Path(options.html)] if options.html else []), *output.targets(options)]
        for path in written:
            output.check_free(path, force=options.force)
        console.detail("importing torch")
        with users_own_errors(options.target, console):
            target = _load(options)
            profile = _profile(target, options, repeats)
        conventions = {} if options.infer else _conventions(target, profile)
        from whystall.report.model_page import render_model_page
        from whystall.report.model_tree import render_tree

        def tree() -> str:
            return render_tree(profile, depth=depth, conventions=conventions, ceiling=_ceiling(target, console))

        console.result(_as_json(profile, conventions) if options.json else tree())
        for path in written:
            if path.suffix == ".json":
                output.write_text(path, _as_json(profile, conventions), force=options.force)
            elif path.suffix == ".txt":
                output.write_text(path, tree(), force=options.force)
            else:
                page = render_model_page(profile, title=options.target, conventions=conventions)
                output.write_text(path, page, force=options.force)
        if written:
            console.next(f"open {written[0]}")
        else:
            console.next(f"whystall model {options.target} --depth all -o model.html")
        return 0


def _number(text: str, option: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise UsageError(f"{option} wants a number from 0 on, not {text!r}")
    return value


def _batch(text: str) -> int:
    batch = _number(text, "--batch")
    if not batch:
        raise UsageError("--batch wants at least one sample, not 0")
    return batch


def _shape(text: str | None) -> tuple[int, ...] | None:
    return tuple(_number(size, "--input-shape") for size in text.split(",")) if text else None


def _load(options: Namespace) -> Target:
    try:
        from whystall.model.target import load_target
    except ModuleNotFoundError as error:
        raise UsageError(f"`whystall model` needs PyTorch in the environment it runs in: {error}") from error
    return load_target(
        options.target,
        batch=_batch(options.batch) if options.batch else None,
        device=options.device,
        dtype=options.dtype,
        input_shape=_shape(options.input_shape),
    )


def _profile(target: Target, options: Namespace, repeats: int) -> ModelProfile:
    from whystall.model.profile import adamw, model_profile

    target.model.train(options.train)
    return model_profile(
        target.model,
        target.args,
        target.kwargs,
        backward=not options.infer,
        optimizer=adamw(target.model) if options.train else None,
        repeats=repeats,
    )


def _ceiling(target: Target, console: Console) -> Ceiling | None:
    """The reachable rate of products of the model's type on its device: the table's peak, else a measured one."""
    from whystall.hardware.calibration import calibration_folder, read_calibrations
    from whystall.probe.device import name_of
    from whystall.report.model_tree import Ceiling
    from whystall.trace.cache import default_folder

    weight = next(target.model.parameters(), None)
    precision = None if weight is None else PRECISIONS.get(str(weight.dtype).removeprefix("torch."))
    name = None if weight is None else name_of(weight.device)
    if name is None or precision is None:
        return None
    from whystall.hardware import find

    row = find(name)
    peak = None if row is None else row.peak_flops_per_s(precision)
    if peak is not None:
        return Ceiling(peak, f"the {precision} peak of {name}")
    calibrations, problems = read_calibrations(calibration_folder(default_folder()))
    for problem in problems:
        console.note(problem)
    own = [one for one in calibrations if one.device == name and one.flops_per_s(precision) is not None]
    latest = max(own, key=lambda one: one.measured_on, default=None)
    rate = None if latest is None else latest.flops_per_s(precision)
    if latest is None or rate is None:
        return None
    return Ceiling(rate, f"the best {precision} product measured here on {latest.measured_on} by whystall probe")


def _conventions(target: Target, profile: ModelProfile) -> dict[str, int]:
    """FLOPs per token of a training step as others count them, where the model is a plain decoder."""
    from whystall.model.conventions import CONVENTIONS, decoder_of

    tokens = target.tokens
    if tokens is None or target.kwargs.get("past_key_values") is not None:  # scores are longer than the input then
        return {}
    sizes = decoder_of(getattr(target.model, "config", None), tokens[1], profile.parameters)
    return {} if sizes is None else {name: convention(sizes) for name, convention in CONVENTIONS.items()}


def _as_json(profile: ModelProfile, conventions: dict[str, int]) -> str:
    import msgspec

    from whystall import __version__

    head = {"schema": "whystall.model/1", "whystall": __version__}
    tail = {"flops_per_token_by_convention": conventions} if conventions else {}
    return msgspec.json.format(msgspec.json.encode(head | msgspec.to_builtins(profile) | tail), indent=1).decode()
