"""The rules, in the order in which they are asked. Third parties add theirs by the entry point ``whystall.rules``."""

from whystall.diagnosis.rule import Rule
from whystall.diagnosis.rules import (
    accumulation,
    casts,
    communication,
    compute,
    host,
    inputs,
    limits,
    memory,
    ranks,
    run,
    run_inputs,
    sharding,
    training,
)

RULES: tuple[Rule, ...] = (
    *inputs.RULES,
    *host.RULES,
    *compute.RULES,
    *casts.RULES,
    *limits.RULES,
    *communication.RULES,
    *accumulation.RULES,
    *sharding.RULES,
    *ranks.RULES,
    *training.RULES,
    *memory.RULES,
    *run_inputs.RULES,
    *run.RULES,
)
