"""A file system of one file, served by this process until it stops answering: another user may send mpsd a descriptor of such
a file.

Implements the part of linux/fuse.h that one file needs. Needs root.
"""

import ctypes
import errno
import os
import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOOKUP, _FORGET, GETATTR, _OPEN, READ, WRITE, _STATFS, RELEASE, FLUSH, _INIT = 1, 2, 3, 14, 15, 16, 17, 18, 25, 26
_WRITEBACK_CACHE = 1 << 16
_ENOSYS = -38
_ROOT, _FILE = 1, 2
_IN, _OUT = struct.Struct("IIQQIIII"), struct.Struct("IiQ")
_ATTRIBUTES = struct.Struct("QQQQQQIIIIIIIIII")
DETACH = 2  # umount2(2)

LIBC = ctypes.CDLL(None, use_errno=True)


class FileServer:
    def __init__(self, device: int, end: int, mode: int, flags: int, silent: int) -> None:
        self._mode, self._flags, self._silent = mode, flags, silent
        self._device, self._end = device, end  # the other end of `end` is closed when it is to end
        self.asked: list[int] = []  # operations since it fell silent
        self.is_silent = False
        self.memory = 0  # an address: what comes after a FLUSH is read into it, and the server ends after that
        self.heard = threading.Event()  # set when a request arrived that it does not answer

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._device, select.POLLIN)
        poll.register(self._end, 0)
        while self._end not in dict(poll.poll()):
            try:
                request = os.read(self._device, 1 << 17)
            except OSError as exc:
                if exc.errno == errno.ENODEV:  # the connection was aborted
                    return
                raise
            _, operation, unique, node, *_ = _IN.unpack_from(request)
            if self.is_silent or operation == self._silent:
                self.asked.append(operation)
                self.heard.set()
            elif operation != _FORGET:
                self._answer(unique, *self._made(operation, node))
                if self.memory and operation == FLUSH:
                    LIBC.read(self._device, ctypes.c_void_p(self.memory), 1 << 17)
                    return

    def _answer(self, unique: int, error: int, data: bytes) -> None:
        os.write(self._device, _OUT.pack(_OUT.size + len(data), error, unique) + data)

    def _made(self, operation: int, node: int) -> tuple[int, bytes]:
        """Cache times of zero, so that the kernel asks every time."""
        if operation == _INIT:
            return 0, struct.pack("IIIIHHIIHHI", 7, 31, 0, self._flags, 1, 1, 4096, 1, 1, 0, 0) + bytes(28)
        if operation == _LOOKUP:
            return 0, struct.pack("QQQQII", _FILE, 0, 0, 0, 0, 0) + self._attributes(_FILE)
        if operation == GETATTR:
            return 0, struct.pack("QII", 0, 0, 0) + self._attributes(node)
        if operation == _OPEN:
            return 0, struct.pack("QII", 1, 0, 0)
        if operation == READ:
            return 0, bytes(4096)
        if operation == _STATFS:  # an overlay asks for the length of names
            return 0, struct.pack("5Q4I", 0, 0, 0, 0, 0, 4096, 255, 4096, 0) + bytes(24)
        return (0, b"") if operation in (FLUSH, RELEASE) else (_ENOSYS, b"")

    def _attributes(self, node: int) -> bytes:
        mode = 0o040755 if node == _ROOT else self._mode
        return _ATTRIBUTES.pack(node, 4096, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


@contextmanager
def serve(
    place: Path,
    mode: int = 0o100644,
    uid: int = 0,
    *,
    keeps_writes: bool = False,
    is_for_all: bool = True,
    silent: int = 0,
) -> Iterator[FileServer]:
    """Serve `place / "file"`, with this mode, as a mount of this user. Raises OSError if mounting is not allowed.

    keeps_writes: the kernel keeps what is written, and sends it later. is_for_all: False for a mount that its user alone sees,
    not even root. silent: an operation that it never answers. At the end all waiting readers continue.
    """
    device = os.open("/dev/fuse", os.O_RDWR)
    reader, writer = os.pipe()
    try:
        options = f"fd={device},rootmode=40000,user_id={uid},group_id={uid}{',allow_other' if is_for_all else ''}"
        if LIBC.mount(b"test", bytes(place), b"fuse.test", 0, options.encode()):
            raise OSError(ctypes.get_errno(), "mount")
        server = FileServer(device, reader, mode, _WRITEBACK_CACHE if keeps_writes else 0, silent)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            os.close(writer)
            thread.join(20)
            LIBC.umount2(bytes(place), DETACH)
    finally:
        os.close(reader)
        os.close(device)  # waiting readers get an error: the server has gone


def open_as(place: Path, uid: int, flags: int) -> int:
    """Open `place / "file"` as this user, who alone may where it is not for all."""
    ours, theirs = socket.socketpair()
    folder = os.open(place, os.O_PATH)
    with ours, theirs:
        if not (child := os.fork()):
            try:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
                socket.send_fds(theirs, [b"x"], [os.open("file", flags, dir_fd=folder)])
            finally:
                os._exit(0)
        theirs.close()
        [descriptor] = socket.recv_fds(ours, 1, 1)[1]
        os.waitpid(child, 0)
    os.close(folder)
    return descriptor
