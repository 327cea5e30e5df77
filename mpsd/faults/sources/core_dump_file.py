"""CUDA GPU core dumps: what a dump shows of the client that wrote it.  Layout: NVIDIA's cudacoredump.h and cudadebugger.h.

A dump is an ELF file whose sections are tables.  A table below another names its parent's section in `link` and its parent's
row in `info`:

    device   <- context <- module <- relocated image (an ELF file with the names of its functions)
             <- grid
             <- SM      <- block  <- warp  <- lane

Which rows identify the culprit (8 dumps of an H200 under MPS, driver 580, are in tests/unit/faults/sources/cores):

| row | culprit of | present in the dump of |
|---|---|---|
| lane with an exception | misaligned access, assert, illegal instruction | the culprit alone |
| warp that is "broken" (stopped at a breakpoint), no exception anywhere | trap | the culprit alone |
| SM with an exception | misaligned access, illegal instruction | innocents too: the table is the GPU's, and accuses no client |
| any grid | all four | the culprit alone |

No I/O: the caller passes `read_at`.  Any user can write such a file, so it is read through elf_tables.py, which bounds what is
read, even if the file claims larger sizes.  Prose: docs/faults.md.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from msgspec import Struct

from mpsd.errors import ProtocolError
from mpsd.faults.sources.elf_tables import BoundedReader, ReadAt, Section, Sections
from mpsd.faults.sources.sm_exceptions import TRAP, name_of

MOST_EXCEPTIONS = 8  # kept of one dump: all lanes of a GPU can have the same exception
NAME_CHARACTERS = 200
_MAX_NAME_BYTES = 4096
_MOST_SMS = 1024
_MOST_TABLES = 1 << 14  # of each kind that is kept: a module has one, a program can have thousands of modules

_OS_ABI, _MACHINE, _TYPE_CORE = 0x33, 0xBE, 4
_IDENTITY = struct.Struct("<4sBBBB8xHH")  # magic, class, data, version, OS ABI, type, machine
_SYMBOL = struct.Struct("<IB3xQ8x")
_SYMBOL_TABLE, _STRINGS = 2, 3  # section types
_FUNCTION = 2  # type of a symbol

_USER = 0x80000000
_RELOCATED, _GRIDS, _SMS, _BLOCKS, _WARPS, _LANES, _MODULES = (_USER + number for number in (7, 12, 11, 13, 14, 15, 16))
_CONTEXTS = _USER + 10
# The first fields of a row; newer drivers add some, and the section gives the length of its rows.
_CONTEXT = struct.Struct("<36xI")  # host thread
_GRID = struct.Struct("<QQQQQ64x")  # id, context, function, its entry, module
_SM = struct.Struct("<I4xI12x")  # id, exception (since driver 555)
_OLD_SM_BYTES = 8
_SM_NUMBER = struct.Struct("<I")
_BLOCK = struct.Struct("<QIII4x")  # grid, index
_WARP = struct.Struct("<QIIIIII")  # error PC, id, valid lanes, active lanes, is broken, whether the error PC is valid, padding
_LANE = struct.Struct("<QQIIIII12x")  # PC, offset of the PC in its function, id, thread index, exception
_MODULE = struct.Struct("<Q")

Index = tuple[int, int, int]
_Place = tuple[int, int, int | None, int, Index]  # SM, warp, error PC, grid, block


class GpuException(Struct, frozen=True):
    """Where the client's own work stopped.  lane, thread: None for a whole warp.  error_pc: the address that the GPU recorded.

    pc: where the lane, or the first lane of the warp, stands; pc_offset: the same from the start of its function.
    """

    kind: int
    sm: int
    warp: int
    lane: int | None
    pc: int | None
    pc_offset: int | None
    error_pc: int | None
    grid: int
    block: Index
    thread: Index | None

    @property
    def name(self) -> str:
        return name_of(self.kind)


class CoreFile(Struct, frozen=True):
    """A parsed dump.  exceptions: of the client's own warps, the first few.  kernel: of the first one's grid, "" if unknown.

    grids: their number.  sm_kinds: exceptions in SMs of the GPU, of any client's work.  host_threads: of the writer's contexts,
    as numbered in its pid namespace.
    """

    exceptions: tuple[GpuException, ...]
    kernel: str
    grids: int
    sm_kinds: tuple[int, ...]
    host_threads: tuple[int, ...]

    @property
    def has_exception(self) -> bool:
        return bool(self.exceptions)

    @property
    def clears(self) -> bool:
        """Whether the client had no work on the GPU.  A grid without an exception proves nothing: not measured."""
        return not self.exceptions and not self.grids


def parse_core(read_at: ReadAt, size: int) -> CoreFile:
    """Parse a dump.  read_at(offset, bytes): as pread(2).

    Raises ProtocolError for a file that is not a core dump, or is damaged or too large.
    """
    reader = BoundedReader(read_at, size)
    _check_identity(reader)
    sections = Sections(reader, 0, size)
    kept: dict[int, list[Section]] = {_GRIDS: [], _MODULES: [], _RELOCATED: [], _CONTEXTS: []}
    lanes: list[GpuException] = []
    warps: list[GpuException] = []
    sm_kinds: set[int] = set()
    for section in sections.of(_LANES, _WARPS, _SMS, *kept):
        if section.kind in kept:
            if len(kept[section.kind]) < _MOST_TABLES:
                kept[section.kind].append(section)
        elif section.kind == _LANES and len(lanes) < MOST_EXCEPTIONS:
            lanes.extend(islice(_in_lanes(reader, sections, section), MOST_EXCEPTIONS))
        elif section.kind == _WARPS and len(warps) < MOST_EXCEPTIONS:
            warps.extend(islice(_in_warps(reader, sections, section), MOST_EXCEPTIONS))
        elif section.kind == _SMS and section.row_bytes > _OLD_SM_BYTES and len(sm_kinds) < MOST_EXCEPTIONS:
            sm_kinds.update(islice((kind for _, (_, kind) in reader.rows(section, _SM) if kind), _MOST_SMS))
    exceptions = _without_doubles(lanes, warps)[:MOST_EXCEPTIONS]
    return CoreFile(
        exceptions,
        _kernel_name(reader, kept, exceptions[0].grid) if exceptions else "",
        sum(section.size // max(section.row_bytes, 1) for section in kept[_GRIDS]),
        tuple(sorted(sm_kinds))[:MOST_EXCEPTIONS],
        tuple(islice((row[0] for table in kept[_CONTEXTS] for _, row in reader.rows(table, _CONTEXT)), MOST_EXCEPTIONS)),
    )


def _check_identity(reader: BoundedReader) -> None:
    magic, *rest = _IDENTITY.unpack(reader.read(0, _IDENTITY.size))
    if magic != b"\x7fELF" or rest != [2, 1, 1, _OS_ABI, _TYPE_CORE, _MACHINE]:
        raise ProtocolError("not a CUDA core dump")


def _in_lanes(reader: BoundedReader, sections: Sections, lanes: Section) -> Iterator[GpuException]:
    """Yield lanes with an exception; for a warp that stopped without one, its first lane."""
    warps = sections.get(lanes.link, _WARPS)
    _, _, _, _, is_broken, _, _ = reader.row(warps, lanes.info, _WARP)
    place: _Place | None = None
    stopped: GpuException | None = None
    for _, (pc, offset, lane, x, y, z, kind) in reader.rows(lanes, _LANE):
        if kind or (is_broken and place is None):
            place = place or _place(reader, sections, warps, lanes.info)
            seen = _exception(kind, place, (pc, offset, lane, (x, y, z)))
            if kind:
                is_broken = 0  # the exception explains why the warp stopped
                yield seen
            stopped = stopped or seen
    if is_broken and stopped:
        yield stopped


def _in_warps(reader: BoundedReader, sections: Sections, warps: Section) -> Iterator[GpuException]:
    """Yield the warps that stopped, whether or not the dump has their lanes."""
    for number, fields in reader.rows(warps, _WARP):
        if fields[4] or fields[5]:
            yield _exception(TRAP, _place(reader, sections, warps, number), None)


def _exception(kind: int, place: _Place, lane: tuple[int, int, int, Index] | None) -> GpuException:
    sm, warp, error_pc, grid, block = place
    pc, offset, number, thread = lane or (None, None, None, None)
    return GpuException(kind, sm, warp, number, pc, offset, error_pc, grid, block, thread)


def _place(reader: BoundedReader, sections: Sections, warps: Section, number: int) -> _Place:
    error_pc, warp, _, _, _, is_valid, _ = reader.row(warps, number, _WARP)
    blocks = sections.get(warps.link, _BLOCKS)
    grid, x, y, z = reader.row(blocks, warps.info, _BLOCK)
    sms = sections.get(blocks.link, _SMS)
    (sm,) = reader.row(sms, blocks.info, _SM_NUMBER)
    return sm, warp, error_pc if is_valid else None, grid, (x, y, z)


def _without_doubles(lanes: list[GpuException], warps: list[GpuException]) -> tuple[GpuException, ...]:
    """Return lanes with an exception first, and whole warps only if the dump lacks their lanes."""
    told = {(each.sm, each.block, each.warp) for each in lanes}
    more = [each for each in warps if (each.sm, each.block, each.warp) not in told]
    return tuple(sorted(lanes + more, key=lambda each: each.kind == TRAP))


def _kernel_name(reader: BoundedReader, kept: Mapping[int, Sequence[Section]], grid: int) -> str:
    """Return the function that a grid runs; "" if the dump lacks its module, or has it in another form."""
    try:
        for table in kept[_GRIDS]:
            for _, (found, _, _, entry, module) in reader.rows(table, _GRID):
                if found == grid and entry:
                    return _function_name(reader, kept, entry, module)
    except ProtocolError:
        pass  # the exception is what matters
    return ""


def _function_name(reader: BoundedReader, kept: Mapping[int, Sequence[Section]], entry: int, module: int) -> str:
    tables = ((table, row) for table in kept[_MODULES] for row in reader.rows(table, _MODULE))
    place = next(((table.number, number) for table, (number, (handle,)) in tables if handle == module), None)
    for image in kept[_RELOCATED]:
        if (image.link, image.info) == place:
            return _symbol_at(reader, Sections(reader, image.offset, image.size), entry)
    return ""


def _symbol_at(reader: BoundedReader, image: Sections, address: int) -> str:
    for table in image.of(_SYMBOL_TABLE):
        for _, (name, info, value) in reader.rows(table, _SYMBOL):
            if value == address and info & 0xF == _FUNCTION:
                return _text_at(reader, image.get(table.link, _STRINGS), name)
    return ""


def _text_at(reader: BoundedReader, strings: Section, at: int) -> str:
    if at >= strings.size:
        raise ProtocolError(f"no text at {at} of {strings.size}")
    data = reader.read(strings.offset + at, min(_MAX_NAME_BYTES, strings.size - at))
    text = data.partition(b"\0")[0].decode("ascii", "replace")[:NAME_CHARACTERS]
    return "".join(each if each.isprintable() else "?" for each in text)
