"""From a model object to numbers: parameters, FLOPs, bytes and time, by module and phase."""

from __future__ import annotations
