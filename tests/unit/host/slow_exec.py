"""Start an inspector while this process has a file of a silent FUSE server open; print "answered" if it answers.

The exec of a new process closes its copies of what the thread has open, and waits for the server.  Runs as root in a mount
namespace of its own, and kills the server at its end.  Argument: a directory to mount at.
"""

import os
import signal
import socket
import sys
import time
from contextlib import closing
from pathlib import Path

from mpsd.host.bare_threads import BareThreads
from mpsd.host.inspector import Inspector
from tests.unit.api.file_server import serve


def serve_until_told(place: Path, told: socket.socket) -> None:
    with serve(place) as server:
        told.send(b"serving")
        told.recv(8)
        server.is_silent = True
        told.send(b"silent")
        time.sleep(120)


place = Path(sys.argv[1])
ours, theirs = socket.socketpair()
if not (pid := os.fork()):
    serve_until_told(place, theirs)
    os._exit(1)
try:
    assert ours.recv(8) == b"serving"
    file = os.open(place / "file", os.O_RDONLY)
    with closing(Inspector(bare=BareThreads())) as inspector:
        ours.send(b"silence")
        assert ours.recv(8) == b"silent"
        inspector.facts_now(os.getpid(), [])  # raises Unreadable if it does not answer
        print("answered", flush=True)
finally:
    os.kill(pid, signal.SIGKILL)
