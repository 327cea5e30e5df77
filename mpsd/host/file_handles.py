"""Handles of files (name_to_handle_at(2)): a file keeps its own under any name, and a later file with its inode has another.

No process needs a privilege for its open files.
"""

import os
import struct

from mpsd.native import ffi, lib

FileHandle = bytes  # a struct file_handle: bytes of the handle, its type, the handle

_HEAD = struct.Struct("=Ii")
_MOST_BYTES = 128  # MAX_HANDLE_SZ of linux/exportfs.h


def handle_of(file: int) -> FileHandle:
    """Return the handle of an open file.  Raises OSError, as on a file system that has none."""
    found = ffi.new("char[]", _HEAD.pack(_MOST_BYTES, 0) + bytes(_MOST_BYTES))
    if lib.name_to_handle_at(file, b"", ffi.cast("struct file_handle *", found), ffi.new("int *"), lib.AT_EMPTY_PATH) < 0:
        raise OSError(ffi.errno, os.strerror(ffi.errno))
    return handle_at(bytes(ffi.buffer(found)), 0)


def handle_at(data: bytes, start: int) -> FileHandle:
    """Return the handle that starts there in the kernel's bytes."""
    return data[start : start + _HEAD.size + _HEAD.unpack_from(data, start)[0]]
