"""Which values an option accepts beyond its type: each rule in words for people and as a test.

The configuration is checked here alone: a value that passed is not checked again.
"""

import ipaddress
import re
from collections.abc import Callable
from typing import Any

from msgspec import Struct

SOCKET_PATH_BYTES = 107  # sockaddr_un.sun_path holds 108, one of them the final zero
UNIX = "unix:"  # prefix of a socket's path
LONGEST_SECONDS = 1e9  # some thirty years; a larger value is a mistake, and overflows deadlines

_MEMORY = re.compile(r"[1-9][0-9]{0,9}[GM]")
_DEVICE = re.compile(r"[0-9]{1,4}|(GPU|MIG)-[0-9a-fA-F/-]{1,64}")
_DEVICES = re.compile(rf"({_DEVICE.pattern})(,({_DEVICE.pattern}))*")
_COUNT = re.compile(r"[0-9]{1,7}")
_QUOTA = {"sm": re.compile(r"[0-9]{1,5}(\.[0-9]{1,3})?"), "memory": _MEMORY, "clients": _COUNT, "leases": _COUNT}
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_GROUP = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]{0,31})?")


class Accept(Struct, frozen=True):
    words: str
    test: Callable[[Any], bool]


def between(least: int, most: int) -> Accept:
    return Accept(f"{least} to {most}", lambda value: least <= value <= most)


def absolute_path(most: int) -> Accept:
    """Accept an absolute path that leaves room for the names below it."""
    return Accept(f"an absolute path of at most {most} bytes", lambda text: _is_path(text, most))


def or_empty(accept: Accept) -> Accept:
    return Accept(f'{accept.words}, or ""', lambda text: text == "" or accept.test(text))


ANYTHING = Accept("", lambda value: True)
POSITIVE = Accept("more than 0, at most 1e9", lambda value: 0 < value <= LONGEST_SECONDS)
NOT_NEGATIVE = Accept("0 to 1e9", lambda value: 0 <= value <= LONGEST_SECONDS)
INTERVAL = Accept("0, or 0.00005 to 1", lambda value: value == 0 or 0.00005 <= value <= 1)
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
MEMORY = Accept('a whole number and G or M, as "40G"', lambda text: _MEMORY.fullmatch(text) is not None)
FACTOR = Accept("0.01 to 100", lambda value: 0.01 <= value <= 100)
QUOTA_BY_GROUP = Accept(
    'the name of a group with any of sm, memory, clients, leases, as "students" = "sm=25,memory=10G,clients=4,leases=2"',
    lambda table: all(_GROUP.fullmatch(group) and group and _is_quota(text) for group, text in table.items()),
)
LISTEN = Accept(
    'an address and a port, as "127.0.0.1:9402" or "[::1]:9402", or "unix:" and an absolute path',
    lambda text: _is_socket_path(text) or parse_address(text) is not None,
)
GROUP = Accept('the name of a group, or ""', lambda text: _GROUP.fullmatch(text) is not None)


def parse_address(text: str) -> tuple[str, int] | None:
    """Parse an IP address and a port.  Returns None for anything else: a host name would need a lookup."""
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    try:
        address = ipaddress.ip_address(host[1:-1] if is_bracketed else host)
    except ValueError:
        return None
    if not colon or is_bracketed != (address.version == 6) or not _PORT.fullmatch(port) or int(port) > 65535:
        return None
    return str(address), int(port)


def _is_socket_path(text: str) -> bool:
    return text.startswith(UNIX) and _is_path(text.removeprefix(UNIX), SOCKET_PATH_BYTES)


def _is_quota(text: str) -> bool:
    words = [word.partition("=") for word in text.split(",")]
    names = [name for name, _, _ in words]
    return len(set(names)) == len(names) and all(
        name in _QUOTA and _QUOTA[name].fullmatch(value) is not None for name, _, value in words
    )


def _is_path(text: str, most: int) -> bool:
    return text.startswith("/") and text.isprintable() and len(text.encode(errors="replace")) <= most
