"""Give mpsd's draining threads connections with files of a silent FUSE server in them; print what became of them.

A page of the files was written: the kernel sends it when one of them is closed, and waits.  Runs as root in a mount namespace
of its own, and kills the server at its end, without which no file can be closed.
A second server of the same user is silent too, with a request waiting; its files are in no connection.
Arguments: a directory to mount at, one for the second server, one for the control file system, the number of connections,
and whom the first server is for: all, or its user; or `overlay`: all, and the files are those of an overlay over it.
"""

import ctypes
import os
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from mpsd.host import draining, file_servers
from mpsd.host.bare_threads import BareThreads
from mpsd.model.process import Credentials
from tests.unit.api.file_server import WRITE, open_as, serve

# Tests that run beside this one abort other users' servers, some of UID + 1 too; namespaces have consecutive numbers.
UID = 100_000 + 2 * (os.stat("/proc/self/ns/pid").st_ino & 0xFFFFF)
ROOT = 0
PAGE = 4096
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


class Server:
    """A process that serves until it is told to be silent; `said` gives what it reports."""

    def __init__(
        self,
        place: str,
        awaited: int | None = None,
        *,
        keeps_writes: bool = False,
        is_for_all: bool = True,
        memory: int = 0,
    ) -> None:
        """awaited: the request that it reports once it is silent; None: any.  memory: as of FileServer, once it is silent."""
        silence, self._silent = os.pipe()
        self.said, said = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            with serve(Path(place), 0o100666, UID, keeps_writes=keeps_writes, is_for_all=is_for_all) as server:
                os.write(said, b"serving ")
                os.read(silence, 1)
                server.memory, server.is_silent = memory, not memory
                os.write(said, b"silent ")
                while awaited not in server.asked if awaited else not server.asked:
                    server.heard.wait(0.01)
                os.write(said, b"asked ")
                time.sleep(120)
            os._exit(1)
        assert os.read(self.said, 64) == b"serving "

    def fall_silent(self) -> None:
        os.write(self._silent, b"x")
        assert os.read(self.said, 64) == b"silent "

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def connection_with(descriptor: int) -> socket.socket:
    """Return a connection whose peer has left, with the descriptor in it, which is closed here."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    socket.send_fds(theirs, [b"x"], [descriptor])
    os.close(descriptor)
    theirs.close()
    return ours


def map_to_write(place: Path) -> int:
    """Return the address of a page.  Once it is written, the kernel sends it when any open file of the same inode is closed."""
    descriptor = open_as(place, UID, os.O_RDWR)
    address = int(libc.mmap(None, PAGE, 3, 1, descriptor, 0))  # PROT_READ | PROT_WRITE, MAP_SHARED
    os.close(descriptor)
    return address


def overlay_of(place: str) -> str:
    """Return where an overlay of the directory is mounted: its files have the number of another file system.

    It is read only, and root's; a user's own user namespace may have one too.
    """
    top, empty = tempfile.mkdtemp(), tempfile.mkdtemp()
    if libc.mount(b"overlay", top.encode(), b"overlay", 0, f"lowerdir={place}:{empty}".encode()):
        raise OSError(ctypes.get_errno(), "overlay")
    return top


def main(place: str, other: str, control: str, count: str, whom: str) -> None:
    if libc.mount(b"none", control.encode(), b"fusectl", 0, b""):
        raise OSError(ctypes.get_errno(), "fusectl")
    draining.begin(int, BareThreads())
    file_servers.FUSE_CONNECTIONS = Path(control)
    draining.peer_credentials = lambda sock: Credentials(os.getpid(), UID, UID)
    servers = [Server(place, WRITE, keeps_writes=True, is_for_all=whom != "its user")]
    try:
        servers.append(Server(other))
        os.stat(other)  # after that it has begun
        servers[1].fall_silent()
        if not os.fork():
            with suppress(OSError):
                os.stat(other)  # until its server ends, or is aborted
            os._exit(0)
        assert os.read(servers[1].said, 64) == b"asked "
        page = map_to_write(Path(place))
        seen = (Path(overlay_of(place)), ROOT, os.O_RDONLY) if whom == "overlay" else (Path(place), UID, os.O_RDWR)
        made = [connection_with(open_as(*seen)) for _ in range(int(count))]
        ctypes.memmove(page, b"written", 7)
        servers[0].fall_silent()
        for each in made:
            draining.drain_soon([each])
        assert os.read(servers[0].said, 64) == b"asked "
        until = time.monotonic() + draining.STUCK_SECONDS + 7
        while time.monotonic() < until and draining._under_way:
            time.sleep(0.05)
        print("alive", draining._under_way.total(), flush=True)
    finally:
        for server in servers:
            server.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
