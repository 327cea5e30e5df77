"""Start mpsd-sentinel for one GPU of a domain, and connect to a running one.  Call these in a thread.

The program outlives mpsd: the next mpsd connects to the same socket, in the domain's directory, which only mpsd can enter.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from mpsd.errors import VendorFailed
from mpsd.host.inspector import Inspector

_CONNECT_SECONDS = 1.0
_LIMITS = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "LD_PRELOAD")  # of mpsd's environment


def socket_path(home: Path, ordinal: int) -> Path:
    """Return the path of the socket of the sentinel of the domain's GPU with this ordinal."""
    return home / f"sentinel.{ordinal}"


def environment_of(environment: Mapping[str, str], gpu: str) -> dict[str, str]:
    """Return the environment of a sentinel's client on this GPU."""
    return {name: value for name, value in environment.items() if name not in _LIMITS} | {"CUDA_VISIBLE_DEVICES": gpu}


def start_sentinel(
    inspector: Inspector, path: Path, command: Sequence[str], environment: Mapping[str, str]
) -> socket.socket:
    """Start the program with a socket at `path`; return a connection to it.  Raises VendorFailed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            path.unlink(missing_ok=True)
            os.fchmod(listener.fileno(), 0o600)
            listener.bind(str(path))
            listener.listen(4)
        except OSError as exc:
            raise VendorFailed(f"the sentinel's socket {path} cannot be made: {exc.strerror}") from None
        try:
            with open(os.devnull, "r+b", buffering=0) as null:
                child = inspector.start_program(command, environment, (listener.fileno(), null.fileno(), null.fileno()))
        except OSError as exc:
            raise VendorFailed(f"{command[0]} cannot be run: {exc.strerror}") from None
        os.close(child.pidfd)  # it sends its pid itself, also to the next mpsd
        found = connect_sentinel(path)
    if found is None:
        raise VendorFailed("the sentinel ended at once")
    return found


def connect_sentinel(path: Path) -> socket.socket | None:
    """Return a connection, which replaces an earlier mpsd's; None if no process listens there."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end.settimeout(_CONNECT_SECONDS)
    try:
        end.connect(str(path))
    except OSError as exc:
        end.close()
        if isinstance(exc, ConnectionRefusedError):  # a dead one's
            with suppress(OSError):
                path.unlink(missing_ok=True)
        return None
    end.setblocking(False)
    return end
