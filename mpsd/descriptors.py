"""Descriptors that come with a request or go with its response: each has one owner at any time, and every way ends it.

    kernel --received--> Descriptors --take--> a service        of a request; what nobody takes is closed
    a service --give--> Descriptors --sent--> kernel            of a response; sent or not, ours is closed

A stranger's descriptor may be anything: looking at one or closing one can wait for a file server of theirs, or for a socket to
linger.  So services get those alone that wait for nobody (`is_prompt`); what is refused is closed by a thread, and nobody waits
for that but whoever sent it.
"""

import ctypes
import fcntl
import os
import socket
import stat
import sys
from array import array
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

KERNELS_MOST = 253  # SCM_MAX_FD: with room for all of them none is closed by the kernel while it makes us receive
ANCILLARY_BYTES = socket.CMSG_SPACE(KERNELS_MOST * array("i").itemsize)

# Of statx(2), which Python does not have: what is known of a file without asking whoever serves it.
_EMPTY_PATH, _DONT_SYNC, _TYPE = 0x1000, 0x4000, 0x1
_STATX_BYTES, _MODE_AT = 256, 28
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True, eq=False)
class Descriptors:
    """Guards that whatever it holds is closed unless somebody has taken it."""

    held: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.held)

    def take(self) -> list[int]:
        """All of them; they are the taker's from now on."""
        taken, self.held = self.held, []
        return taken

    def give(self, fds: Iterable[int]) -> None:
        """They are its from now on."""
        self.held.extend(fds)

    def close(self) -> None:
        """Of our own making: at once."""
        close_all(self.take())

    async def close_strange(self) -> None:
        """Returns when they are closed, for ever if need be: the connection that they came by counts against its user."""
        if self.held:
            await close_apart(partial(close_all, self.take()))


async def close_apart(close: Callable[[], None]) -> None:
    """By a thread, since it may take as long as a stranger likes.  Cancelled, it goes on without us."""
    closed, token = trio.Event(), trio.lowlevel.current_trio_token()

    def tell(outcome: object) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(closed.set)

    trio.lowlevel.start_thread_soon(close, tell)
    await closed.wait()


def close_soon(fds: Collection[int]) -> None:
    """By a thread for which nobody waits: also the last close of a GPU's memory, or of a large memory file, takes its time."""
    if not fds:
        return
    try:
        trio.lowlevel.start_thread_soon(partial(close_all, fds), lambda outcome: None)
    except RuntimeError:  # mpsd has no thread to spare
        close_all(fds)


def close_all(fds: Collection[int]) -> None:
    for fd in fds:
        with suppress(OSError):  # a file server's error, told at the close; it is closed
            os.close(fd)


def is_prompt(fd: int) -> bool:
    """A memory file, or a device: the kernel's own, which nobody else serves."""
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        found = ctypes.create_string_buffer(_STATX_BYTES)
        if _libc.statx(fd, b"", _EMPTY_PATH | _DONT_SYNC, _TYPE, found):
            return False
        return stat.S_ISCHR(int.from_bytes(found.raw[_MODE_AT : _MODE_AT + 2], sys.byteorder))
    return True


def received(ancillary: Iterable[tuple[int, int, bytes]]) -> Descriptors:
    """Those that recvmsg tells of."""
    fds = array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return Descriptors(fds.tolist())


def rights(fds: Collection[int]) -> list[tuple[int, int, Any]]:
    """What sendmsg is told, for none too."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
