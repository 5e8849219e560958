"""The native room: the streaming readers, the interval sweeps, replay, and calls that are heard unseen.

Everything here takes and returns numpy arrays; ``_ext.pyi`` holds the types.
"""

from whystall._native._ext import (
    HeardCalls,
    Pauses,
    Scanner,
    Sieve,
    SnapshotReader,
    call_on_main_thread,
    class_states,
    hear_exit,
    interval_in_force,
    match_allocations,
    nearest_marked,
    nest,
    outermost,
    pickle_trap,
    replay,
    restore_interval,
    shorten_interval,
    subtree_sums,
    thread_spans,
    thread_states,
)

__all__ = [
    "HeardCalls",
    "Pauses",
    "Scanner",
    "Sieve",
    "SnapshotReader",
    "call_on_main_thread",
    "class_states",
    "hear_exit",
    "interval_in_force",
    "match_allocations",
    "nearest_marked",
    "nest",
    "outermost",
    "pickle_trap",
    "replay",
    "restore_interval",
    "shorten_interval",
    "subtree_sums",
    "thread_spans",
    "thread_states",
]
