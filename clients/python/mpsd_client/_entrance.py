"""A context of an arena's GPU, current while the arena is opened: which GPU that is, mpsd says in the answer that opens it."""

import errno
from contextlib import ExitStack
from typing import Any

from mpsd_client import _cuda
from mpsd_client._native import ffi, lib


class Entrance:
    """Within `with` the context stays current.  call: what mpsd_arena_open_on is given."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._gpu = ""
        self._error: BaseException | None = None
        self._handle = ffi.new_handle(self)
        self.call: tuple[Any, Any] = (lib.mpsd_client_enter, self._handle)

    def enter(self, gpu: str) -> int:
        """From C, which hears of no exception; maybe more than once."""
        try:
            if gpu != self._gpu:
                self._stack.enter_context(_cuda.on_device(_cuda.device_of(gpu)))
                self._gpu = gpu
        except BaseException as exc:
            self._error = exc
            return -errno.ENODEV
        return 0

    def check(self) -> None:
        """Raises what `enter` met: LookupError (the GPU is not visible to CUDA here), CudaError, OSError (there is no CUDA)."""
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
