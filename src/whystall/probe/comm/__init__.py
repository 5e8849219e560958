"""Measures collectives between processes: a sweep of sizes over each kind, with its latency and bandwidth."""
