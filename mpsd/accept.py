"""What an option's value may be beyond its type, each in words for people and as a test.

The border of the configuration: a value that passed here is not checked again.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SOCKET_PATH_BYTES = 107  # sockaddr_un.sun_path holds 108, one of them the final zero
LONGEST_SECONDS = 1e9  # some thirty years; beyond that it is a slip, and overflows deadlines

_MEMORY = re.compile(r"[1-9][0-9]{0,9}[GM]")
_DEVICE = re.compile(r"[0-9]{1,4}|(GPU|MIG)-[0-9a-fA-F/-]{1,64}")
_DEVICES = re.compile(rf"({_DEVICE.pattern})(,({_DEVICE.pattern}))*")
_GROUP = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]{0,31})?")


@dataclass(frozen=True, slots=True)
class Accept:
    words: str
    test: Callable[[Any], bool]


def between(least: int, most: int) -> Accept:
    return Accept(f"{least} to {most}", lambda value: least <= value <= most)


def absolute_path(most: int) -> Accept:
    """An absolute path that leaves room for the names put below it."""
    return Accept(f"an absolute path of at most {most} bytes", lambda text: _is_path(text, most))


def or_empty(accept: Accept) -> Accept:
    return Accept(f'{accept.words}, or ""', lambda text: text == "" or accept.test(text))


ANYTHING = Accept("", lambda value: True)
POSITIVE = Accept("more than 0, at most 1e9", lambda value: 0 < value <= LONGEST_SECONDS)
NOT_NEGATIVE = Accept("0 to 1e9", lambda value: 0 <= value <= LONGEST_SECONDS)
PERCENT = Accept("more than 0, at most 100", lambda value: 0 < value <= 100)
ROTATION_BYTES = Accept("0, or 65536 or more", lambda value: value == 0 or 65536 <= value < 2**63)
DEVICES = Accept(
    '"all", or ordinals or UUIDs joined by commas',
    lambda text: text == "all" or _DEVICES.fullmatch(text) is not None,
)
MEMORY_BY_DEVICE = Accept(
    'a device ordinal or UUID with a whole number and G or M, as "0" = "4G"',
    lambda table: all(_DEVICE.fullmatch(device) and _MEMORY.fullmatch(size) for device, size in table.items()),
)
GROUP = Accept('the name of a group, or ""', lambda text: _GROUP.fullmatch(text) is not None)


def _is_path(text: str, most: int) -> bool:
    return text.startswith("/") and text.isprintable() and len(text.encode(errors="replace")) <= most
