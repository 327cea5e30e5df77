"""A session with mpsd through the C client, which turns the C client's failures into exceptions.

All calls about arenas that need descriptors or the driver use it; other calls may also use `Client`.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack

from mpsd_client._errors import ErrorCode, MpsdError, ProtocolError, Refused
from mpsd_client._place import socket_path

try:
    from mpsd_client._native import ffi, lib
except ImportError as exc:  # the C part is built with the package; it is missing without a compiler
    raise ImportError(f"arenas need mpsd_client's C part, install mpsd-client where there is a C compiler: {exc}") from None

WHY_BYTES = 512


class CudaError(MpsdError):
    """A call of CUDA's driver failed; `code` is its CUresult."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} (CUDA error {code})")
        self.code = code


class Session:
    """One connection, for use by any thread.  It reconnects by itself after a restart of mpsd.

    path: of the socket; None: mpsd.sock in $CUDA_MPS_PIPE_DIRECTORY, or in /tmp/nvidia-mps.  Raises OSError if mpsd does not
    listen, Refused.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, program: str = "mpsd_client") -> None:
        place = socket_path(path)
        why = ffi.new("char[]", WHY_BYTES)
        self.handle = lib.mpsd_session_open(os.fsencode(place), program.encode()[:64], why, WHY_BYTES)
        if self.handle == ffi.NULL:
            raise OSError(ffi.errno, ffi.string(why).decode(errors="replace") or os.strerror(ffi.errno), place)

    def check(self, result: int) -> int:
        """Return a non-negative result; otherwise raise its error: Refused, CudaError, TimeoutError or another OSError."""
        if result >= 0:
            return result
        words = ffi.string(lib.mpsd_error(self.handle)).decode(errors="replace") or os.strerror(-result)
        if code := lib.mpsd_error_code(self.handle):
            raise Refused(code, _name(code), words.replace(f"{_name(code)}: ", "", 1))  # Refused adds the name again
        if code := lib.mpsd_error_cuda(self.handle):
            raise CudaError(code, words)
        raise OSError(-result, words)

    def ask(self, method: str, params: Mapping[str, Any], fds: Sequence[int] = ()) -> tuple[dict[str, Any], list[int]]:
        """Send an idempotent call, which the C client may repeat after a reconnect.  Return the result and its descriptors,
        which the caller owns.  fds: descriptors to send; the caller keeps them."""
        answer = ffi.new("struct mpsd_answer *")
        packed = msgpack.packb(dict(params))
        given = ffi.new("int[]", list(fds))
        self.check(lib.mpsd_call(self.handle, method.encode(), packed, len(packed), given, len(fds), 1, 0.0, answer))
        try:
            size = int(ffi.cast("uintptr_t", answer.result.end)) - int(ffi.cast("uintptr_t", answer.result.at))
            found = msgpack.unpackb(bytes(ffi.buffer(answer.result.at, size)))
            if not isinstance(found, dict):
                raise ProtocolError(f"the result of {method} is no map")
            taken = list(answer.fds[0 : answer.fd_count])
            answer.fd_count = 0
        except ValueError:
            raise ProtocolError(f"the result of {method} is not MessagePack") from None
        finally:
            lib.mpsd_answer_clear(answer)
        return found, taken

    def close(self) -> None:
        """Close the connection, after its arenas were closed; a second call does nothing."""
        handle, self.handle = self.handle, ffi.NULL
        lib.mpsd_session_close(handle)


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"ERROR_{code}"
