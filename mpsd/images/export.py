"""Write an arena of an image as a safetensors file, which any tool reads (rules/safetensors.py)."""

import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from mpsd.errors import BadRequest, NoRoom
from mpsd.images.reader import ImageReader
from mpsd.images.rules.manifest import BLOCK_BYTES
from mpsd.images.rules.safetensors import Header
from mpsd.images.rules.tensors import Tensor, memory_as_tensors, read_layout

_FORMATS: Mapping[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}  # of memoryview
_MOST_STRIDED_BYTES = 4 << 30  # of a tensor with strides, which is put into the host's memory as a whole
_MOST_ROWS = 1 << 26  # each is a write: some minutes
Told = Callable[[int], None]


def export(image: ImageReader, arena: int, path: Path, *, is_raw: bool, told: Told = lambda size: None) -> int:
    """Write the tensors of the arena to a new file; return its bytes.  An image that is damaged leaves no file.

    is_raw: write each allocation as a tensor of bytes, without the layout.  told: called with the bytes of each piece.
    Raise BadRequest: the layout names no tensors, or memory that the arena did not have; the file exists.  Raise NoRoom,
    ImageDamaged, OSError.
    """
    facts = image.manifest.arenas[arena].facts
    metadata = {"mpsd.image": image.manifest.name, "mpsd.arena": facts.name, "mpsd.instant": image.manifest.instant}
    if is_raw:
        tensors: Mapping[str, Tensor] = memory_as_tensors(facts)
    else:
        tensors, extra = read_layout(facts)
        metadata["mpsd.extra"] = extra
    for name, each in tensors.items():
        if each.data_bytes > facts.content_bytes:  # its strides repeat elements
            raise BadRequest(f"tensor {name:.80}: it has {each.data_bytes} bytes, the whole arena {facts.content_bytes}")
        if why := _why_not(each):
            raise BadRequest(f"tensor {name:.80} is not dense in the arena, and {why}: export the memory with --raw")
    header = Header(tensors, metadata)
    free = os.statvfs(path.parent)
    if len(header.data) + header.data_bytes > free.f_bavail * free.f_frsize:  # else the file would fill the disk for a moment
        raise NoRoom(f"{path.parent} has no room for {len(header.data) + header.data_bytes} bytes")
    with _new_file(path) as file:
        os.posix_fallocate(file.fileno(), 0, len(header.data) + header.data_bytes)  # a full disk is noticed at once
        file.write(header.data)
        memory = ArenaMemory(image, arena)
        for name, each in header.tensors.items():
            try:
                _write(file, memory, each, told)
            except BadRequest as exc:
                raise BadRequest(f"tensor {name:.80}: {exc}") from None
    return len(header.data) + header.data_bytes


def _why_not(tensor: Tensor) -> str:
    """Return why the strides of the tensor would take too much memory or time; empty if they do not."""
    if tensor.is_dense or not tensor.data_bytes:
        return ""
    size, rows = max(tensor.span_bytes, tensor.data_bytes), tensor.in_words().row_count
    if size > _MOST_STRIDED_BYTES:
        return f"takes {size} bytes there or in the file, the limit is {_MOST_STRIDED_BYTES}"
    return f"has {rows} rows, the limit is {_MOST_ROWS}" if rows > _MOST_ROWS else ""


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """Make a file that has its name once everything is written to the disk.  Raise BadRequest if the name is taken."""
    part = path.with_name(path.name + ".part")
    try:
        file = part.open("xb")
    except FileExistsError:
        raise BadRequest(f"{part} exists: another export writes it, or was killed; remove it") from None
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.link(part, path)  # unlike a rename, it fails if the name is taken
    except FileExistsError:
        raise BadRequest(f"{path} exists already") from None
    finally:
        part.unlink()


class ArenaMemory:
    """The bytes of an arena in an image by their offset in the window; keeps the block that was read last."""

    def __init__(self, image: ImageReader, arena: int) -> None:
        self._image = image
        self._arena = arena
        self._block = memoryview(mmap.mmap(-1, BLOCK_BYTES))
        self._at = -1

    def pieces(self, offset: int, size: int) -> "list[tuple[int, int, int]]":
        """Return the (block, begin, end) that make up a range of the window."""
        found = []
        while size:
            begin = offset % BLOCK_BYTES
            end = min(BLOCK_BYTES, begin + size)
            found.append((offset - begin, begin, end))
            offset, size = offset + end - begin, size - (end - begin)
        return found

    def read(self, block: int) -> memoryview:
        """Return a block, until the next call.  Raise BadRequest if the arena did not have it."""
        if block != self._at:
            self._at = -1
            self._image.read_into(self._arena, block, self._block)
            self._at = block
        return self._block


def _write(file: BinaryIO, memory: ArenaMemory, tensor: Tensor, told: Told) -> None:
    """Write the elements densely, in row-major order."""
    if not tensor.data_bytes:
        return
    if tensor.is_dense:
        for block, begin, end in memory.pieces(tensor.offset, tensor.span_bytes):
            file.write(memory.read(block)[begin:end])
            told(end - begin)
        return
    words = tensor.in_words()
    span = bytearray()
    for block, begin, end in memory.pieces(words.offset, words.span_bytes):
        span += memory.read(block)[begin:end]
    elements = memoryview(span).cast(_FORMATS[words.item_bytes])
    for first, count, stride in words.rows():
        if stride:
            file.write(elements[first : first + (count - 1) * stride + 1 : stride].tobytes())
        else:
            file.write(elements[first : first + 1].tobytes() * count)
        told(count * words.item_bytes)
