"""The layout of an arena: the place of each tensor in the window, as JSON text.

    {"format": "mpsd-tensors-1",
     "tensors": {name: {"offset", "bytes", "dtype", "shape": [...], "strides": [...]}},
     "extra": anything}

offset: from the start of the window, in bytes; bytes: the tensor's span with gaps; shape and strides: in elements.  No I/O,
no CUDA.  Prose: mpsd's docs/python.md.
"""

import bisect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeGuard

from mpsd_client._errors import MpsdError

FORMAT = "mpsd-tensors-1"
MOST_BYTES = 16 << 20  # mpsd's limit
MOST_DIMENSIONS = 64
MOST_NAME = 1024  # characters
MOST_WINDOW = 1 << 47  # bytes; more than any window has


class LayoutError(MpsdError, ValueError):
    """An invalid layout: malformed, or with memory that the arena does not have.  Unprintable characters of its message are
    escaped, since the names of tensors come from a foreign process."""

    def __init__(self, message: str = "") -> None:
        super().__init__("".join(each if each.isprintable() else ascii(each)[1:-1] for each in message))


@dataclass(frozen=True, slots=True)
class DataType:
    """An element type.  code, bits, lanes: as in DLPack; typestr: as in the array interface, None if that lacks the type."""

    name: str
    bytes: int
    code: int
    bits: int
    typestr: str | None = None
    lanes: int = 1


_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6  # DLDataTypeCode
DATA_TYPES: Mapping[str, DataType] = MappingProxyType(
    {
        each.name: each
        for each in (
            DataType("bool", 1, _BOOL, 8, "|b1"),
            DataType("uint8", 1, _UINT, 8, "|u1"),
            DataType("uint16", 2, _UINT, 16, "<u2"),
            DataType("uint32", 4, _UINT, 32, "<u4"),
            DataType("uint64", 8, _UINT, 64, "<u8"),
            DataType("int8", 1, _INT, 8, "|i1"),
            DataType("int16", 2, _INT, 16, "<i2"),
            DataType("int32", 4, _INT, 32, "<i4"),
            DataType("int64", 8, _INT, 64, "<i8"),
            DataType("float16", 2, _FLOAT, 16, "<f2"),
            DataType("float32", 4, _FLOAT, 32, "<f4"),
            DataType("float64", 8, _FLOAT, 64, "<f8"),
            DataType("bfloat16", 2, _BFLOAT, 16),
            DataType("complex32", 4, _COMPLEX, 32),
            DataType("complex64", 8, _COMPLEX, 64, "<c8"),
            DataType("complex128", 16, _COMPLEX, 128, "<c16"),
            DataType("float8_e4m3fn", 1, 10, 8),
            DataType("float8_e4m3fnuz", 1, 11, 8),
            DataType("float8_e5m2", 1, 12, 8),
            DataType("float8_e5m2fnuz", 1, 13, 8),
            DataType("float8_e8m0fnu", 1, 14, 8),
            DataType("float4_e2m1fn_x2", 1, 17, 4, lanes=2),
        )
    }
)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor: `offset` of its first element in the window, in bytes; shape and strides in elements."""

    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def item_bytes(self) -> int:
        """The bytes of an element.  Raises LayoutError for an unknown type."""
        if self.dtype not in DATA_TYPES:
            raise LayoutError(f"no data type {self.dtype!r:.40} is known")
        return DATA_TYPES[self.dtype].bytes

    @property
    def bytes(self) -> int:
        """The bytes from the first to the last, gaps included.  Raises LayoutError for invalid shape or strides."""
        return span_bytes(self.shape, self.strides, self.item_bytes)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are dense in row-major order."""
        dense = dense_strides(self.shape)
        return all(size == 1 or have == want for size, have, want in zip(self.shape, self.strides, dense, strict=True))


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout: the tensors by name, in the order given, and an extra JSON value of the owner."""

    tensors: dict[str, TensorSpec]
    extra: Any = None


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the row-major strides of a shape, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def span_bytes(shape: Sequence[int], strides: Sequence[int], item_bytes: int) -> int:
    """Return the bytes from the first to the last; 0 without elements.  Raises LayoutError for negative sizes or strides, or if
    their numbers differ."""
    if len(shape) != len(strides) or min((*shape, *strides), default=0) < 0:
        raise LayoutError(f"shape {list(shape)}, strides {list(strides)}: as many of each are wanted, and none negative")
    if 0 in shape:
        return 0
    return (sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1) * item_bytes


def encode(layout: Layout) -> bytes:
    """Return the text of a layout.  Raises LayoutError for values that JSON lacks, and above mpsd's limit."""
    tensors = {
        name: {
            "offset": spec.offset,
            "bytes": spec.bytes if spec.dtype in DATA_TYPES else 0,
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "strides": list(spec.strides),
        }
        for name, spec in layout.tensors.items()
    }
    for name, described in tensors.items():
        _read_tensor(name, described)
    return encode_json({"format": FORMAT, "tensors": tensors, "extra": layout.extra})


def encode_json(value: Any) -> bytes:
    """Return a value as JSON.  Raises LayoutError for values that JSON lacks, and above mpsd's limit."""
    try:
        data = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise LayoutError(f"a layout holds JSON, and this is none: {exc}") from None
    if len(data) > MOST_BYTES:
        raise LayoutError(f"a layout of {len(data)} bytes: mpsd takes {MOST_BYTES}")
    return data


def decode(data: bytes) -> Layout:
    """Parse the text of a layout from `encode` or another library.  Raises LayoutError with the reason if it is invalid."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise LayoutError(f"the layout is no JSON: {exc}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise LayoutError(f"the layout is not of the format {FORMAT}")
    tensors = found.get("tensors")
    if not isinstance(tensors, dict):
        raise LayoutError("the layout has no tensors: an object is expected")
    return Layout({name: _read_tensor(name, each) for name, each in tensors.items()}, found.get("extra"))


def _read_tensor(name: str, found: Any) -> TensorSpec:
    if not isinstance(name, str) or not 0 < len(name) <= MOST_NAME:
        raise LayoutError(f"a tensor's name has 1 to {MOST_NAME} characters, this one: {name!r:.80}")
    if not isinstance(found, dict):
        raise LayoutError(f"tensor {name}: an object is expected")
    kind = DATA_TYPES.get(found["dtype"]) if isinstance(found.get("dtype"), str) else None
    if kind is None:
        raise LayoutError(f"tensor {name}: no data type {found.get('dtype')!r:.40} is known")
    shape, strides = _numbers(name, found, "shape"), _numbers(name, found, "strides")
    if len(shape) != len(strides):
        raise LayoutError(f"tensor {name}: {len(shape)} sizes, {len(strides)} strides")
    offset, told = found.get("offset"), found.get("bytes")
    if not _is_count(offset) or not _is_count(told):
        raise LayoutError(f"tensor {name}: offset and bytes are counts of bytes")
    if offset % kind.bytes:
        raise LayoutError(f"tensor {name}: offset {offset} is no multiple of its {kind.bytes} bytes an element")
    spec = TensorSpec(offset, kind.name, shape, strides)
    if spec.bytes != told or offset + told > MOST_WINDOW:
        raise LayoutError(f"tensor {name}: {told} bytes are said, its shape and strides make {spec.bytes}")
    return spec


def _numbers(name: str, found: Mapping[str, Any], which: str) -> tuple[int, ...]:
    numbers = found.get(which)
    if not isinstance(numbers, list) or len(numbers) > MOST_DIMENSIONS or not all(_is_count(each) for each in numbers):
        raise LayoutError(f"tensor {name}: {which} is a list of at most {MOST_DIMENSIONS} numbers, none negative")
    return tuple(numbers)


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= MOST_WINDOW


@dataclass(frozen=True, slots=True)
class Spans:
    """The memory of an arena as runs without gaps: (offset, end) in bytes, ascending."""

    runs: tuple[tuple[int, int], ...] = ()
    _starts: tuple[int, ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def of(cls, allocations: Iterable[tuple[int, int]]) -> "Spans":
        """Return the runs of allocations (offset, bytes), given in any order.  Adjacent ones are merged: a tensor may span
        them."""
        runs: list[tuple[int, int]] = []
        for offset, size in sorted(allocations):
            if runs and offset <= runs[-1][1]:
                runs[-1] = (runs[-1][0], max(runs[-1][1], offset + size))
            else:
                runs.append((offset, offset + size))
        return cls(tuple(runs), tuple(start for start, _ in runs))

    def has(self, offset: int, size: int) -> bool:
        """Return whether the arena has every byte of the range; True for an empty range."""
        if size == 0:
            return True
        at = bisect.bisect_right(self._starts, offset) - 1
        return at >= 0 and offset + size <= self.runs[at][1]


def place(name: str, address: int, size: int, base: int, spans: Spans) -> int:
    """Return the offset of `size` bytes at `address` in the window that begins at `base`.  Raises LayoutError if the arena does
    not have all of them."""
    if size == 0:
        return 0
    if not spans.has(address - base, size):
        raise LayoutError(f"tensor {name}: {size} bytes at {address:#x} are not memory of this arena")
    return address - base
