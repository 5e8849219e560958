"""Traces with planted causes, written without knowledge of whystall's rules, and a judge of what it says on them."""
