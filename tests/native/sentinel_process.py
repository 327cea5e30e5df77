"""A running mpsd-sentinel and its socket, as native/include/mpsd_sentinel.h describes them.

Standard library only: tests/gpu uses it too.
"""

import contextlib
import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

PROGRAM = Path(__file__).resolve().parents[2] / "native/sentinel/mpsd-sentinel"
VERSION = 1
ADD, END = 1, 2
UNLESS_CONTAINED = 1
ARMED, FAULT, HOLDS, CONTAINED, FAILED = 1, 2, 3, 4, 5
REQUEST = struct.Struct("=IIII")
REPORT = struct.Struct("=IIIiQQIIIIQ")


class Report(NamedTuple):
    version: int
    kind: int
    pid: int
    status: int
    time_ns: int
    pc: int
    warp_esr: int
    global_esr: int
    count: int
    is_culprit: int
    mapping_bytes: int


class Sentinel:
    """The process and one connection to it; every report that came is in `reports`."""

    def __init__(self, directory: Path, environment: Mapping[str, str], *options: str, program: Path = PROGRAM) -> None:
        self.path = str(directory / "sentinel.sock")
        self.reports: list[Report] = []
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            listener.bind(self.path)
            listener.listen(4)
            self.process = subprocess.Popen(
                [program, "--fd", str(listener.fileno()), *options],
                env=environment,
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self.peer: socket.socket | None = None
        self.connect()

    def connect(self) -> None:
        """A new connection, which replaces the one before: all reports come again."""
        if self.peer:
            self.peer.close()
        self.reports.clear()
        self.peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.peer.connect(self.path)

    def add(self, pid: int) -> None:
        assert self.peer
        pidfd = os.pidfd_open(pid)
        try:
            socket.send_fds(self.peer, [REQUEST.pack(VERSION, ADD, pid, 0)], [pidfd])
        finally:
            os.close(pidfd)

    def end(self) -> None:
        assert self.peer
        with contextlib.suppress(OSError):
            self.peer.send(REQUEST.pack(VERSION, END, 0, 0))
        self.process.wait(20)

    def wait_for(self, holds: Callable[[list[Report]], bool], seconds: float = 20.0) -> bool:
        """Receive reports until `holds` of them; False after `seconds` or when the sentinel has gone."""
        assert self.peer
        until = time.monotonic() + seconds
        while not holds(self.reports):
            self.peer.settimeout(max(0.001, until - time.monotonic()))
            try:
                data = self.peer.recv(REPORT.size)
            except OSError:
                return False
            if not data or time.monotonic() > until:
                return False
            self.reports.append(Report(*REPORT.unpack(data)))
        return True

    def of(self, kind: int) -> list[Report]:
        return [report for report in self.reports if report.kind == kind]

    def comes(self, kind: int, seconds: float = 20.0) -> Report | None:
        """The latest report of this kind, once there is one."""
        found = self.wait_for(lambda reports: any(report.kind == kind for report in reports), seconds)
        return self.of(kind)[-1] if found else None

    def close(self) -> None:
        if self.peer:
            self.peer.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
