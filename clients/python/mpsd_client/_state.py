"""The forward state: what a standby needs to go on where the active process stopped, in memory that outlives a step.

    state = State.create({"step": "uint64", "rng": "uint64[4]", "request": "text[32]"}, generation=arena.generation)
    state.publish(step=7, request="a7")            # the active, at every step; its descriptor, state.fd, is passed on

    record = StateReader.open(fd, state.schema).read()    # the standby, whatever became of the active
    record["step"], record.generation, record.sequence

All of it is the C client's: a writer killed at any instruction costs nothing, and a reader gets a whole record or an error.
Prose: mpsd's docs/state.md.
"""

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from mpsd_client._native import ffi, lib
from mpsd_client._record import Field, Record, Schema, together, view_of
from mpsd_client._state_reader import check


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
        check(lib.mpsd_state_create(made.text.encode(), made.record_bytes, generation, handle))
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
        check(result)

    def set(self, **values: Any) -> None:
        """Sets these fields; they are seen with the next publish.  Raises as `publish` does."""
        with self._lock:
            check(self._set(self._open(), values, lib.mpsd_state_changed))

    def fill(self, record: Record) -> None:
        """Sets the fields that a record, of any schema, has too with the same type; they are seen with the next publish."""
        theirs = record.schema.fields if record.schema else {}
        with self._lock:
            handle = self._open()
            for name, field in self._fields.items():
                other = theirs.get(name)
                if other is not None and other.type == field.type:
                    found = record.data[other.offset : other.offset + other.bytes]
                    self._record[field.offset : field.offset + field.bytes] = found
            check(lib.mpsd_state_changed(handle, 0, self.schema.record_bytes))

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
            check(lib.mpsd_state_changed(handle, field.offset + first * field.alignment, count * field.alignment))

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
                check(result)

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


def _bytes_of(handle: Any, address: Any, count: int) -> Any:
    """Memory of a handle, which keeps the handle, as whatever looks at the memory keeps it."""
    return ffi.buffer(ffi.gc(ffi.cast("char *", address), lambda _: handle), count)
