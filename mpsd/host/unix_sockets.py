"""The listening Unix sockets of mpsd's network namespace, as sock_diag(7) lists them.

/proc/net/unix writes a newline in a socket's name as it is, so that any user can add lines to it that name another's socket.
"""

import os
import socket
import struct
from collections.abc import Iterator

_NETLINK_SOCK_DIAG = 4  # linux/netlink.h
_SOCK_DIAG_BY_FAMILY = 20  # linux/sock_diag.h
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_REQUEST_DUMP = 0x301  # NLM_F_REQUEST, NLM_F_DUMP
_LISTENING = 1 << 10  # TCP_LISTEN in net/tcp_states.h, which Unix sockets have too
_UDIAG_SHOW_NAME, _UNIX_DIAG_NAME = 1, 0  # linux/unix_diag.h
_HEAD = struct.Struct("=IHHII")  # nlmsghdr: length, type
_QUESTION = struct.Struct("=BBHIIIQ")  # unix_diag_req: family, protocol, padding, states, inode, what to show, cookie
_ANSWER = struct.Struct("=BBBBIQ")  # unix_diag_msg: family, type, state, padding, inode, cookie
_ATTRIBUTE = struct.Struct("=HH")  # nlattr: length, type
_ANSWER_BYTES = 1 << 16  # the kernel makes none longer than 32 KiB
_SECONDS = 5.0  # the kernel answers while it is asked


def listening_sockets() -> dict[int, str]:
    """Return the names of the listening sockets by inode; that of an abstract one begins with a NUL.  Raises OSError."""
    question = _QUESTION.pack(socket.AF_UNIX, 0, 0, _LISTENING, 0, _UDIAG_SHOW_NAME, 0)
    head = _HEAD.pack(_HEAD.size + len(question), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_SECONDS)
        kernel.send(head + question)
        found: dict[int, str] = {}
        while True:
            for kind, body in _messages(kernel.recv(_ANSWER_BYTES)):
                if kind == _NLMSG_DONE:
                    return found
                if kind == _NLMSG_ERROR:
                    [error] = struct.unpack_from("=i", body)
                    raise OSError(-error, os.strerror(-error))
                inode, name = _socket(body)
                found[inode] = name


def _messages(answer: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(answer):
        length, kind, *_ = _HEAD.unpack_from(answer, at)
        yield kind, answer[at + _HEAD.size : at + length]
        at += _aligned(length)


def _socket(body: bytes) -> tuple[int, str]:
    """Return inode and name; an empty name if it has none."""
    inode, at = _ANSWER.unpack_from(body)[4], _ANSWER.size
    while at < len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if kind == _UNIX_DIAG_NAME:
            return inode, os.fsdecode(body[at + _ATTRIBUTE.size : at + length].removesuffix(b"\0"))
        at += _aligned(length)
    return inode, ""


def _aligned(length: int) -> int:
    return (length + 3) & ~3
