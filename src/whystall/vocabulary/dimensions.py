"""The purpose of a group of ranks, by frameworks' descriptions of their process groups."""

from __future__ import annotations

import re
from typing import Final, Literal

Dimension = Literal["data", "tensor", "pipeline", "expert", "context"]

# Words of descriptions: torch's DeviceMesh ("mesh_dp_shard_cp"), Megatron ("EXPERT_MODEL_PARALLEL_GROUP"), vLLM and
# SGLang ("tp:0"), DeepSpeed and FairScale.
_WORDS: Final[dict[str, Dimension]] = {
    **dict.fromkeys(("dp", "ddp", "data", "fsdp", "hsdp", "replicate", "shard", "zero"), "data"),
    **dict.fromkeys(("tp", "tensor"), "tensor"),
    **dict.fromkeys(("pp", "pipe", "pipeline", "stage"), "pipeline"),
    **dict.fromkeys(("ep", "expert", "experts", "moe"), "expert"),
    **dict.fromkeys(("cp", "context", "ulysses", "ring"), "context"),
}
# Where two are named: the replicas of experts are replicas, their slices are slices, and ranks that share a sequence
# hold the same weights.
_OF_TWO: Final[dict[frozenset[Dimension], Dimension]] = {
    frozenset(("expert", "data")): "data",
    frozenset(("expert", "tensor")): "tensor",
    frozenset(("context", "data")): "data",
}


def dimension_named(description: str | None) -> Dimension | None:
    """The kind of parallelism that a group's description names; ``None`` for none, or for several.

    >>> [dimension_named(text) for text in ("mesh_tp", "DATA_PARALLEL_GROUP_WITH_CP", "EXPERT_MODEL_PARALLEL_GROUP")]
    ['tensor', 'data', 'expert']
    >>> dimension_named("default_pg"), dimension_named("TENSOR_AND_DATA_PARALLEL_GROUP")
    (None, None)
    """
    words = re.findall(r"[a-z]+", (description or "").lower())
    named = frozenset(_WORDS[word] for word in words if word in _WORDS)
    return next(iter(named)) if len(named) == 1 else _OF_TWO.get(named)
