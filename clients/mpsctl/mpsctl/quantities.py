"""Parse and print sizes, durations, shares and numbers in the form that people use.  Pure.

Parsers raise Unfit with a text that says what they accept.
"""

import re
from dataclasses import dataclass

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGT])(?:i?B)?", re.IGNORECASE)
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?)%")
_COUNT = re.compile(r"[0-9]{1,5}")
_SHIFTS = {"K": 10, "M": 20, "G": 30, "T": 40}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MOST_BYTES = 1 << 62
_MOST_CHARACTERS = 64  # of a duration, since the search for its parts takes quadratic time


class Unfit(ValueError):
    """The text is not a value of this kind; the message says what is accepted."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share of the SMs: a percentage or a number of SMs."""

    percent: float | None = None
    count: int | None = None


def parse_size(text: str) -> int:
    """Return bytes; units are powers of 1024, as the vendor's are.  A unit is required, since a bare 4 would mean 4 bytes."""
    found = _SIZE.fullmatch(text)
    size = float(found[1]) * (1 << _SHIFTS[found[2].upper()]) if found else 0.0
    if not 0 < round(min(size, 2.0 * _MOST_BYTES)) <= _MOST_BYTES:  # many digits make it infinite
        raise Unfit("a number and K, M, G or T, as 4G or 512M")
    return round(size)


def parse_duration(text: str) -> float:
    """Return seconds; the sum of all parts, as in 1h30m."""
    parts = _DURATION_PART.findall(text[:_MOST_CHARACTERS])
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not 0 < seconds < float("inf"):
        raise Unfit("a number and s, m, h or d, as 30s, 5m, 2h or 1h30m, and more than none")
    return seconds


def parse_share(text: str) -> Share:
    if (found := _SHARE.fullmatch(text)) and 0 < float(found[1]) <= 100:
        return Share(percent=float(found[1]))
    if _COUNT.fullmatch(text) and 0 < int(text) <= 65535:
        return Share(count=int(text))
    raise Unfit("a percentage, as 30%, or a number of SMs, as 40")


def parse_percent(text: str) -> float:
    share = parse_share(text) if text.endswith("%") else Share()
    if share.percent is None:
        raise Unfit("a percentage, as 30%")
    return share.percent


def parse_whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < len(text) <= 18):
        raise Unfit("a whole number")
    return int(text)


def parse_id_or_name(text: str) -> int | str:
    """Return the number of a word of digits alone, else the word."""
    return parse_whole(text) if text.isdecimal() else text


def parse_number_of(least: int, most: int, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and least <= int(text) <= most):
        raise Unfit(f"a whole number, {least} to {most}")
    return int(text)


def show_size(size: float) -> str:
    """Return the size with a unit, rounded to three digits for table columns: 4G, 1.5G, 512M."""
    for unit, shift in reversed(_SHIFTS.items()):
        number = size / (1 << shift)
        if number >= 1:
            return f"{_short(number)}{unit}"
    return f"{size:g}"


def show_duration(seconds: float) -> str:
    """Return the duration with its two largest units, as 2h05m or 45s."""
    whole = int(seconds + 0.5) if seconds >= 1 else 0
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d{hours:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    if minutes:
        return f"{minutes}m{whole % 60:02}s"
    return f"{whole}s"


def show_percent(percent: float) -> str:
    return f"{_short(percent)}%"


def _short(number: float) -> str:
    """Return the number rounded to three digits."""
    return f"{number:.0f}" if number >= 99.95 else f"{number:.3g}"
