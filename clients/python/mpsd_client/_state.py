"""The forward state: what a standby needs to go on where the active process stopped, in memory that outlives a step.

    state = State.create({"step": "uint64", "rng": "uint64[4]", "request": "text[32]"}, generation=arena.generation)
    state.publish(step=7, request="a7")            # the active, at every step; its descriptor, state.fd, is passed on

    record = StateReader.open(fd, state.schema).read()    # the standby, whatever became of the active
    record["step"], record.generation, record.sequence

All of it is the C client's: a writer killed at any instruction costs nothing, and a reader gets a whole record or an error.
Prose: mpsd's docs/state.md.
"""

import errno
import os
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from mpsd_client._errors import MpsdError
from mpsd_client._native import ffi, lib
from mpsd_client._record import Field, Record, Schema, together, view_of

_WORDS = {
    errno.EINVAL: "no state can be so: its generation is 1 or more",
    errno.ECHILD: "the state is that of the process before fork: create another",
    errno.EPERM: "the descriptor is no memfd that is sealed against shrinking and growing",
    errno.EPROTONOSUPPORT: "the state is of another major version",
    errno.EBADMSG: "the state is of another schema",
    errno.ESTALE: "the state is of an older generation than was asked for",
    errno.EPROTO: "the state is damaged: somebody else has written there",
    errno.EAGAIN: "the writer was faster than the reader at every try; ask again",
}


class StateError(MpsdError, OSError):
    """A state that cannot be created, opened, written or read; `errno` says which of mpsd/state.h's results it was."""


def _check(result: int) -> None:
    if result < 0:
        raise StateError(-result, _WORDS.get(-result) or os.strerror(-result))


class State:
    """The writer of a state, by `create`.  Any thread may use it; they take turns.  In a child after fork it refuses.

    Its memory is its own: who takes over creates another one, with a higher generation.
    """

    def __init__(self, handle: Any, schema: Schema) -> None:
        """Not to be called: see `create`."""
        self.schema = schema
        self._fields = schema.fields
        self._lock = threading.Lock()
        self._handle = ffi.gc(handle, lib.mpsd_state_close)
        self._record = _bytes_of(self._handle, lib.mpsd_state_record(handle), schema.record_bytes)

    @classmethod
    def create(cls, schema: Schema | Mapping[str, str], *, generation: int) -> "State":
        """With nothing published.  schema: names and types, as Schema.of takes them.  generation: of the arena's writer.

        Raises ValueError: no schema; StateError.
        """
        made = schema if isinstance(schema, Schema) else Schema.of(schema)
        if not 0 < generation < 1 << 64:
            raise ValueError(f"a generation is a count from 1, not {generation}")
        handle = ffi.new("struct mpsd_state **")
        _check(lib.mpsd_state_create(made.text.encode(), made.record_bytes, generation, handle))
        return cls(handle[0], made)

    @property
    def fd(self) -> int:
        """For whoever shall read; it stays this state's, and is closed with it.  -1: closed."""
        return -1 if self._handle is None else int(lib.mpsd_state_fd(self._handle))

    def fileno(self) -> int:
        return self.fd

    @property
    def published(self) -> tuple[int, int]:
        """Generation and sequence of the record published last; sequence 0: none."""
        stamp = lib.mpsd_state_published(self._open())
        return stamp.generation, stamp.sequence

    def publish(self, **values: Any) -> None:
        """Sets these fields, and publishes the record with all that was set or changed: a reader sees all of it or nothing.

        Raises ValueError (and sets nothing): a value that does not fit; TypeError: no such field; StateError.
        """
        with self._lock:
            handle = self._open()
            result = self._set(handle, values, lib.mpsd_state_update) if values else lib.mpsd_state_publish(handle)
        _check(result)

    def set(self, **values: Any) -> None:
        """Sets these fields; they are seen with the next publish.  Raises as `publish` does."""
        with self._lock:
            _check(self._set(self._open(), values, lib.mpsd_state_changed))

    def view(self, name: str) -> memoryview:
        """The elements of a field, to be written in place (numpy.frombuffer takes it); say `changed` then, and publish."""
        self._open()
        return view_of(self._field(name), self._record)

    def changed(self, name: str, first: int = 0, count: int | None = None) -> None:
        """A field's elements were written through `view`: all of them, or `count` from `first` on.  Raises IndexError."""
        with self._lock:
            handle, field = self._open(), self._field(name)
            elements = field.count or 1
            count = elements - first if count is None else count
            if first < 0 or count < 0 or first + count > elements:
                raise IndexError(f"field {name} has {elements} elements, not {first} to {first + count}")
            _check(lib.mpsd_state_changed(handle, field.offset + first * field.alignment, count * field.alignment))

    def publisher(self, *names: str) -> Callable[..., None]:
        """A function of the values of these numbers, which lie one behind the other: sets and publishes.  The fastest way.

        `step = state.publisher("step", "token"); step(7, 42)`; an array's numbers one by one.  It raises struct.error for a
        value that does not fit, and publishes nothing.  Raises ValueError here: no numbers, or no neighbours in this order.
        """
        fields = [self._field(name) for name in names]
        order = list(self._fields.values())
        first = order.index(fields[0]) if fields else 0
        if not fields or order[first : first + len(fields)] != fields or not all(each.is_number for each in fields):
            raise ValueError(f"not numbers one behind the other: {', '.join(names)}; the fields are {', '.join(self._fields)}")
        offset, size = fields[0].offset, fields[-1].offset + fields[-1].bytes - fields[0].offset
        pack_into = together(fields).pack_into

        def publish(*values: Any) -> None:
            with self._lock:
                handle = self._handle or self._open()
                pack_into(self._record, offset, *values)
                result = lib.mpsd_state_update(handle, offset, size)
            if result:
                _check(result)

        return publish

    def _set(self, handle: Any, values: Mapping[str, Any], last: Callable[[Any, int, int], int]) -> int:
        """All of them or none.  The last one is told of by `last`, of which this is the result."""
        packed = []
        for name, value in values.items():
            field = self._field(name)
            packed.append((field.offset, field.bytes, field.pack(value)))
        result, left = 0, len(packed)
        for offset, size, data in packed:
            left -= 1
            self._record[offset : offset + size] = data
            result = (lib.mpsd_state_changed if left else last)(handle, offset, size)
        return result

    def _field(self, name: str) -> Field:
        try:
            return self._fields[name]
        except KeyError:
            raise TypeError(f"the state has no field {name!r}; it has {', '.join(self._fields)}") from None

    def _open(self) -> Any:
        if self._handle is None:
            raise ValueError("the state is closed")
        return self._handle

    def close(self) -> None:
        """Readers keep what they have open.  Memory and descriptor go with the last view.  Twice does nothing."""
        with self._lock:
            self._handle = self._record = None

    def __enter__(self) -> "State":
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class StateReader:
    """A reader of a state, by `open`.  Any thread may use it; they take turns."""

    def __init__(self, handle: Any, schema: Schema | None) -> None:
        """Not to be called: see `open`."""
        self.schema = schema
        self._lock = threading.Lock()
        self._handle = ffi.gc(handle, lib.mpsd_state_reader_close)
        self._bytes = int(lib.mpsd_state_reader_bytes(handle))
        self._found = ffi.new("const void **"), ffi.new("struct mpsd_state_stamp *")

    @classmethod
    def open(cls, fd: int, schema: Schema | Mapping[str, str] | None = None, *, generation: int = 0) -> "StateReader":
        """Of a descriptor, which may be closed then.  schema: as the writer must have it; None: as the state itself says.
        generation: the least.

        Raises StateError: it is of an older generation (ESTALE), of another schema (EBADMSG), damaged (EPROTO), no state.
        """
        asked = schema if isinstance(schema, Schema) or schema is None else Schema.of(schema)
        handle = ffi.new("struct mpsd_state_reader **")
        _check(lib.mpsd_state_open(fd, asked.text.encode() if asked else ffi.NULL, generation, handle))
        reader = cls(handle[0], asked)
        if asked is None:
            reader.schema = _parse(ffi.string(lib.mpsd_state_schema(handle[0])), reader._bytes)
        elif asked.record_bytes != reader._bytes:
            raise StateError(errno.EPROTO, _WORDS[errno.EPROTO])
        return reader

    @property
    def generation(self) -> int:
        return int(lib.mpsd_state_generation(self._open()))

    @property
    def latest(self) -> int:
        """The sequence of the record published last, at a glance; 0: none.  `read` is what proves it."""
        return int(lib.mpsd_state_latest(self._open()))

    def read(self) -> Record | None:
        """The record published last; None: nothing was yet.  Raises StateError: damaged (EPROTO), overtaken (EAGAIN)."""
        with self._lock:
            record, stamp = self._found
            result = lib.mpsd_state_read(self._open(), record, stamp)
            if result == -errno.ENODATA:
                return None
            _check(result)
            return Record(self.schema, bytes(ffi.buffer(record[0], self._bytes)), stamp.generation, stamp.sequence)

    def _open(self) -> Any:
        if self._handle is None:
            raise ValueError("the state is closed")
        return self._handle

    def close(self) -> None:
        """Records that were read stay.  Twice does nothing."""
        with self._lock:
            self._handle = None

    def __enter__(self) -> "StateReader":
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _bytes_of(handle: Any, address: Any, count: int) -> Any:
    """Memory of a handle, which keeps the handle, as whatever looks at the memory keeps it."""
    return ffi.buffer(ffi.gc(ffi.cast("char *", address), lambda _: handle), count)


def _parse(text: bytes, record_bytes: int) -> Schema | None:
    """The fields that a state says it has; None: its writer has another way of saying it, and its records are bytes."""
    try:
        schema = Schema.parse(text.decode())
    except ValueError:  # UnicodeDecodeError is one
        return None
    return schema if schema.record_bytes == record_bytes else None
