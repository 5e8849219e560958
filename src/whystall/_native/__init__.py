"""The native room: the streaming readers, the interval sweeps, replay, and the call that leaves no frame.

Everything here takes and returns numpy arrays; ``_ext.pyi`` holds the types.
"""

from whystall._native._ext import (
    Scanner,
    Sieve,
    SnapshotReader,
    TimedCall,
    call_on_main_thread,
    class_states,
    match_allocations,
    nearest_marked,
    nest,
    outermost,
    replay,
    subtree_sums,
    thread_spans,
    thread_states,
)

__all__ = [
    "Scanner",
    "Sieve",
    "SnapshotReader",
    "TimedCall",
    "call_on_main_thread",
    "class_states",
    "match_allocations",
    "nearest_marked",
    "nest",
    "outermost",
    "replay",
    "subtree_sums",
    "thread_spans",
    "thread_states",
]
