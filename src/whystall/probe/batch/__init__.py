"""Batches that really run: whether the predicted one fits, and how throughput grows with the batch."""

from __future__ import annotations
