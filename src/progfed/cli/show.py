"""How numbers are written for people."""

from __future__ import annotations

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def amount(value: float, unit: str) -> str:
    """A number with a decimal prefix.

    >>> amount(47_996_480, "B")
    '48.0 MB'
    """
    for prefix in _PREFIXES:
        if abs(value) < 1000 or prefix == _PREFIXES[-1]:
            break
        value /= 1000
    digits = 0 if prefix == "" else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f} {prefix}{unit}"


def percent(fraction: float) -> str:
    """A fraction as a percentage: `.6701` -> `67.01 %`."""
    return f"{100 * fraction:.2f} %"


def duration(seconds: float) -> str:
    """Seconds as people read them: `75` -> `1:15`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
