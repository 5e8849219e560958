"""The native room: the streaming scanner and the interval sweeps, and nothing else.

Everything here takes and returns numpy arrays; ``_ext.pyi`` holds the types.
"""

from whystall._native._ext import Scanner, class_states, nearest_marked, nest, outermost, subtree_sums, thread_states

__all__ = ["Scanner", "class_states", "nearest_marked", "nest", "outermost", "subtree_sums", "thread_states"]
