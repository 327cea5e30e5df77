"""Memory of an arena as DLPack capsules, and the count of those that are out.  The ABI is in native/dlpack.h."""

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

from mpsd_client._layout import DataType
from mpsd_client._native import ffi, lib

CUDA = 2  # DLDeviceType
VERSION = 1  # of the ABI from which capsules are "dltensor_versioned", and can say that they are read-only


class Exports:
    """How much of an arena others have: each capsule counts until whoever took it lets go, which C notes, in any thread.

    The count outlives this object, as the capsules may.
    """

    def __init__(self) -> None:
        self._handle = lib.mpsd_exports_new()
        if self._handle == ffi.NULL:
            raise MemoryError("no memory for the count of an arena's exports")
        weakref.finalize(self, lib.mpsd_exports_leave, self._handle).atexit = False  # it may be asked until the very end

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
        """A capsule of these elements: "dltensor_versioned" or "dltensor".  It is used once, by whoever imports it."""
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


# PYFUNCTYPE keeps the interpreter's lock, which making a capsule needs and a call through cffi gives up.
_make_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)(
    _number(ffi.addressof(lib, "mpsd_dlpack_capsule"))
)
