"""The descriptors that come with a request or go with its response: each has one owner at any time, who closes it.

    kernel --received--> Descriptors --take--> a service        of a request; those not taken are closed
    a service --give--> Descriptors --sent--> kernel            of a response; sent or not, mpsd's copy is closed

A client's descriptor may be of any kind: fstat on it, or closing it, can wait for a file server of the client's, or for a
socket to linger.  So services get only kinds that never wait (`is_prompt`); a thread closes the others, and only the client
that sent them waits for it.
"""

import ctypes
import errno
import fcntl
import os
import resource
import socket
import stat
import sys
import threading
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

FULL = (errno.EMFILE, errno.ENFILE)  # no descriptor is free
SPARE_DESCRIPTORS = 16  # reserved for reading processes when all others are in use (runtime/limits.py)
_raising = threading.Lock()  # protects the limit of this process; no other lock is taken while it is held
KERNELS_MOST = 253  # SCM_MAX_FD: with less room the kernel itself closes the excess, during recvmsg
ANCILLARY_BYTES = socket.CMSG_SPACE(KERNELS_MOST * array("i").itemsize)

# For statx(2), which Python lacks: the cached facts of a file, without asking its file server.
_EMPTY_PATH, _DONT_SYNC, _TYPE = 0x1000, 0x4000, 0x1
_STATX_BYTES, _MODE_AT = 256, 28
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True, eq=False)
class Descriptors:
    """Guards that the descriptors it holds are closed unless they were taken."""

    held: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.held)

    def take(self) -> list[int]:
        """Return all descriptors; the caller owns them from now on."""
        taken, self.held = self.held, []
        return taken

    def give(self, fds: Iterable[int]) -> None:
        """Take ownership of these descriptors."""
        self.held.extend(fds)

    def close(self) -> None:
        """Close them now; for descriptors that mpsd itself opened."""
        close_all(self.take())

    async def close_strange(self) -> None:
        """Close them in a thread, and return when they are closed, however long it takes.

        The connection that they came by counts against its user for that time.
        """
        if self.held:
            await close_apart(partial(close_all, self.take()))


async def close_apart(close: Callable[[], None]) -> None:
    """Run `close` in a thread, and wait for it: a client decides how long it takes.  If cancelled, the thread continues."""
    closed, token = trio.Event(), trio.lowlevel.current_trio_token()

    def tell(outcome: object) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(closed.set)

    trio.lowlevel.start_thread_soon(close, tell)
    await closed.wait()


def close_soon(fds: Collection[int]) -> None:
    """Close in a thread that no task waits for: the last close of GPU memory, or of a large memory file, is slow too."""
    if not fds:
        return
    try:
        trio.lowlevel.start_thread_soon(partial(close_all, fds), lambda outcome: None)
    except RuntimeError:  # mpsd can start no further thread
        close_all(fds)


def close_all(fds: Collection[int]) -> None:
    for fd in fds:
        with suppress(OSError):  # close reports a file server's error; the descriptor is closed nevertheless
            os.close(fd)


def is_prompt(fd: int) -> bool:
    """Return whether the descriptor is a memory file or a device: the kernel itself serves those, without waiting."""
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        found = ctypes.create_string_buffer(_STATX_BYTES)
        if _libc.statx(fd, b"", _EMPTY_PATH | _DONT_SYNC, _TYPE, found):
            return False
        return stat.S_ISCHR(int.from_bytes(found.raw[_MODE_AT : _MODE_AT + 2], sys.byteorder))
    return True


def received(ancillary: Iterable[tuple[int, int, bytes]]) -> Descriptors:
    """Return the descriptors in recvmsg's ancillary data."""
    fds = array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return Descriptors(fds.tolist())


def rights(fds: Collection[int]) -> list[tuple[int, int, Any]]:
    """Return the ancillary data for sendmsg; empty without descriptors."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []


@contextmanager
def spare_descriptors() -> Iterator[None]:
    """Raise this process's limit of descriptors for a moment; other threads that open one then share the spare ones."""
    with _raising:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft + SPARE_DESCRIPTORS, hard), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
