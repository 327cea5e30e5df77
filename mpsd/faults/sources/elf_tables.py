"""Tables in sections of an untrusted ELF file, elf(5); 64 bits, little endian.

Every offset and count is checked where it is used, and the total of bytes read is bounded.  No I/O; the meaning of the tables
is not known here.
"""

import struct
from collections.abc import Callable, Iterator

from msgspec import Struct

from mpsd.errors import ProtocolError

# A dump of all of a GPU of 160 SMs: a million sections of 64 bytes, 330,000 lanes of 56
_BUDGET_BYTES = 128 << 20
_READ_COST_BYTES = 64  # the cost of one read in addition to its bytes, so that many small ones reach the limit too
_LEAST_ROW_BYTES = 64  # a shorter row costs as much: the time depends on their number
_CHUNK_BYTES = 1 << 16
_MAX_ROW_BYTES = 4096

_FIELDS = struct.Struct("<40xQ10xHH")  # of an ELF header: offset of the section headers, bytes of one, how many
_HEADER_BYTES = 64  # Elf64_Shdr
_HEADER = struct.Struct("<4xI16xQQII8xQ")  # type, offset, size, link, info, bytes of a row

ReadAt = Callable[[int, int], bytes]


class Section(Struct, frozen=True):
    """A table: `size` bytes at `offset` in rows of `row_bytes`.  The meaning of `link` and `info` depends on its kind."""

    number: int
    kind: int
    offset: int
    size: int
    link: int
    info: int
    row_bytes: int


class BoundedReader:
    """Guards that nothing outside the file is read, and no more than the budget in all."""

    def __init__(self, read_at: ReadAt, size: int) -> None:
        self._read_at = read_at
        self._size = size
        self._left = _BUDGET_BYTES

    def read(self, offset: int, size: int) -> bytes:
        if offset + size > self._size:
            raise ProtocolError(f"{size} bytes at {offset} lie outside its {self._size} bytes")
        self._spend(size + _READ_COST_BYTES)
        data = self._read_at(offset, size)
        if len(data) != size:
            raise ProtocolError("it was cut short while it was read")
        return data

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ProtocolError(f"more than {_BUDGET_BYTES} bytes would have to be read")

    def chunks(self, offset: int, size: int, row_bytes: int) -> Iterator[bytes]:
        """Yield whole rows, as many as fit into a chunk."""
        if not 0 < row_bytes <= _MAX_ROW_BYTES or size % row_bytes:
            raise ProtocolError(f"a table of {size} bytes has rows of {row_bytes}")
        step = _CHUNK_BYTES // row_bytes * row_bytes
        for start in range(0, size, step):
            self._spend(max(_LEAST_ROW_BYTES - row_bytes, 0) * (min(step, size - start) // row_bytes))
            yield self.read(offset + start, min(step, size - start))

    def rows(self, section: Section, layout: struct.Struct) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield the number and the first fields of each row."""
        if section.size and section.row_bytes < layout.size:
            raise ProtocolError(f"rows of {section.row_bytes} bytes, where {layout.size} are the least")
        number = 0
        for chunk in self.chunks(section.offset, section.size, section.row_bytes) if section.size else ():
            for at in range(0, len(chunk), section.row_bytes):
                yield number, layout.unpack_from(chunk, at)
                number += 1

    def row(self, section: Section, number: int, layout: struct.Struct) -> tuple[int, ...]:
        if not layout.size <= section.row_bytes <= _MAX_ROW_BYTES or (number + 1) * section.row_bytes > section.size:
            raise ProtocolError(f"a table has no row {number}")
        return layout.unpack(self.read(section.offset + number * section.row_bytes, layout.size))


class Sections:
    """The sections of an ELF file that lies within [start, start + size) of the reader's file."""

    def __init__(self, reader: BoundedReader, start: int, size: int) -> None:
        self._reader = reader
        self._start = start
        self._size = size
        self._offset: int
        self._offset, entry_bytes, self._count = _FIELDS.unpack(reader.read(start, _FIELDS.size))
        if entry_bytes != _HEADER_BYTES:
            raise ProtocolError(f"section headers of {entry_bytes} bytes, not {_HEADER_BYTES}")
        if self._count == 0 and self._offset:  # with 65,280 or more the first header has the number (elf(5))
            self._count = self._make(0, self._reader.read(self._at(0), _HEADER_BYTES)).size

    def of(self, *kinds: int) -> Iterator[Section]:
        """Yield the non-empty sections of these kinds, in order."""
        wanted = frozenset(kinds)
        if self._count * _HEADER_BYTES > self._size:
            raise ProtocolError(f"{self._count} sections do not fit into {self._size} bytes")
        number = 0
        for chunk in self._reader.chunks(self._at(0), self._count * _HEADER_BYTES, _HEADER_BYTES) if self._count else ():
            for fields in _HEADER.iter_unpack(chunk):
                if fields[0] in wanted and fields[2]:
                    yield self._checked(number, fields)
                number += 1

    def get(self, number: int, kind: int) -> Section:
        if number >= self._count:
            raise ProtocolError(f"there is no section {number}")
        section = self._make(number, self._reader.read(self._at(number), _HEADER_BYTES))
        if section.kind != kind:
            raise ProtocolError(f"section {number} is of kind {section.kind:#x}, not {kind:#x}")
        return section

    def _at(self, number: int) -> int:
        at = self._offset + number * _HEADER_BYTES
        if at + _HEADER_BYTES > self._size:
            raise ProtocolError(f"section header {number} lies outside the file")
        return self._start + at

    def _make(self, number: int, header: bytes) -> Section:
        return self._checked(number, _HEADER.unpack(header))

    def _checked(self, number: int, fields: tuple[int, ...]) -> Section:
        kind, offset, size, link, info, row_bytes = fields
        if number and offset + size > self._size:
            raise ProtocolError(f"section {number} lies outside the file")
        return Section(number, kind, self._start + offset, size, link, info, row_bytes)
