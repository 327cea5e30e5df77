"""Kill a process that closes a file of a silent FUSE server, as mpsd does; print whether `wait_closed` returns.

Runs as root in a mount and a pid namespace of its own.  Arguments: two directories to mount at, one for the control file
system, the case, and how many seconds to wait:

    sent       the file came in a message
    strange    the same, but another user's message than the one who mounted
    serving    as `sent`, and the process is not killed
    overlay    as `sent`, and the file is of an overlay over the server's
    unmounted  as `sent`, and with the file the mount ends: that waits for requests which an aborted server still reads, and
               this one reads one into memory that another silent server has
    directory  as `unmounted`, with a directory
    queued     the file is in a connection that hung up: the kernel sends a written page of it
    unknown    as `queued`, and the thread has mpsd's table of descriptors
"""

import ctypes
import os
import signal
import socket
import sys
from pathlib import Path

import structlog
import trio

from mpsd.host import draining, file_servers, processes
from mpsd.host.bare_threads import BareThreads
from mpsd.host.descriptors import Closings
from mpsd.host.killed_daemon import thread_names, wait_closed
from mpsd.model.process import Credentials, ProcessId
from tests.integration.process import wait_for
from tests.unit.api.file_server import DETACH, FLUSH, READ, WRITE, open_as
from tests.unit.host.stuck_drains import ROOT, UID, Server, connection_with, libc, map_to_write, overlay_of


def drain(connection: socket.socket, bare: BareThreads | None) -> None:
    draining.begin(int, bare)
    draining.peer_credentials = lambda sock: Credentials(os.getpid(), UID, UID)
    draining.drain_soon([connection])
    signal.pause()


def close(descriptor: int, share: int = UID) -> None:
    trio.run(Closings().close, share, [descriptor])


def close_next(connection: socket.socket) -> None:
    close(*socket.recv_fds(connection, 1, 1)[1])


CASES = {
    "sent": (FLUSH, close),
    "strange": (FLUSH, lambda file: close(file, UID + 1)),
    "serving": (FLUSH, close),
    "overlay": (FLUSH, close),
    "unmounted": (READ, close_next),
    "directory": (READ, close_next),
    "queued": (WRITE, lambda connection: drain(connection, BareThreads())),
    "unknown": (WRITE, lambda connection: drain(connection, None)),
}


def made_silent(place: Path, case: str, awaited: int, servers: list[Server]) -> int | socket.socket:
    """Return what the process is given to close, once the server does not answer."""
    servers.append(Server(str(place), awaited, keeps_writes=awaited == WRITE))
    given: int | socket.socket
    if awaited == WRITE:
        given = connection_with(open_as(place, UID, os.O_RDWR))
        ctypes.memmove(map_to_write(place), b"written", 7)
    elif case == "overlay":
        given = open_as(Path(overlay_of(str(place))), ROOT, os.O_RDONLY)
    else:
        given = open_as(place, UID, os.O_RDONLY)
    servers[0].fall_silent()
    return given


def made_last(place: Path, other: Path, case: str, servers: list[Server]) -> socket.socket:
    """Return a connection with what is open last of a mount that has ended, once its server waits for the other one."""
    servers.append(Server(str(other), READ))
    memory = map_to_write(other)
    servers[0].fall_silent()
    servers.append(Server(str(place), memory=memory))
    last = os.open(place, os.O_RDONLY) if case == "directory" else open_as(place, UID, os.O_RDONLY)
    given, earlier = connection_with(last), open_as(place, UID, os.O_RDONLY)
    servers[1].fall_silent()
    os.close(earlier)
    assert os.read(servers[0].said, 64) == b"asked "  # for the memory: the other server reads this file's RELEASE into it
    if libc.umount2(bytes(place), DETACH):
        raise OSError(ctypes.get_errno(), "umount2")
    return given


async def is_closed(daemon: ProcessId, seconds: float) -> bool:
    with trio.move_on_after(seconds) as waiting:
        await wait_closed(daemon, int)
    return not waiting.cancelled_caught


def main(place: str, other: str, control: str, case: str, seconds: str) -> None:
    if libc.mount(b"none", control.encode(), b"fusectl", 0, b""):
        raise OSError(ctypes.get_errno(), "fusectl")
    file_servers.FUSE_CONNECTIONS = Path(control)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stdout))
    awaited, work = CASES[case]
    processes.process_id(os.getpid())  # starts its reader: an exec would close the file too
    servers: list[Server] = []
    try:
        if awaited == READ:
            given = made_last(Path(place), Path(other), case, servers)
        else:
            given = made_silent(Path(place), case, awaited, servers)
        daemon = os.fork()
        if not daemon:
            work(given)
            os._exit(1)
        if awaited == READ:
            given.close()
            wait_for("it to wait", lambda: waits(daemon))
        else:
            assert os.read(servers[0].said, 64) == b"asked "
        found = processes.process_id(daemon)
        assert found is not None
        if case != "serving":
            os.kill(daemon, signal.SIGKILL)
            wait_for("all but the thread to end", lambda: processes.has_thread_ended(daemon) and len(threads(daemon)) == 1)
        print("closed" if trio.run(is_closed, found, float(seconds)) else "open", flush=True)
    finally:
        for server in servers:
            server.end()  # all waits for it end, and with the first process of this namespace all others


def waits(pid: int) -> bool:
    """Return whether a thread of the process waits for a file server, or for the end of a mount."""
    places = {each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/wchan")}
    return not places.isdisjoint(("request_wait_answer", "fuse_wait_aborted"))


def threads(pid: int) -> list[str]:
    try:
        return thread_names(pid)
    except OSError:  # one has ended meanwhile
        return []


if __name__ == "__main__":
    main(*sys.argv[1:])
