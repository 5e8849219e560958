"""Results as people and machines read them: one renderer per format, no arithmetic, no I/O."""

from __future__ import annotations

from whystall.report.registry import FORMATS, RENDERERS, Options, Renderer, format_of, render
from whystall.report.schema import SCHEMA, Report, decode, encode, json_schema

__all__ = [
    "FORMATS",
    "RENDERERS",
    "SCHEMA",
    "Options",
    "Renderer",
    "Report",
    "decode",
    "encode",
    "format_of",
    "json_schema",
    "render",
]
