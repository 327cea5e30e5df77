"""Make a context of an arena's GPU current while the arena is opened: only mpsd's answer to the open names that GPU."""

import errno
from contextlib import ExitStack
from typing import Any

from mpsd_client import _cuda
from mpsd_client._native import ffi, lib


class Entrance:
    """Keeps the context current inside `with`.  call: the callback and its argument for mpsd_arena_open_on."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._gpu = ""
        self._error: BaseException | None = None
        self._handle = ffi.new_handle(self)
        self.call: tuple[Any, Any] = (lib.mpsd_client_enter, self._handle)

    def enter(self, gpu: str) -> int:
        """Make a context of the GPU current.  C calls this, possibly more than once; `check` raises the stored exception."""
        try:
            if gpu != self._gpu:
                self._stack.enter_context(_cuda.on_device(_cuda.device_of(gpu)))
                self._gpu = gpu
        except BaseException as exc:
            self._error = exc
            return -errno.ENODEV
        return 0

    def check(self) -> None:
        """Raise the exception that `enter` stored: LookupError (the GPU is not visible to CUDA in this process), CudaError,
        OSError (CUDA is not installed)."""
        if self._error is not None:
            raise self._error

    def __enter__(self) -> "Entrance":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _enter(entrance: Any, gpu: Any) -> int:
    found: Entrance = ffi.from_handle(entrance)
    return found.enter(ffi.string(gpu).decode())


ffi.def_extern("mpsd_client_enter", error=-errno.EIO)(_enter)
