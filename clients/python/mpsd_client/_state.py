"""The forward state: shared memory from which a standby continues where the active process stopped.

    state = State.create({"step": "uint64", "rng": "uint64[4]", "request": "text[32]"}, generation=arena.generation)
    state.publish(step=7, request="a7")            # the active, at every step; it passes the descriptor, state.fd, on

    record = StateReader.open(fd, state.schema).read()    # the standby, even after the end of the active
    record["step"], record.generation, record.sequence

The C client implements it: a writer may be killed at any instruction, and a reader gets a whole record or an error.
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
    """The writer of a state, made by `create`.  Any thread may use it; a lock serializes them.  A forked child cannot use it.

    Each writer has its own memory: the process that takes over creates another state, with a higher generation.
    """

    def __init__(self, handle: Any, schema: Schema) -> None:
        """Called by `create`."""
        self.schema = schema
        self._fields = schema.fields
        self._lock = threading.Lock()
        self._handle = ffi.gc(handle, lib.mpsd_state_close)
        self._record = _bytes_of(self._handle, lib.mpsd_state_record(handle), schema.record_bytes)

    @classmethod
    def create(cls, schema: Schema | Mapping[str, str], *, generation: int) -> "State":
        """Create a state without a published record.  schema: names and types, as for Schema.of.  generation: of the arena's
        writer.

        Raises ValueError for an invalid schema or generation; StateError.
        """
        made = schema if isinstance(schema, Schema) else Schema.of(schema)
        if not 0 < generation < 1 << 64:
            raise ValueError(f"a generation is a count from 1, not {generation}")
        handle = ffi.new("struct mpsd_state **")
        check(lib.mpsd_state_create(made.text.encode(), made.record_bytes, generation, handle))
        return cls(handle[0], made)

    @property
    def fd(self) -> int:
        """The descriptor to pass to readers; it belongs to this state, and is closed with it.  -1: closed."""
        return -1 if self._handle is None else int(lib.mpsd_state_fd(self._handle))

    def fileno(self) -> int:
        return self.fd

    @property
    def published(self) -> tuple[int, int]:
        """The generation and sequence of the last published record; sequence 0: none."""
        stamp = lib.mpsd_state_published(self._open())
        return stamp.generation, stamp.sequence

    def publish(self, **values: Any) -> None:
        """Set these fields, and publish the record with all changes so far atomically.

        Raises ValueError, and sets nothing, for a value that does not fit; TypeError for an unknown field; StateError.
        """
        with self._lock:
            handle = self._open()
            result = self._set(handle, values, lib.mpsd_state_update) if values else lib.mpsd_state_publish(handle)
        check(result)

    def work(self, is_busy: bool) -> None:
        """Count the time from `work(True)` to `work(False)` as work, which elastic shares follow.  Raises StateError."""
        with self._lock:
            check(lib.mpsd_state_work(self._open(), is_busy))

    def set(self, **values: Any) -> None:
        """Set these fields; the next publish makes them visible.  Raises as `publish` does."""
        with self._lock:
            check(self._set(self._open(), values, lib.mpsd_state_changed))

    def fill(self, record: Record) -> None:
        """Copy the fields of a record that have the same name and type here; the next publish makes them visible."""
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
        """Return a view of a field's elements to write in place (numpy.frombuffer accepts it); then call `changed` and
        publish."""
        self._open()
        return view_of(self._field(name), self._record)

    def changed(self, name: str, first: int = 0, count: int | None = None) -> None:
        """Mark elements of a field as written through `view`: all, or `count` from `first` on.  Raises IndexError."""
        with self._lock:
            handle, field = self._open(), self._field(name)
            elements = field.count or 1
            count = elements - first if count is None else count
            if first < 0 or count < 0 or first + count > elements:
                raise IndexError(f"field {name} has {elements} elements, not {first} to {first + count}")
            check(lib.mpsd_state_changed(handle, field.offset + first * field.alignment, count * field.alignment))

    def publisher(self, *names: str) -> Callable[..., None]:
        """Return a function that sets and publishes these adjacent number fields, the fastest way to publish.

        `step = state.publisher("step", "token"); step(7, 42)`; it takes an array's elements as single arguments.  The function
        raises struct.error, and publishes nothing, for a value that does not fit.  Raises ValueError if the fields are not
        numbers, or not adjacent in this order.
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
        """Set all values or, if one does not fit, none.  Return the result of `last`, which is called for the last field."""
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
        """Close the state.  Open readers stay valid.  Memory and descriptor are freed with the last view.  A second call does
        nothing."""
        with self._lock:
            self._handle = self._record = None

    def __enter__(self) -> "State":
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _bytes_of(handle: Any, address: Any, count: int) -> Any:
    """Return a buffer of a handle's memory.  The buffer, and every view of it, keeps the handle alive."""
    return ffi.buffer(ffi.gc(ffi.cast("char *", address), lambda _: handle), count)
