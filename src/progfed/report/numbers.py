"""How numbers are written for people; the page's script writes them by the same rules."""

from __future__ import annotations

import math
import re

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
MISSING = "–"


def amount(value: float, unit: str) -> str:
    """A number with a decimal prefix and its unit.

    >>> amount(47_996_480, "B")
    '48.0 MB'
    """
    for prefix in _PREFIXES:
        if abs(value) < 1000 or prefix == _PREFIXES[-1]:
            break
        value /= 1000
    digits = 0 if prefix == "" or abs(value) >= 100 else 1
    return f"{value:.{digits}f} {prefix}{unit}"


def percent(fraction: float, digits: int = 2) -> str:
    """A fraction as a percentage.

    >>> percent(0.6701)
    '67.01 %'
    """
    return f"{100 * fraction:.{digits}f} %"


def duration(seconds: float) -> str:
    """Seconds as people write them.

    >>> duration(7.25), duration(75), duration(3675)
    ('7.2 s', '1:15', '1:01:15')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def spread(mean: float, deviation: float | None, unit: str = "%") -> str:
    """A mean over seeds, with its standard deviation where there is more than one; percentages have two decimals.

    >>> spread(84.667, 0.139), spread(84.62, None), spread(0.012345, 0.001, unit="")
    ('84.67 ± 0.14', '84.62', '0.01235 ± 0.001')
    """
    form = ".2f" if unit == "%" else ".4g"
    return f"{mean:{form}}" if deviation is None else f"{mean:{form}} ± {deviation:{form}}"


def plain_name(name: str) -> str:
    """A part of a file name: names come from files and must not lead anywhere else.

    >>> plain_name("../mine, too")
    'mine-too'
    """
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:60] or "experiment"


def ticks(low: float, high: float, number: int = 5) -> list[float]:
    """Round values that divide a range into about `number` (at least 3) steps of 1, 2 or 5 times a power of ten.

    >>> ticks(0, 10)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    if high <= low:
        return [low]
    raw = (high - low) / number
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [position * step for position in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """The powers of ten in a range above 0; with their halves and fifths where there are fewer than three.

    >>> log_ticks(2e5, 3e8), log_ticks(2, 30)
    ([1000000.0, 10000000.0, 100000000.0], [2.0, 5.0, 10.0, 20.0])
    """
    powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    inside = [value for value in powers if low <= value <= high]
    if len(inside) >= 3:
        return inside
    return [factor * value for value in powers for factor in (1, 2, 5) if low <= factor * value <= high]
