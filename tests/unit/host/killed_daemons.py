"""Kill a process that closes a file of a silent FUSE server, as mpsd does; print whether `wait_closed` returns.

Runs as root in a mount and a pid namespace of its own.  Arguments: a directory to mount at, one for the control file system,
the case, and how many
seconds to wait:

    sent       the file came in a message
    strange    the same, but another user's message than the one who mounted
    serving    as `sent`, and the process is not killed
    overlay    as `sent`, and the file is of an overlay over the server's
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
from tests.unit.api.file_server import FLUSH, WRITE, open_as
from tests.unit.host.stuck_drains import ROOT, UID, Server, connection_with, libc, map_to_write, overlay_of


def drain(connection: socket.socket, bare: BareThreads | None) -> None:
    draining.begin(int, bare)
    draining.peer_credentials = lambda sock: Credentials(os.getpid(), UID, UID)
    draining.drain_soon([connection])
    signal.pause()


CASES = {
    "sent": (FLUSH, lambda file: trio.run(Closings().close, UID, [file])),
    "strange": (FLUSH, lambda file: trio.run(Closings().close, UID + 1, [file])),
    "serving": (FLUSH, lambda file: trio.run(Closings().close, UID, [file])),
    "overlay": (FLUSH, lambda file: trio.run(Closings().close, UID, [file])),
    "queued": (WRITE, lambda connection: drain(connection, BareThreads())),
    "unknown": (WRITE, lambda connection: drain(connection, None)),
}


async def is_closed(daemon: ProcessId, seconds: float) -> bool:
    with trio.move_on_after(seconds) as waiting:
        await wait_closed(daemon, int)
    return not waiting.cancelled_caught


def main(place: str, control: str, case: str, seconds: str) -> None:
    if libc.mount(b"none", control.encode(), b"fusectl", 0, b""):
        raise OSError(ctypes.get_errno(), "fusectl")
    file_servers.FUSE_CONNECTIONS = Path(control)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stdout))
    awaited, work = CASES[case]
    processes.process_id(os.getpid())  # starts its reader: an exec would close the file too
    server = Server(place, awaited, keeps_writes=awaited == WRITE)
    try:
        seen, uid = (overlay_of(place), ROOT) if case == "overlay" else (place, UID)
        given = connection_with(Path(place)) if awaited == WRITE else open_as(Path(seen), uid, os.O_RDONLY)
        if awaited == WRITE:
            ctypes.memmove(map_to_write(Path(place)), b"written", 7)
        server.fall_silent()
        daemon = os.fork()
        if not daemon:
            work(given)
            os._exit(1)
        assert os.read(server.said, 64) == b"asked "
        found = processes.process_id(daemon)
        assert found is not None
        if case != "serving":
            os.kill(daemon, signal.SIGKILL)
            wait_for("all but the thread to end", lambda: processes.has_thread_ended(daemon) and len(threads(daemon)) == 1)
        print("closed" if trio.run(is_closed, found, float(seconds)) else "open", flush=True)
    finally:
        server.end()  # all waits for it end, and with the first process of this namespace all others


def threads(pid: int) -> list[str]:
    try:
        return thread_names(pid)
    except OSError:  # one has ended meanwhile
        return []


if __name__ == "__main__":
    main(*sys.argv[1:])
