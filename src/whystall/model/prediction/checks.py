"""Rejects inconsistent requests, with a suggestion."""

from __future__ import annotations

from whystall.errors import UsageError
from whystall.model.prediction.recompute_names import parsed
from whystall.model.prediction.request import ATTENTIONS, DTYPES, OPTIMIZERS, Fsdp, Request


def check(request: Request) -> None:
    """Raises ``UsageError`` for a request that makes no sense."""
    if request.ranks < 1:
        raise UsageError(f"ranks wants at least 1, not {request.ranks}")
    if request.ranks > 1 and request.strategy == "none":
        raise UsageError(f"{request.ranks} ranks share a model by a strategy: add --strategy ddp, zero1 or another")
    if request.ranks == 1 and request.strategy != "none":
        raise UsageError(f"{request.strategy} is for several ranks: add --ranks 8")
    _check_parallel(request)
    _check_recompute(request)
    if request.limit_bytes is not None and request.limit_bytes < 1:
        raise UsageError(f"limit_bytes wants at least 1, not {request.limit_bytes}")
    if request.effective_batch is not None:
        _check_effective(request.effective_batch, request)
    _check_names(request)


def _check_names(request: Request) -> None:
    """Raises ``UsageError`` for an unknown name, or one that the device does not support."""
    if request.attention not in ATTENTIONS:
        raise UsageError(f"no attention {request.attention!r}: there are {', '.join(ATTENTIONS)}")
    if request.on_cpu and request.attention in ("efficient", "cudnn"):
        raise UsageError(f"{request.attention} attention is no kernel of a CPU's: there are flash and math")
    for dtype in (request.dtype, request.autocast):
        if dtype is not None and dtype not in DTYPES:
            raise UsageError(f"no dtype {dtype!r}: there are {', '.join(DTYPES)}")
    if request.optimizer is not None and request.optimizer not in OPTIMIZERS:
        raise UsageError(f"no optimizer {request.optimizer!r}: there are {', '.join(OPTIMIZERS)}")


def _check_parallel(request: Request) -> None:
    """Raises ``UsageError`` for kinds of parallelism that do not go together."""
    for name in ("tensor_parallel", "pipeline_parallel", "expert_parallel"):
        if getattr(request, name) < 1:
            raise UsageError(f"{name} wants at least 1, not {getattr(request, name)}")
    if request.sequence_parallel and request.tensor_parallel == 1:
        raise UsageError("sequence parallelism splits what ranks of tensor parallelism share: add --tensor-parallel 8")
    if request.micro_batches is not None and (request.pipeline_parallel == 1 or request.micro_batches < 1):
        raise UsageError("micro-batches, at least one, are those of a pipeline: add --pipeline-parallel 4")
    if request.expert_parallel > 1 and request.ranks % request.expert_parallel:
        raise UsageError(
            f"experts are spread over the ranks that share the batch: {request.ranks} cannot be divided by "
            f"{request.expert_parallel}, add --ranks {request.expert_parallel} --strategy ddp"
        )
    _check_fsdp(request)
    others = max(request.tensor_parallel, request.pipeline_parallel, request.expert_parallel)
    if request.strategy == "fsdp2" and others > 1:
        raise UsageError(
            "fsdp2 is predicted for one dimension of ranks: take --strategy zero3 beside other parallelism"
        )


def _check_fsdp(request: Request) -> None:
    """Raises ``UsageError`` for settings of FSDP2 that there are not."""
    asked = request.fsdp
    if asked != Fsdp() and request.strategy != "fsdp2":
        raise UsageError("how a model is sharded is a question of FSDP2: add --strategy fsdp2")
    for dtype in filter(None, (asked.param, asked.reduce)):
        if dtype not in DTYPES:
            raise UsageError(f"no dtype {dtype!r}: there are {', '.join(DTYPES)}")
    if asked.shard is not None and (asked.shard < 2 or request.ranks % asked.shard):
        raise UsageError(f"{request.ranks} ranks cannot be divided into groups of {asked.shard}, of at least 2")


def _check_recompute(request: Request) -> None:
    """Raises ``UsageError`` for modules to compute again that cannot be."""
    wrong = next((name for name in request.recompute if parsed(name) is None), None)
    if wrong is not None:
        raise UsageError(f"recompute wants a module such as blocks.*.mlp, or blocks.*:cheap, not {wrong!r}")
    if request.recompute and (request.checkpoint != "none" or not request.backward):
        raise UsageError(
            "modules are computed again in a backward pass, and not inside blocks that are: leave --checkpoint and "
            "--infer out"
        )


def _check_effective(effective: int, request: Request) -> None:
    """Raises ``UsageError`` where no whole number of batches on each rank makes the effective batch."""
    if effective < 1 or effective % request.ranks:
        raise UsageError(f"an effective batch of {effective} cannot be shared by {request.ranks} ranks")
    if request.batch is not None and (effective // request.ranks) % request.batch:
        raise UsageError(
            f"no whole number of batches of {request.batch} makes {effective // request.ranks} samples on each rank: "
            "take a batch that does, or --batch max"
        )
