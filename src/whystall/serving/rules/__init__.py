"""All rules about served runs, one file a cause, in the order of blame and in it in the order of asking."""

from whystall.serving.cause import Rule
from whystall.serving.rules.arrivals import bursty
from whystall.serving.rules.cache import block_too_large, evicted, prefix_defeated
from whystall.serving.rules.client import concurrency_gate, late_sends, slow_reader
from whystall.serving.rules.dp import imbalance
from whystall.serving.rules.execution import eager
from whystall.serving.rules.host import api_server_bound, gc, logits_processor, sampling, scheduler_gap, tokenizer
from whystall.serving.rules.kv import pressure
from whystall.serving.rules.load import saturated
from whystall.serving.rules.sched import budget_small, max_num_seqs, prefill_interference
from whystall.serving.rules.spec import low_acceptance

RULES: tuple[Rule, ...] = (
    concurrency_gate.RULE,
    late_sends.RULE,
    slow_reader.RULE,
    bursty.RULE,
    saturated.RULE,
    max_num_seqs.RULE,
    pressure.RULE,
    prefix_defeated.RULE,
    block_too_large.RULE,
    evicted.RULE,
    prefill_interference.RULE,
    budget_small.RULE,
    low_acceptance.RULE,
    imbalance.RULE,
    eager.RULE,
    logits_processor.RULE,
    sampling.RULE,
    gc.RULE,
    api_server_bound.RULE,
    tokenizer.RULE,
    scheduler_gap.RULE,
)
