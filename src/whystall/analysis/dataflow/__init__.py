"""Which operator call made each tensor, and which calls read it: a graph of values."""
