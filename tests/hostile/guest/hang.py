"""Another user's program: processes that make their readers wait. It uses only the standard library.

    hang.py UID COUNT [SOCKET]   processes that connect to SOCKET and exec for ever: closing a file waits for FLUSH

The files are on a FUSE mount that any user can make: started as root, this program mounts it as fusermount(1) does for a user,
and becomes that user. It prints the pids, one a line, each when the kernel waits for FLUSH on its behalf. It ends when its
standard input does: then the mount is removed, and all waiting processes continue.
"""

import ctypes
import os
import socket
import struct
import sys
import tempfile

LIBC = ctypes.CDLL(None, use_errno=True)
HEADER, REPLY = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
LOOKUP, FORGET, GETATTR, OPEN, READ, WRITE, RELEASE, FLUSH, INIT, OPENDIR, RELEASEDIR, INTERRUPT, BATCH_FORGET = (
    1, 2, 3, 14, 15, 16, 18, 25, 26, 27, 29, 36, 42,
)  # fmt: skip
FILE_BYTES = 4096
ENOSYS = 38


def check(rc: int, what: str) -> None:
    if rc < 0:
        raise OSError(ctypes.get_errno(), what)


def mount(uid: int) -> tuple[int, str]:
    """The descriptor on which requests come, and where it is mounted."""
    place = tempfile.mkdtemp()
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id={uid},group_id={uid},allow_other".encode()
    check(LIBC.mount(b"hang", place.encode(), b"fuse", 6, options), "mount")
    return device, place


def attributes(node: int) -> bytes:
    is_root = node == 1
    mode, size = (0o40755, 0) if is_root else (0o100666, FILE_BYTES)
    return struct.pack("<6Q10I", node, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(opcode: int, node: int) -> bytes | int | None:
    """Return the answer, or an errno; without either the request waits for ever."""
    if opcode == INIT:
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, 4096, 0, 16, 12, 4096, 1, 0, 0, 0)
    if opcode == LOOKUP:
        return struct.pack("<QQQQII", 2, 1, 3600, 3600, 0, 0) + attributes(2)
    if opcode == GETATTR:
        return struct.pack("<QII", 3600, 0, 0) + attributes(node)
    if opcode in (OPEN, OPENDIR):
        return struct.pack("<QII", 1, 0, 0)
    if opcode in (RELEASE, RELEASEDIR):
        return b""
    return None if opcode in (READ, WRITE, FLUSH, FORGET, BATCH_FORGET, INTERRUPT) else ENOSYS


def serve(device: int) -> None:
    while True:
        request = os.read(device, 1 << 17)
        _, opcode, unique, node, _, _, pid, _ = HEADER.unpack_from(request)
        if opcode == FLUSH:
            print(pid, flush=True)
        said = answer(opcode, node)
        if said is not None:
            data, error = (said, 0) if isinstance(said, bytes) else (b"", -said)
            os.write(device, REPLY.pack(REPLY.size + len(data), error, unique) + data)


def exec_for_ever(path: str, door: str) -> None:
    os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if door:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.set_inheritable(True)
        connection.connect(door)
    os.execv("/bin/sleep", ["sleep", "600"])


def main(uid: int, count: int, door: str) -> None:
    device, place = mount(uid)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    server = os.fork()
    if not server:
        serve(device)
    os.close(device)
    children = []
    for _ in range(count):
        child = os.fork()
        if not child:
            exec_for_ever(f"{place}/file", door)
        children.append(child)
    sys.stdin.read()
    os.kill(server, 9)
    for child in children:
        os.kill(child, 9)


main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
