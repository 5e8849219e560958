"""Remedies for a step that is too large: other requests for the same model, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from whystall.model.prediction.request import Request

_FUSED = frozenset({"adamw", "adam", "amsgrad", "adagrad", "sgd", "sgd-momentum"})
_RANKS = (2, 4, 8, 16, 32, 64)


def alternatives(request: Request, *, has_blocks: bool) -> Iterator[tuple[str, str, Request]]:
    """The description, the options, and the request of each remedy; alone, then both of different kinds of memory.

    An optimizer's temporaries and activations peak at different times: less of one alone may change nothing.
    """
    steps = [*_optimizers(request)]
    saved = [*_checkpoints(request)] if has_blocks else []
    yield from steps
    yield from saved
    yield from _precisions(request)
    if steps and saved:
        (first, first_options, lean), (second, second_options, _) = steps[0], saved[-1]
        both = replace(lean, checkpoint="full", recompute=())
        yield f"{first}, and {second}", f"{first_options} {second_options}", both
    if request.batch is not None and request.batch > 1:
        half = request.batch // 2
        whole = request.effective_batch or request.batch * request.ranks
        text, options = f"batches of {half}, with gradients accumulated", f"--batch {half} --effective-batch {whole}"
        yield text, options, replace(request, batch=half, effective_batch=whole)


def _optimizers(request: Request) -> Iterator[tuple[str, str, Request]]:
    if not request.backward or request.optimizer is None or request.kernels not in {"default", "foreach"}:
        return
    if request.optimizer in _FUSED:
        yield "a fused optimizer (fused=True)", "--kernels fused", replace(request, kernels="fused")
    single = replace(request, kernels="single")
    yield "an optimizer that goes tensor by tensor (foreach=False)", "--kernels single", single


def _checkpoints(request: Request) -> Iterator[tuple[str, str, Request]]:
    if not request.backward or request.checkpoint != "none":
        return
    text = "selective checkpointing (products and attention kept, the rest computed again)"
    yield text, "--checkpoint selective", replace(request, checkpoint="selective", recompute=())
    yield "checkpointing of every block", "--checkpoint full", replace(request, checkpoint="full", recompute=())


def _precisions(request: Request) -> Iterator[tuple[str, str, Request]]:
    if request.dtype in {None, "float32", "fp32"} and request.autocast is None:
        yield "products in bfloat16 under autocast", "--autocast bf16", replace(request, autocast="bf16")
        yield "weights, gradients and state in bfloat16", "--dtype bf16", replace(request, dtype="bf16")


def sharded(request: Request) -> Iterator[tuple[str, str, Request]]:
    """More ranks, or a further stage on those that there are; fewer first."""
    if not request.backward:
        return
    stages = ("zero1", "zero2", "zero3")
    if request.ranks > 1:
        after = stages.index(request.strategy) + 1 if request.strategy in stages else 0
        for stage in stages[after:] if request.strategy != "fsdp2" else ():
            text = f"ZeRO stage {stage[-1]} on the {request.ranks} ranks"
            yield text, f"--ranks {request.ranks} --strategy {stage}", replace(request, strategy=stage)
    for ranks in _RANKS:
        if ranks > request.ranks:
            text = f"{ranks} ranks that share parameters, gradients and state (ZeRO stage 3, FSDP2)"
            yield text, f"--ranks {ranks} --strategy zero3", replace(request, ranks=ranks, strategy="zero3")
