"""Micro-batches of unequal length: explained, and not looked for yet."""

from __future__ import annotations

from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.rule import Rule

RULE = Rule(cause_beside(__name__))
