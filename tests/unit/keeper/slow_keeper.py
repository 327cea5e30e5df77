"""Stop a keeper that has a client's connection with a file of a silent FUSE server in it; print how long that took.

A page of the file was written: the kernel sends it when the file is closed, and no signal ends its wait.  Runs as root in a
mount namespace of its own.  Arguments: a directory to mount at, the keeper's program and its socket.
"""

import ctypes
import os
import socket
import sys
import time
from pathlib import Path

from mpsd.keeper.connections import KeeperClient
from tests.inspecting import INSPECTOR
from tests.unit.api.file_server import WRITE, serve

UID = 4711
PAGE = 4096
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def main(place: str, program: str, path: str) -> None:
    keeper = KeeperClient(INSPECTOR, Path(program), Path(path), 64)
    keeper.open()
    pid = keeper.pid
    with serve(Path(place), 0o100666, UID, keeps_writes=True) as server:
        mapped, file = (os.open(Path(place, "file"), os.O_RDWR) for _ in range(2))
        page = int(_libc.mmap(None, PAGE, 3, 1, mapped, 0))  # PROT_READ | PROT_WRITE, MAP_SHARED
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        socket.send_fds(theirs, [b"x"], [file])
        os.close(file)
        ctypes.memmove(page, b"written", 7)
        server.is_silent = True
        keeper.hold("client.1.control", ours)
        ours.close()
        theirs.close()
        began = time.monotonic()
        keeper.stop()
        print("seconds", time.monotonic() - began)
        print("waits", WRITE in server.asked and Path(f"/proc/{pid}").exists(), flush=True)


main(*sys.argv[1:])
