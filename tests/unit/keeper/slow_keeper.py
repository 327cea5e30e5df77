"""Stop a keeper that has a client's connection with a file of a silent FUSE server in it.

A page of the file was written: the kernel sends it when the file is closed, and no signal ends its wait.  Runs as root in
namespaces of its own.  Arguments: a directory to mount at, the keeper's program and its socket.
"""

import ctypes
import os
import sys
from pathlib import Path

from mpsd.keeper.connections import KeeperClient
from tests.inspecting import INSPECTOR
from tests.unit.api.file_server import WRITE, open_as
from tests.unit.host.stuck_drains import UID, Server, connection_with, map_to_write


def main(place: str, program: str, path: str) -> None:
    keeper = KeeperClient(INSPECTOR, Path(program), Path(path), 64)
    keeper.open()
    server = Server(place, WRITE, keeps_writes=True)
    try:
        page = map_to_write(Path(place))
        client = connection_with(open_as(Path(place), UID, os.O_RDWR))
        ctypes.memmove(page, b"written", 7)
        server.fall_silent()
        keeper.hold("client.1.control", client)
        client.close()
        keeper.stop()
        assert os.read(server.said, 64) == b"asked "
        assert Path(f"/proc/{keeper.pid}").exists(), "it does not wait"
        print("stopped", flush=True)
    finally:
        server.end()


main(*sys.argv[1:])
