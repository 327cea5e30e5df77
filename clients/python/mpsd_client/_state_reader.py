"""The reader of a forward state, and the errors of states; the writer is in _state.py.  Prose: mpsd's docs/state.md."""

import errno
import os
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from mpsd_client._errors import MpsdError
from mpsd_client._native import ffi, lib
from mpsd_client._record import Record, Schema

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
    """A failure to create, open, write or read a state; `errno` is the result code of mpsd/state.h."""


def check(result: int) -> None:
    """Raise StateError if the result of a C call is negative."""
    if result < 0:
        raise StateError(-result, _WORDS.get(-result) or os.strerror(-result))


class StateReader:
    """A reader of a state, made by `open`.  Any thread may use it; a lock serializes them."""

    def __init__(self, handle: Any, schema: Schema | None) -> None:
        """Called by `open`."""
        self.schema = schema
        self._lock = threading.Lock()
        self._handle = ffi.gc(handle, lib.mpsd_state_reader_close)
        self._bytes = int(lib.mpsd_state_reader_bytes(handle))
        self._found = ffi.new("const void **"), ffi.new("struct mpsd_state_stamp *")

    @classmethod
    def open(cls, fd: int, schema: Schema | Mapping[str, str] | None = None, *, generation: int = 0) -> "StateReader":
        """Open a state by its descriptor, which the caller may close afterwards.  schema: the schema that the writer must have;
        None: the schema that the state declares.  generation: the lowest accepted one.

        Raises StateError if the state has an older generation (ESTALE) or another schema (EBADMSG), is damaged (EPROTO), or if
        the descriptor is not a state.
        """
        asked = schema if isinstance(schema, Schema) or schema is None else Schema.of(schema)
        handle = ffi.new("struct mpsd_state_reader **")
        check(lib.mpsd_state_open(fd, asked.text.encode() if asked else ffi.NULL, generation, handle))
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
        """The sequence of the last published record, without validation, which `read` does; 0: none."""
        return int(lib.mpsd_state_latest(self._open()))

    def read(self) -> Record | None:
        """Return the last published record; None if none was published.  Raises StateError if the state is damaged (EPROTO) or
        the writer was faster at every attempt (EAGAIN)."""
        with self._lock:
            record, stamp = self._found
            result = lib.mpsd_state_read(self._open(), record, stamp)
            if result == -errno.ENODATA:
                return None
            check(result)
            return Record(self.schema, bytes(ffi.buffer(record[0], self._bytes)), stamp.generation, stamp.sequence)

    def _open(self) -> Any:
        if self._handle is None:
            raise ValueError("the state is closed")
        return self._handle

    def close(self) -> None:
        """Close the reader.  Records that it returned stay valid.  A second call does nothing."""
        with self._lock:
            self._handle = None

    def __enter__(self) -> "StateReader":
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _parse(text: bytes, record_bytes: int) -> Schema | None:
    """Return the schema that a state declares; None if it is in another format: its records are then plain bytes."""
    try:
        schema = Schema.parse(text.decode())
    except ValueError:  # UnicodeDecodeError is one
        return None
    return schema if schema.record_bytes == record_bytes else None
