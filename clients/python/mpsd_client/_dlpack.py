"""DLPack capsules of arena memory, and the count of unreleased ones.  The ABI is in native/dlpack.h."""

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

from mpsd_client._layout import DataType
from mpsd_client._native import ffi, lib

CUDA = 2  # DLDeviceType
VERSION = 1  # the first ABI version with "dltensor_versioned" capsules, which can be marked read-only


class Exports:
    """Counts the capsules that consumers have not released; C code updates the count, in any thread.

    The count outlives this object, because capsules may.
    """

    def __init__(self) -> None:
        self._handle = lib.mpsd_exports_new()
        if self._handle == ffi.NULL:
            raise MemoryError("no memory for the count of an arena's exports")
        weakref.finalize(self, lib.mpsd_exports_leave, self._handle).atexit = False  # exit handlers may still ask for the count

    @property
    def out(self) -> int:
        return int(lib.mpsd_exports_out(self._handle))

    def capsule(
        self,
        address: int,
        device: int,
        dtype: DataType,
        shape: Sequence[int],
        strides: Sequence[int],
        *,
        is_versioned: bool,
        is_read_only: bool = False,
    ) -> Any:
        """Return a capsule of these elements, named "dltensor_versioned" or "dltensor".  One consumer imports it, once."""
        count = len(shape)
        sizes, steps = ffi.new("int64_t[]", list(shape) or 1), ffi.new("int64_t[]", list(strides) or 1)
        asked = ffi.new(
            "struct mpsd_export *",
            {
                "address": address,
                "shape": sizes,
                "strides": steps,
                "ndim": count,
                "device": device,
                "code": dtype.code,
                "bits": dtype.bits,
                "lanes": dtype.lanes,
                "is_versioned": is_versioned,
                "is_read_only": is_read_only,
            },
        )
        return _make_capsule(_number(self._handle), _number(asked))


def _number(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


# PYFUNCTYPE holds the GIL, which the creation of a capsule needs; a call through cffi would release it.
_make_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)(
    _number(ffi.addressof(lib, "mpsd_dlpack_capsule"))
)
