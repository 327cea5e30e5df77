"""The tensors that an arena's layout names, as the client libraries write it (docs/python.md, "Arenas").

The layout is what a program committed: untrusted.  Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from types import MappingProxyType

import msgspec
from msgspec import Struct

from mpsd.errors import BadRequest
from mpsd.images.rules.manifest import ArenaFacts
from mpsd.model.arena import MOST_WINDOW_BYTES

_FORMAT = "mpsd-tensors-1"
_MOST_DIMENSIONS = 64
ITEM_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "bool": 1, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
        "float16": 2, "float32": 4, "float64": 8, "bfloat16": 2, "complex32": 4, "complex64": 8, "complex128": 16,
        "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
        "float4_e2m1fn_x2": 1,
    }
)  # fmt: skip


class Tensor(Struct, frozen=True):
    """A tensor.  offset: of the first element, in bytes, in the arena's window.  shape, strides: in elements."""

    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def data_bytes(self) -> int:
        """The bytes of all elements, without gaps."""
        return prod(self.shape) * self.item_bytes

    @property
    def span_bytes(self) -> int:
        """The bytes from the first element to the last."""
        if not self.data_bytes:
            return 0
        return (sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)) + 1) * self.item_bytes

    @property
    def is_dense(self) -> bool:
        """Whether the elements lie in row-major order, without gaps."""
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != step:
                return False
            step *= size
        return True

    def in_words(self) -> "Tensor":
        """Return the same memory with elements of at most 8 bytes: one of 16 becomes two."""
        if self.item_bytes <= 8:
            return self
        return Tensor(self.offset, "uint64", (*self.shape, 2), (*(2 * each for each in self.strides), 1))

    @property
    def row_count(self) -> int:
        return prod(size for size, _ in self._dimensions()[:-1])

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Yield (first element, count, stride) of each row along the last dimension, in row-major order.

        Dimensions of size 1 do not count: the last would make each element a row.
        """
        *outer, (count, stride) = self._dimensions() or [(1, 1)]
        for first in _places(outer):
            yield first, count, stride

    def _dimensions(self) -> list[tuple[int, int]]:
        """Return size and stride of each dimension with another size than 1."""
        return [each for each in zip(self.shape, self.strides, strict=True) if each[0] != 1]


def _places(dimensions: Sequence[tuple[int, int]], at: int = 0) -> Iterator[int]:
    """Yield the number of each element in these dimensions, in row-major order."""
    if not dimensions:
        yield at
        return
    (size, stride), *inner = dimensions
    for place in range(size):
        yield from _places(inner, at + place * stride)


class _Layout(Struct):
    format: str
    tensors: dict[str, Tensor]
    extra: msgspec.Raw = msgspec.Raw(b"null")


def read_layout(facts: ArenaFacts) -> tuple[dict[str, Tensor], str]:
    """Return the tensors by name, and the layout's `extra` as JSON text.  Raise BadRequest if the layout names no tensors."""
    try:
        found = msgspec.json.decode(facts.layout, type=_Layout)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise BadRequest(f"the layout of arena {facts.name} names no tensors: {exc}") from None
    if found.format != _FORMAT:
        raise BadRequest(f"the layout of arena {facts.name} is not of the format {_FORMAT}")
    for name, each in found.tensors.items():
        if why := _why_not(each):
            raise BadRequest(f"arena {facts.name}, tensor {name:.80}: {why}")
    return found.tensors, bytes(found.extra).decode(errors="replace")


def _why_not(tensor: Tensor) -> str:
    if tensor.dtype not in ITEM_BYTES:
        return f"no data type {tensor.dtype!r:.40} is known"
    if len(tensor.shape) != len(tensor.strides) or len(tensor.shape) > _MOST_DIMENSIONS:
        return f"{len(tensor.shape)} sizes and {len(tensor.strides)} strides"
    if not all(0 <= each <= MOST_WINDOW_BYTES for each in (tensor.offset, *tensor.shape, *tensor.strides)):
        return "a number is negative or too large"
    if max(tensor.data_bytes, tensor.offset + tensor.span_bytes) > MOST_WINDOW_BYTES:
        return "it is larger than any arena"
    return ""


def memory_as_tensors(facts: ArenaFacts) -> dict[str, Tensor]:
    """Return each allocation as a tensor of bytes, for an arena whose layout names none."""
    return {f"memory.{offset:#x}": Tensor(offset, "uint8", (size,), (1,)) for offset, size in facts.allocations}
