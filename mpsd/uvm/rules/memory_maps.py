"""Parse a process's mappings: the lines of /proc/PID/maps, proc(5).  No I/O."""

import re

from msgspec import Struct

_LINE = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16}) [r-][w-][x-][ps] [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ \d+(?: .*)?")


class Mapping(Struct, frozen=True):
    """Addresses from `start` up to and without `end`."""

    start: int
    end: int


def parse_maps(text: str) -> list[Mapping]:
    """Parse the file, or its beginning: an incomplete last line is left out.

    Raise ValueError for anything that the kernel would not write, also if one mapping does not lie above the one before.
    """
    found: list[Mapping] = []
    for line in text.split("\n")[:-1]:
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"not a line of maps: {line[:80]!r}")
        mapping = Mapping(int(match[1], 16), int(match[2], 16))
        if mapping.start >= mapping.end or (found and mapping.start < found[-1].end):
            raise ValueError(f"not a mapping above the one before: {line[:80]!r}")
        found.append(mapping)
    return found
