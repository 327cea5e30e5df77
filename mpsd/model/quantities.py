"""Percentages and memory limits: their notation and their values.

    percentage = a number as strtod(3) reads it, words behind it ignored (`50x` is 50); accepted in (0, 100]
    limit      = digits [ M | G ] [ B ]     case does not matter; no unit means M; 0 means no limit

Percentages are read as the vendor reads them.  Limits are read more strictly, because the vendor misreads unknown notations
(`1T` and `1.5G` become 1M, `512K` 512M, `abc` no limit): docs/compatibility.md.
"""

import re

from mpsd.errors import BadRequest

MIB = 1024**2
GIB = 1024**3
MAX_LIMIT_BYTES = 2**63 - GIB  # above any device; the vendor's 64 bits do not wrap round to "no limit"

ACCEPTED_LIMITS = "expected a whole number followed by M or G (512M, 2G), or 0M for no limit"

_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.ASCII | re.IGNORECASE)
_HEXADECIMAL = re.compile(r"[+-]?0x([0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)(p[+-]?[0-9]+)?", re.ASCII | re.IGNORECASE)
_LIMIT = re.compile(r"\+?([0-9]{1,20})([mg]?)b?", re.ASCII | re.IGNORECASE)
_UNIT = re.compile(r"[kmgtp]i?b?|b", re.ASCII | re.IGNORECASE)
_UNITS = {"": MIB, "m": MIB, "g": GIB}


def parse_percent(word: str | None) -> float | None:
    """Parse a percentage; None if the word is not one in (0, 100]."""
    value = _leading_number(word or "")
    return value if 0.0 < value <= 100.0 else None


def parse_limit(value: str, stray: str | None = None) -> int:
    """Parse a limit: bytes, 0 for no limit.  Raises BadRequest, also for `1 G`, which the vendor reads as 1M."""
    limit = _LIMIT.fullmatch(value)
    if not limit:
        raise BadRequest(f'"{value}" is no memory limit: {ACCEPTED_LIMITS}')
    if not limit[2] and _UNIT.fullmatch(stray or ""):
        raise BadRequest(f'"{value} {stray}" is no memory limit: {ACCEPTED_LIMITS}, without a blank between them')
    size = int(limit[1]) * _UNITS[limit[2].lower()]
    if size > MAX_LIMIT_BYTES:
        raise BadRequest(f'"{value}" is over the largest memory limit, {render_limit(MAX_LIMIT_BYTES)}')
    return size


def render_percent(thread_percent: float) -> str:
    return f"{thread_percent:.1f}"


def render_limit(limit_bytes: int) -> str:
    """Render whole gigabytes in G, anything else in M: never rounded, as the vendor's 1G for 1025M is."""
    if limit_bytes % GIB == 0:
        return f"{limit_bytes // GIB}G"
    return f"{limit_bytes // MIB}M"


def render_size(size: int) -> str:
    """Render a size in the largest unit that is exact, for messages: 4G, 143771M, 100 bytes."""
    for unit, shift in (("T", 40), ("G", 30), ("M", 20), ("K", 10)):
        if size and size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return f"{size} bytes"


def _leading_number(word: str) -> float:
    """Parse as strtod(3), except `inf` and `nan`, which are not percentages; 0 if the word has no number."""
    if found := _HEXADECIMAL.match(word):
        return _hexadecimal(found[0])
    found = _DECIMAL.match(word)
    return float(found[0]) if found else 0.0


def _hexadecimal(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:  # decimals become infinite instead
        return float("inf")
