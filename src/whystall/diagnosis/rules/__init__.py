"""The rules, in the order in which they are asked. Third parties add theirs by the entry point ``whystall.rules``."""

from whystall.diagnosis.rule import Rule
from whystall.diagnosis.rules import communication, compute, host, inputs, memory, ranks, run, run_inputs, training

RULES: tuple[Rule, ...] = (
    *inputs.RULES,
    *host.RULES,
    *compute.RULES,
    *communication.RULES,
    *ranks.RULES,
    *training.RULES,
    *memory.RULES,
    *run_inputs.RULES,
    *run.RULES,
)
