"""Merge the vendor's tables, one from each domain, into one answer.

A row is passed on unchanged.  An unknown line is kept in its place: showing a later driver's line is better than losing it.
Only the vendor's "Server N not found" is dropped, because a server may end while the domains are being asked.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

_NOT_FOUND = re.compile(r"Server( -?\d+)? not found!?")
_DEVICE_HEADER = re.compile(r"\[(\d{1,9})\] (.*)")
_DEVICE_ROW = re.compile(r"(?P<ordinal>\d+)(?P<gap> *,?).*?\b(?P<uuid>(GPU|MIG)-[0-9A-Fa-f-]+)")


def merge_ps(answers: Iterable[str]) -> str:
    """Return the header once, then the rows of every answer; empty if no answer has any."""
    header: str | None = None
    rows = []
    for line in _lines(answers):
        if not line.startswith("PID "):
            rows.append(line)
        elif header is None:
            header = line
    return _text(([header] if header else []) + rows)


def merge_device_clients(answers: Iterable[tuple[str, Sequence[int]]]) -> str:
    """Return device headers once, by ordinal, each with the clients of every answer.

    Each answer comes with the public ordinals of the devices that it numbers from 0; empty if they are the same.
    """
    blocks: dict[tuple[int, str], list[str]] = {}
    for answer, ordinals in answers:
        block = (-1, "")
        for line in _lines([answer]):
            if header := _DEVICE_HEADER.fullmatch(line):
                block = _public(int(header[1]), ordinals), header[2]
                blocks.setdefault(block, [])
            else:
                blocks.setdefault(block, []).append(line)
    return "".join(_device_block(*block, rows) for block, rows in sorted(blocks.items(), key=lambda item: item[0][0]))


def merge_device_queries(answers: Iterable[str], ordinals: Mapping[str, int]) -> str:
    """Return the sections of every answer (`Default`, `Server N`), each title once; the rows of `Default` united, by UUID.

    ordinals: the public ordinal of each UUID; the rows of `Default` show those.
    """
    sections: dict[str, list[str]] = {}
    for answer in answers:
        for title, rows in _sections(answer):
            if title == "Default":
                rows = [_renumber(row, ordinals) for row in rows]
            known = sections.setdefault(title, [])
            known += [row for row in rows if row not in known]
    return "\n".join(_text([title, *rows]) for title, rows in sections.items())


def _lines(answers: Iterable[str]) -> Iterator[str]:
    for answer in answers:
        yield from (line for line in answer.split("\n") if line.strip() and not _NOT_FOUND.fullmatch(line))


def _text(rows: Iterable[str]) -> str:
    return "".join(f"{row}\n" for row in rows)


def _public(ordinal: int, ordinals: Sequence[int]) -> int:
    return ordinals[ordinal] if ordinal < len(ordinals) else ordinal


def _device_block(ordinal: int, rest: str, rows: list[str]) -> str:
    return _text(rows if ordinal < 0 else [f"[{ordinal}] {rest}", *rows])


def _sections(answer: str) -> Iterator[tuple[str, list[str]]]:
    """Yield title and rows of each section: an empty line separates sections, and the first line is the title."""
    for section in re.split(r"\n\s*\n", answer):
        rows = list(_lines([section]))
        if rows:
            yield rows[0], rows[1:]


def _renumber(row: str, ordinals: Mapping[str, int]) -> str:
    """Return the row with the public ordinal in front, in the same width."""
    found = _DEVICE_ROW.match(row)
    if not found or found["uuid"] not in ordinals:
        return row
    width = len(found["ordinal"]) + len(found["gap"].rstrip(","))
    number = f"{ordinals[found['uuid']]:<{width}}"
    return number + row[width:]
