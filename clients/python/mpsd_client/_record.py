"""The schema of a forward state: the type and offset of each field in its record.  Pure: this module shares no memory.

A schema is text that both sides compare:

    mpsd-state-1 56             format, bytes of a record
    step uint64 0               name, type, offset
    rng uint64[4] 8             an array
    request text[16] 40         UTF-8, padded with NUL; bytes[16]: any bytes, padded with NUL

Fields are laid out in order, each aligned to its element, as in a C struct.  Prose: mpsd's docs/state.md.
"""

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

FORMAT = "mpsd-state-1"
MOST_BYTES = 1 << 20  # of a record: MPSD_STATE_MOST_BYTES
MOST_TEXT = 3967  # one less than MPSD_STATE_SCHEMA_ROOM
FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "bool": "?", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I",
        "int64": "q", "uint64": "Q", "float16": "e", "float32": "f", "float64": "d", "bytes": "s", "text": "s",
    }
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z", re.ASCII)
_TYPE = re.compile(r"([a-z]+[0-9]*)(?:\[([1-9][0-9]{0,6})\])?\Z", re.ASCII)
_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,6})\Z", re.ASCII)

Value = bool | int | float | str | bytes | tuple[bool | int | float, ...]


class Field:
    """A field of a record.  type: as in the schema's text.  Schema makes the fields."""

    __slots__ = ("bytes", "count", "element", "is_plain", "name", "offset", "packer", "type")

    def __init__(self, name: str, type_: str, offset: int) -> None:
        """Raises ValueError for an invalid name or an unknown type."""
        found = _TYPE.match(type_)
        if not _NAME.match(name):
            raise ValueError(f"a field's name is a word of up to 64 letters, digits and _, this one: {name!r:.80}")
        if found is None or found[1] not in FORMATS or (found[1] in ("bytes", "text") and not found[2]):
            raise ValueError(f"field {name}: no type {type_!r:.40} is known; there are {', '.join(FORMATS)}, and TYPE[COUNT]")
        self.name, self.type, self.offset = name, type_, offset
        self.element = found[1]
        self.count = int(found[2]) if found[2] else None  # None: one value, no array
        self.packer = struct.Struct(f"={self.count or ''}{FORMATS[self.element]}")
        self.bytes = self.packer.size
        self.is_plain = self.count is None

    @property
    def is_number(self) -> bool:
        """Whether the field holds numbers or booleans, alone or in an array."""
        return FORMATS[self.element] != "s"

    @property
    def alignment(self) -> int:
        return struct.calcsize("=" + FORMATS[self.element])

    def pack(self, value: Any) -> bytes:
        """Return the bytes of a value in a record.  Raises ValueError if the value does not fit."""
        try:
            if self.is_plain:
                return self.packer.pack(value)
            if self.is_number:
                return self.packer.pack(*value)
            data = value.encode() if isinstance(value, str) else value
            if len(data) > self.bytes:  # struct would truncate it
                raise struct.error(f"{len(data)} bytes")
            return self.packer.pack(data)
        except (struct.error, TypeError, OverflowError) as exc:
            raise ValueError(f"field {self.name} is {self.type}, and {value!r:.60} is not: {exc}") from None

    def read(self, record: Any) -> Value:
        found = self.packer.unpack_from(record, self.offset)
        if self.element == "text":
            text: bytes = found[0]
            return text.rstrip(b"\0").decode(errors="replace")
        value: Value = found[0] if self.is_plain or self.element == "bytes" else found
        return value


@dataclass(frozen=True, slots=True)
class Schema:
    """The fields of a record by name, in order; the size of a record in bytes; and the schema's text."""

    fields: Mapping[str, Field]
    record_bytes: int
    text: str

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> "Schema":
        """Return the schema of names and types: {"step": "uint64", "rng": "uint64[4]"}.  Raises ValueError."""
        made: dict[str, Field] = {}
        end, widest = 0, 1
        for name, type_ in fields.items():
            field = Field(name, type_, 0)
            field.offset = -(-end // field.alignment) * field.alignment
            end, widest = field.offset + field.bytes, max(widest, field.alignment)
            made[name] = field
        return cls._checked(made, -(-end // widest) * widest)

    @classmethod
    def parse(cls, text: str) -> "Schema":
        """Parse the text of a schema, which may be untrusted.  Raises ValueError if it is malformed."""
        head, *lines = text[:MOST_TEXT].removesuffix("\n").split("\n")
        name, _, size = head.partition(" ")
        if name != FORMAT or not _NUMBER.match(size) or not text.endswith("\n") or len(text) > MOST_TEXT:
            raise ValueError(f"a schema begins with {FORMAT} and the size of a record: {head!r:.80}")
        made: dict[str, Field] = {}
        end = 0
        for line in lines:
            words = line.split(" ")
            if len(words) != 3 or not _NUMBER.match(words[2]) or words[0] in made:
                raise ValueError(f"a field is a name of its own, a type and an offset: {line!r:.80}")
            field = Field(words[0], words[1], int(words[2]))
            if field.offset < end:
                raise ValueError(f"field {field.name} begins at {field.offset}, before {end}, where the one before ends")
            made[field.name], end = field, field.offset + field.bytes
        if end > int(size):
            raise ValueError(f"the fields end at {end}, the record at {size}")
        return cls._checked(made, int(size))

    @classmethod
    def _checked(cls, made: dict[str, Field], record_bytes: int) -> "Schema":
        text = "".join(f"{each.name} {each.type} {each.offset}\n" for each in made.values())
        text = f"{FORMAT} {record_bytes}\n{text}"
        if not made or not 0 < record_bytes <= MOST_BYTES:
            raise ValueError(f"a record has fields, and 1 to {MOST_BYTES} bytes; this one has {record_bytes}")
        if len(text) > MOST_TEXT:
            raise ValueError(f"a schema's text has up to {MOST_TEXT} characters, this one {len(text)}: fewer fields, or arrays")
        return cls(MappingProxyType(made), record_bytes, text)


class Record(Mapping[str, Value]):
    """A published record, as a mapping of its fields.  Of two records, the later has the higher (generation, sequence).

    data: all bytes of the record, even if its schema is unknown.
    """

    __slots__ = ("data", "generation", "schema", "sequence")

    def __init__(self, schema: Schema | None, data: bytes, generation: int, sequence: int) -> None:
        self.schema, self.data, self.generation, self.sequence = schema, data, generation, sequence

    def __getitem__(self, name: str) -> Value:
        """Return the value of a field: a number, text, bytes, or a tuple for an array.  Raises KeyError."""
        return self._fields()[name].read(self.data)

    def view(self, name: str) -> memoryview:
        """Return a read-only view of an array in `data`, for numpy.frombuffer and others, without a copy."""
        return view_of(self._fields()[name], self.data)

    def _fields(self) -> Mapping[str, Field]:
        return self.schema.fields if self.schema else {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields())

    def __len__(self) -> int:
        return len(self._fields())

    def __repr__(self) -> str:
        return f"<Record {self.generation}:{self.sequence} {dict(self)!r:.200}>"


def together(fields: Sequence[Field]) -> struct.Struct:
    """Return a Struct that packs adjacent fields at once, the elements of arrays as single values.  Padding becomes zero."""
    words, end = [], fields[0].offset
    for field in fields:
        words.append("x" * (field.offset - end) + field.packer.format.lstrip("="))
        end = field.offset + field.bytes
    return struct.Struct("=" + "".join(words))


def view_of(field: Field, record: Any) -> memoryview:
    """Return a view of a field's elements in the bytes of a record."""
    span = memoryview(record).cast("B")[field.offset : field.offset + field.bytes]
    kind = FORMATS[field.element] if field.is_number else "B"
    kind = "H" if kind == "e" else kind  # before Python 3.12 memoryview lacks halves: view them as uint16
    return span.cast(kind)  # type: ignore[call-overload, no-any-return]
