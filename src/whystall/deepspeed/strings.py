"""Numbers as DeepSpeed's profiler writes them: two decimals at most, a decimal prefix, its own spacing."""

from __future__ import annotations

DEFAULT_PRECISION = 2
MAGNITUDES = {"T": 1e12, "G": 1e9, "M": 1e6, "K": 1e3, "": 1.0, "m": 1e-3, "u": 1e-6}


def number_to_string(num: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """A number, a blank and its prefix; the blank stays without a prefix.

    >>> number_to_string(64), number_to_string(12800), number_to_string(0.0021)
    ('64 ', '12.8 K', '2.1 m')
    """
    if units is None:
        units = "" if num == 0 else next((unit for unit, size in MAGNITUDES.items() if num >= size), "u")
    return f"{round(num / MAGNITUDES.get(units, 1.0), precision):g} {units}"


def macs_to_string(macs: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Multiply-accumulates.

    >>> macs_to_string(32), macs_to_string(1.2e9)
    ('32 MACs', '1.2 GMACs')
    """
    return f"{number_to_string(macs, units=units, precision=precision)}MACs"


def flops_to_string(flops: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Floating-point operations per second.

    >>> flops_to_string(1.5e12)
    '1.5 TFLOPS'
    """
    return f"{number_to_string(flops, units=units, precision=precision)}FLOPS"


def bytes_to_string(b: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Bytes, in decimal units.

    >>> bytes_to_string(2048)
    '2.05 KB'
    """
    return f"{number_to_string(b, units=units, precision=precision)}B"


def params_to_string(params_num: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Parameters: billions rather than giga.

    >>> params_to_string(20), params_to_string(336_230_000), params_to_string(1.3e9)
    ('20', '336.23 M', '1.3 B')
    """
    units = units.replace("B", "G") if units else units
    return number_to_string(params_num, units=units, precision=precision).replace("G", "B").strip()


def duration_to_string(duration: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Seconds.

    >>> duration_to_string(0.184)
    '184 ms'
    """
    return f"{number_to_string(duration, units=units, precision=precision)}s"
